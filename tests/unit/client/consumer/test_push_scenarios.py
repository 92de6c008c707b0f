"""Acceptance scenarios of concurrent consumption, with the default settings where that is possible."""

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance
from tests.unit.client.consumer.push_bench import Inbox, consumer
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.config import ConsumerConfig
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt


class Gate:
    """A handler that ends at once, but for chosen messages: these end when the gate is opened."""

    def __init__(self, *closed_for: int) -> None:
        self.begun: list[int] = []
        self.opened = trio.Event()
        self._closed_for = closed_for

    async def take(self, message: MessageExt) -> None:
        self.begun.append(message.queue_offset)
        if not self._closed_for or message.queue_offset in self._closed_for:
            await self.opened.wait()


async def test_tag_with_equal_hash_is_filtered_and_offset_advances(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    """C.2 scenario 27."""
    inbox = Inbox()
    for tag in ("Aa", "BB", "Aa", "BB"):
        cluster.send(topic, b"x", properties={"TAGS": tag})
    async with consumer(inbox, instance, subscriptions={"T": "Aa"}) as push:
        await trio.sleep(16)  # the pull after the last one is held for 15 s
        assert push.statistics().filtered == 2
    assert inbox.ended == [0, 2]
    assert cluster.committed["G", topic] == 4


async def test_crash_redelivers_messages_after_an_unfinished_one(
    autojump_clock: MockClock, cluster: FakeCluster, topic: MessageQueue
) -> None:
    """C.2 scenario 44."""
    first, second = (as_instance(FakeInstance(cluster, name)) for name in "ab")
    cluster.committed["G", topic] = cluster.min_offsets[topic] = 10
    cluster.send(topic, *[b"x"] * 3)
    gate, inbox = Gate(10), Inbox()
    async with trio.open_nursery() as nursery:

        async def live_until_killed() -> None:
            async with consumer(Inbox(), first, on_message=gate.take):
                await trio.sleep_forever()

        nursery.start_soon(live_until_killed)
        await trio.sleep(30)
        assert (gate.begun, cluster.committed["G", topic]) == ([10, 11, 12], 10)
        cluster.instances[0].consumers.clear()  # a killed process says nothing
        async with consumer(inbox, second):
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert inbox.ended == [10, 11, 12]


async def test_blocked_handler_pauses_pulling_at_a_thousand_messages(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    """C.2 scenario 45."""
    gate = Gate()
    cluster.send(topic, *[b"x"] * 3_000)
    async with consumer(Inbox(), instance, on_message=gate.take) as push:
        await trio.sleep(60)
        figures = push.statistics().queues[topic]
        assert 1_001 <= figures.cached_messages <= 1_032
        assert figures.waiting_for == "too many messages are cached"
        gate.opened.set()
        await trio.sleep(1)
        assert len(gate.begun) == 3_000


async def test_blocked_message_lets_only_two_thousand_others_pass(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    """C.2 scenario 46."""
    gate = Gate(0)
    cluster.send(topic, *[b"x"] * 3_000)
    async with consumer(Inbox(), instance, on_message=gate.take) as push:
        await trio.sleep(60)
        assert 2_000 <= max(gate.begun) <= 2_032
        assert push.statistics().queues[topic].waiting_for == "one message holds back too many after it"
        assert cluster.committed["G", topic] == 0
        gate.opened.set()
        await trio.sleep(1)
        assert cluster.committed["G", topic] == 3_000


async def test_large_messages_stop_pulling_by_their_size(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    """C.2 scenario 47, at a hundredth."""
    limit = ConsumerConfig().max_cached_bytes // 100
    cluster.send(topic, *[bytes(10 * 1024)] * 300)
    gate = Gate()
    settings = ConsumerConfig(max_cached_bytes=limit)
    async with consumer(Inbox(), instance, on_message=gate.take, settings=settings) as push:
        await trio.sleep(60)
        figures = push.statistics().queues[topic]
        assert limit < figures.cached_bytes <= limit + 33 * 11 * 1024
        assert figures.waiting_for == "too many bytes are cached"
        gate.opened.set()
        await trio.sleep(1)
        assert len(gate.begun) == 300


@pytest.mark.parametrize("stored", [50, 2])
async def test_stored_offset_out_of_range_is_corrected_within_30_s(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue, stored: int
) -> None:
    """C.2 scenario 60, and the same below the minimum."""
    cluster.min_offsets[topic] = 4
    cluster.send(topic, *[b"x"] * 6)
    cluster.committed["G", topic] = stored
    inbox = Inbox()
    async with consumer(inbox, instance) as push:
        await trio.sleep(15)
        cluster.send(topic, b"new")
        await trio.sleep(15)
        assert push.statistics().offset_corrections == 1
    assert inbox.ended == ([10] if stored == 50 else [4, 5, 6, 7, 8, 9, 10])
    assert cluster.committed["G", topic] == 11
