"""Filters that are remembered, and the memory that subscriptions take."""

import itertools
from collections.abc import Callable

from triomq.broker.groups.subscriptions import Filters, newest, size_bytes
from triomq.protocol.bodies.client import SubscriptionData
from triomq.protocol.errors import SubscriptionParseError


class Worker:
    """Counts its charges; each look at its clock takes a second."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = itertools.count().__next__
        self.charged_s = 0.0

    def charge(self, work_s: float) -> None:
        self.charged_s += work_s


def test_remembered_filters_are_limited_by_their_length() -> None:
    worker = Worker()
    filters = Filters(worker, 6144)
    texts = [f"{number:04}{'x' * (number % 2) * 30_000}" for number in range(1000)]
    for text in texts:
        filters.find(text, "TAG")
        assert sum(len(expression) + 64 for expression, _ in filters._known) <= 256 * 1024
    assert worker.charged_s == len(texts)
    filters.find(texts[-1], "TAG")
    assert worker.charged_s == len(texts)
    filters.find(texts[1], "TAG")
    assert worker.charged_s == len(texts) + 1


def test_texts_above_all_limits_are_not_remembered() -> None:
    filters = Filters(Worker(), 6144)
    for expression, kind in (("x" * 300_000, "TAG"), ("x" * 300_000, "SQL92"), ("x", "y" * 300_000)):
        assert isinstance(filters.find(expression, kind), SubscriptionParseError)
    assert not filters._known


def test_member_keeps_its_newest_subscription_to_each_topic() -> None:
    own = [SubscriptionData("T", "A", sub_version=5), SubscriptionData("U", "A", sub_version=5)]
    sent = [SubscriptionData("T", "B", sub_version=5), SubscriptionData("T", "C", sub_version=4), SubscriptionData("V")]
    assert newest(sent, own, {}) == [own[0], sent[2]]


def test_size_grows_with_the_memory_of_texts() -> None:
    small, wide = (size_bytes(SubscriptionData("T", first + "x" * 1000)) for first in ("x", "\U0001f600"))
    assert 1000 < small < 2000
    assert wide - small > 3 * 1000
