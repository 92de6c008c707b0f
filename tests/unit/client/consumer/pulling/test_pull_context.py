from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.client.consumer.benches import QUEUE
from tests.unit.client.consumer.fake_cluster import make_message, offsets_of
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.pulling.pull_context import FlowLimits, PollBuffer, PullDecision, decide_pull, pull_size

LIMITS = FlowLimits.of(ConsumerConfig(), 4)


def queue_with(**figures: int) -> ProcessQueue:
    """Return something with the figures of a process queue."""
    none = {"dropped": False, "cached_messages": 0, "cached_bytes": 0, "span": 0}
    return cast("ProcessQueue", SimpleNamespace(**(none | figures)))


@pytest.mark.parametrize(
    ("queue", "decision"),
    [
        (queue_with(), PullDecision.PULL),
        (queue_with(cached_messages=1_000, cached_bytes=100 * 1024**2, span=2_000), PullDecision.PULL),
        (queue_with(cached_messages=1_001), PullDecision.TOO_MANY_MESSAGES),
        (queue_with(cached_bytes=100 * 1024**2 + 1), PullDecision.TOO_MANY_BYTES),
        (queue_with(span=2_001), PullDecision.TOO_WIDE_SPAN),
        (queue_with(dropped=True, cached_messages=1_001), PullDecision.END),
        (queue_with(cached_messages=1_001, cached_bytes=2**40, span=2_001), PullDecision.TOO_MANY_MESSAGES),
    ],
)
def test_the_first_reason_of_the_table_decides(queue: ProcessQueue, decision: PullDecision) -> None:
    assert decide_pull(queue, LIMITS) is decision


def test_suspended_consumer_gives_up_but_never_pulls() -> None:
    assert decide_pull(queue_with(), LIMITS, suspended=True) is PullDecision.SUSPENDED
    assert decide_pull(queue_with(dropped=True), LIMITS, suspended=True) is PullDecision.END


def test_topic_limit_is_divided_among_queues() -> None:
    config = ConsumerConfig(max_cached_messages_of_topic=100, max_cached_bytes_of_topic=1_000)
    assert FlowLimits.of(config, 3) == FlowLimits(33, 333, 2_000)
    config = ConsumerConfig(max_cached_messages_of_topic=2, max_cached_bytes_of_topic=2)
    assert FlowLimits.of(config, 5) == FlowLimits(1, 1, 2_000)
    assert FlowLimits.of(config, 0) == FlowLimits(2, 2, 2_000)


@pytest.mark.parametrize(
    ("queue", "backlog", "size"),
    [
        (queue_with(), 32, 32),
        (queue_with(), 33, 256),
        (queue_with(cached_messages=900), 5_000, 100),
        (queue_with(cached_messages=999), 5_000, 32),
        (queue_with(span=1_950), 5_000, 50),
    ],
)
def test_pull_from_a_backlog_fills_the_room(queue: ProcessQueue, backlog: int, size: int) -> None:
    asked, size_bytes = pull_size(ConsumerConfig(), queue, LIMITS, backlog)
    assert (asked, size_bytes is not None) == (size, backlog > 32)


def test_configured_batch_size_holds_for_a_backlog() -> None:
    assert pull_size(ConsumerConfig(pull_batch_size=4), queue_with(), LIMITS, 5_000) == (4, None)
    assert pull_size(ConsumerConfig(pull_batch_size=1_024), queue_with(), LIMITS, 5_000) == (1_024, 256 * 1024)


def put(buffer: PollBuffer, process_queue: ProcessQueue, *offsets: int) -> None:
    messages = [make_message(offset) for offset in offsets]
    process_queue.put(messages)
    buffer.submit(process_queue, messages)


async def test_units_of_lost_queues_are_dropped() -> None:
    buffer, one, two = PollBuffer(), ProcessQueue(QUEUE), ProcessQueue(QUEUE)
    put(buffer, one, 0)
    put(buffer, two, 7)
    one.dropped = True
    assert offsets_of(buffer.take()) == [7]
    assert one.cached_messages == 1


async def test_unpolled_units_are_dropped_with_their_queues() -> None:
    buffer, kept = PollBuffer(), ProcessQueue(QUEUE)
    put(buffer, kept, 7)
    for _ in range(2_000):
        given_up = ProcessQueue(QUEUE)
        put(buffer, given_up, 0)
        given_up.dropped = True
    assert len(buffer._units) < 600
    assert offsets_of(buffer.take()) == [7]
    assert buffer.take() == []
