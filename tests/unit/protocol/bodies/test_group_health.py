"""Defects of a group, from the reports of its members and its broker."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.subscriptions import tag_subscription
from triomq.protocol.bodies.client import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo, SubscriptionData
from triomq.protocol.bodies.group_health import (
    GroupReport,
    StallCause,
    duplicates,
    explain_stall,
    subscription_differences,
)
from triomq.protocol.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
NOW_MS = 1_795_000_000_000
LONG_AGO_MS = NOW_MS - 45_000
JUST_NOW_MS = NOW_MS - 1000


def tags(*expressions: str, topic: str = "T") -> list[SubscriptionData]:
    return [tag_subscription(topic, expression, 1) for expression in expressions]


def test_ids_that_stand_more_than_once_are_duplicates() -> None:
    assert duplicates(["b", "a", "c", "a", "b", "a"]) == ("a", "b")
    assert duplicates([]) == ()


def test_many_differences_are_reported_briefly() -> None:
    topics = [f"T{number:04}" for number in range(1000)]
    members = [
        (f"m{name}", [SubscriptionData(topic=topic, sub_string=f"{name} {'x' * 5000}") for topic in topics])
        for name in range(200)
    ]
    found = subscription_differences([*members, *((f"n{name}", []) for name in range(200))])
    assert [difference.topic for difference in found] == topics[:20]
    assert " and 100 more not at all" in str(found[0])
    assert len(str(found[0])) < 200_000


def test_difference_names_members_and_subscriptions() -> None:
    members = [("m1", tags("A || B")), ("m3", tags("A")), ("m2", tags("A || B")), ("m4", [])]
    (difference,) = subscription_differences(members)
    assert difference.topic == "T"
    assert difference.members == (("A || B", ("m1", "m2")), ("A", ("m3",)), (None, ("m4",)))
    assert str(difference) == "topic T is subscribed to differently: m1, m2 'A || B'; m3 'A'; m4 not at all"


@pytest.mark.parametrize(("one", "other"), [("A || B", "B||A"), ("*", ""), ("A||A", "A")])
def test_expressions_that_select_the_same_are_alike(one: str, other: str) -> None:
    assert subscription_differences([("m1", tags(one)), ("m2", tags(other))]) == ()


def test_a_text_means_something_else_in_another_language() -> None:
    def filtered(kind: str, text: str) -> list[SubscriptionData]:
        return [SubscriptionData(topic="T", sub_string=text, expression_type=kind)]

    assert subscription_differences([("m1", filtered("TAG", "a")), ("m2", filtered("SQL92", "a"))])
    assert subscription_differences([("m1", filtered("SQL92", "a > 1")), ("m2", filtered("SQL92", "a > 2"))])
    assert not subscription_differences([("m1", filtered("SQL92", "a > 1")), ("m2", filtered("SQL92", "a > 1"))])
    assert not subscription_differences([("m1", filtered("TAG", "||")), ("m2", filtered("TAG", "||"))])


def member(
    held: Mapping[str, Any] | None = None, queue: MessageQueue = QUEUE, *, orderly: bool = False, failing: float = 0.0
) -> ConsumerRunningInfo:
    """A member's answer: it has a queue, from which it asked for messages just now."""
    return ConsumerRunningInfo(
        properties={"PROP_CONSUMEORDERLY": "true" if orderly else "false"},
        mq_table={queue: ProcessQueueInfo(**{"last_pull_timestamp": JUST_NOW_MS, **(held or {})})},
        status_table={"T": ConsumeStatus(consume_failed_tps=failing)},
    )


def cause(
    *members: ConsumerRunningInfo | None, lock_owner: str | None = None, consume_enabled: bool = True
) -> StallCause:
    reports = {f"m{number}": info for number, info in enumerate(members, 1)}
    return explain_stall(GroupReport(reports, NOW_MS, consume_enabled=consume_enabled), QUEUE, lock_owner).cause


OTHER = MessageQueue("T", "broker-a", 1)
BLOCKED = {"cached_msg_count": 3, "last_consume_timestamp": LONG_AGO_MS}
BUSY = {"cached_msg_count": 3, "last_consume_timestamp": JUST_NOW_MS}


def test_group_without_members_or_permission_consumes_nothing() -> None:
    assert cause() is StallCause.NO_MEMBER
    assert cause(member(BUSY), consume_enabled=False) is StallCause.DISABLED


def test_unowned_queue_is_distinguished_from_silent_owner() -> None:
    assert cause(member(queue=OTHER)) is StallCause.NO_OWNER
    assert cause(member({"dropped": True})) is StallCause.NO_OWNER
    assert cause(member(queue=OTHER), None) is StallCause.SILENT
    assert cause(member(queue=OTHER), lock_owner="gone") is StallCause.LOCKED


def test_lock_in_other_hands_stops_orderly_owner_only() -> None:
    assert cause(member(BUSY, orderly=True), lock_owner="m2") is StallCause.LOCKED
    assert cause(member(BUSY, orderly=True)) is StallCause.NO_LOCK
    assert (
        cause(member({**BUSY, "locked": True}, orderly=True, failing=1.0), lock_owner="m1")
        is StallCause.HANDLER_FAILING
    )
    assert cause(member(BLOCKED), lock_owner="m2") is StallCause.HANDLER_BLOCKED


@pytest.mark.parametrize(
    ("held", "failing", "expected"),
    [
        ({"cached_msg_count": 3}, 0.0, StallCause.HANDLER_BLOCKED),  # none has ended yet
        (BLOCKED, 5.0, StallCause.HANDLER_BLOCKED),
        (BUSY, 0.5, StallCause.HANDLER_FAILING),
        ({**BUSY, "cached_msg_count": 1001}, 0.0, StallCause.FLOW_CONTROL),
        ({**BUSY, "cached_msg_size_in_mib": 101}, 0.0, StallCause.FLOW_CONTROL),
        (BUSY, 0.0, StallCause.HANDLER_BLOCKED),
        ({"last_pull_timestamp": LONG_AGO_MS}, 0.0, StallCause.NOT_PULLING),
        ({}, 0.0, StallCause.NOTHING_WANTED),
    ],
)
def test_what_the_owner_does_is_the_reason(held: dict[str, int], failing: float, expected: StallCause) -> None:
    assert cause(member(queue=OTHER), member(held, failing=failing)) is expected


def test_description_names_member_message_and_time() -> None:
    report = GroupReport({"m1": member(BLOCKED)}, NOW_MS)
    text = explain_stall(report, QUEUE).text
    assert text == "the handler of m1 ended 45 s ago; 3 messages (0 MiB) wait for it"


@pytest.mark.parametrize(
    ("cached", "consumed_per_s", "lag", "expected"),
    [
        (1001, 9.9, 1000, ["1000 messages of topic T wait for slow handlers: at 100 ms a message, 9.9/s are consumed"]),
        (1001, 20.0, 1000, []),  # done within a minute
        (1000, 9.9, 1000, []),  # the member fetches more
        (1001, 0.0, 1000, []),  # unknown, or stalled
    ],
)
def test_handlers_are_slow_by_their_pace(cached: int, consumed_per_s: float, lag: int, expected: list[str]) -> None:
    info = member({**BUSY, "cached_msg_count": cached})
    info.status_table["T"] = ConsumeStatus(consume_rt=100.0, consume_ok_tps=consumed_per_s)
    report = GroupReport({"m1": info, "m2": None, "m3": ConsumerRunningInfo()}, NOW_MS)
    assert (
        list(map(str, report.slow_handlers({QUEUE: lag - 1, OTHER: 1, QUEUE._replace(topic="U"): 10**6}))) == expected
    )


def test_owners_are_all_who_have_taken_the_queue() -> None:
    report = GroupReport({"m2": member(), "m1": member(), "m3": None, "m4": member(queue=OTHER)}, NOW_MS)
    assert [client_id for client_id, _ in report.owners(QUEUE)] == ["m1", "m2"]
