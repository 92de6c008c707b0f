"""What a consumer stores when; the timers themselves are seen in the tests of the consumers."""

import trio
from trio.testing import MockClock

from tests.unit.client.consumer.fake_cluster import FakeCluster
from tests.unit.client.consumer.lite_pull_bench import G, assigned
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.maintenance import END_LIMIT_S
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.wire.command import RemotingCommand


async def test_offsets_are_stored_soon_after_change_and_periodically(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    def stored() -> int:
        return len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET))

    async with assigned(instance, auto_commit=False) as consumer:
        await trio.sleep(0.1)
        consumer.commit_nowait({topic: 0})
        await trio.sleep(0.5)
        assert stored() == 1
        await trio.sleep(4)
        assert stored() == 1
        await trio.sleep(0.9)
        assert stored() == 2


async def test_leave_from_unresponsive_broker_takes_bounded_time(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    async def never(_command: RemotingCommand) -> RemotingCommand:
        await trio.sleep_forever()
        raise AssertionError

    async with assigned(instance, auto_commit=False) as consumer:
        consumer.commit_nowait({topic: 0})
        cluster.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = never
        began = trio.current_time()
    assert trio.current_time() - began <= END_LIMIT_S
    assert cluster.members(G) == []
