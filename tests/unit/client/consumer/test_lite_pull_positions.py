import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import FakeCluster, offsets_of, pull_answer
from tests.unit.client.consumer.lite_pull_bench import G, assigned, fill, poll_all
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.config import LitePullConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ClientError,
    ConfigError,
    ConnectError,
    SystemBusyError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.wire.command import RemotingCommand


async def test_a_seek_outside_the_queue_fails(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    """C.2 scenario 68."""
    fill(cluster, 5)
    cluster.min_offsets[topic] = 100
    async with assigned(instance) as consumer:
        for wrong in (-1, 99, 106):
            with pytest.raises(ConfigError, match="not within 100 and 105"):
                await consumer.seek(topic, wrong)
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.seek(MessageQueue("T", "broker-a", 7), 0)
        for right in (100, 105):
            await consumer.seek(topic, right)


async def test_seek_discards_cached_messages_and_resumes_there(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    for number in range(100):
        cluster.send(topic, b"x", store_timestamp=1000 + number // 10)
    async with assigned(instance, auto_commit=False) as consumer:
        await wait_all_tasks_blocked()
        await consumer.seek(topic, 90)
        assert consumer.position(topic) == 90
        assert await poll_all(consumer) == list(range(90, 100))
        await consumer.seek_to_begin(topic)
        assert await poll_all(consumer) == list(range(100))
        await consumer.seek_to_timestamp(topic, 1007)
        assert await poll_all(consumer) == list(range(70, 100))
        await consumer.seek_to_begin(topic)
        await consumer.seek_to_end(topic)
        assert await poll_all(consumer) == []
        cluster.send(topic, b"new")
        assert offsets_of(await consumer.poll(1)) == [100]
    assert not cluster.committed


async def test_a_paused_queue_can_be_sought(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 10)
    async with assigned(instance) as consumer:
        await wait_all_tasks_blocked()
        consumer.pause([topic])
        await consumer.seek(topic, 7)
        assert await consumer.poll(10) == []
        consumer.resume([topic])
        assert offsets_of(await consumer.poll(1)) == [7, 8, 9]


async def test_a_message_that_was_not_polled_is_never_committed(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    """C.2 scenario 68."""
    fill(cluster, 70)
    async with assigned(instance) as consumer:
        await trio.sleep(60)
        assert cluster.committed.get((G, topic), 0) == 0
        await consumer.poll()  # commits what earlier polls returned: nothing
        await trio.sleep(4)
        await consumer.poll()  # too early for another commit
        await trio.sleep(0.6)
        assert cluster.committed[G, topic] == 0
        await trio.sleep(1)
        await consumer.poll()
        await trio.sleep(0.6)
        assert cluster.committed[G, topic] == 64
        await trio.sleep(60)
    assert cluster.committed[G, topic] == 64
    async with assigned(instance) as consumer:
        assert offsets_of(await consumer.poll()) == list(range(64, 70))


async def test_without_auto_commit_only_a_commit_commits(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 40)
    async with assigned(instance, auto_commit=False) as consumer:
        await consumer.poll()
        await trio.sleep(60)
        assert await consumer.committed(topic) is None
        await consumer.commit()
        assert cluster.committed[G, topic] == 32 == await consumer.committed(topic)
        await consumer.poll()
        await trio.sleep(60)
        await consumer.commit({topic: 35})
        assert cluster.committed[G, topic] == 35
        consumer.commit_nowait([topic])
        assert await consumer.committed(topic) == 40
        assert cluster.committed[G, topic] == 35
        await trio.sleep(0.6)
        assert cluster.committed[G, topic] == 40
        with pytest.raises(ConfigError, match="negative"):
            await consumer.commit({topic: -1})
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.commit([MessageQueue("T", "broker-a", 9)])
        consumer.commit_nowait({topic: 3})
    assert cluster.committed[G, topic] == 3


async def test_a_commit_that_a_broker_refuses_raises(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    async with assigned(instance) as consumer:
        cluster.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda command: command.reply(ResponseCode.SYSTEM_BUSY)
        with pytest.raises(SystemBusyError):
            await consumer.commit()
        cluster.down = True
        with pytest.raises(ConnectError):
            await consumer.commit()


async def test_messages_of_other_tags_do_not_hold_the_position_back(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 50)
    async with assigned(instance, expressions={"T": "A"}) as consumer:
        await trio.sleep(1)
        assert await consumer.poll(0) == []
        assert consumer.position(topic) == 50
        await trio.sleep(6)
        await consumer.poll(0)
        await trio.sleep(1)
    assert cluster.committed[G, topic] == 50


async def test_offset_below_queue_is_corrected_and_cache_kept(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 32)
    async with assigned(instance) as consumer:
        await wait_all_tasks_blocked()
        consumer.pause([topic])
        cluster.min_offsets[topic], cluster.records[topic] = 1000, []
        fill(cluster, 3)
        consumer.resume([topic])
        await wait_all_tasks_blocked()
        assert await poll_all(consumer) == [*range(32), 1000, 1001, 1002]
        assert consumer.statistics().offset_corrections == 1


async def test_an_offset_above_the_queue_is_corrected_to_its_end(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 10)
    cluster.committed[G, topic] = 99
    async with assigned(instance) as consumer:
        await trio.sleep(1)
        assert consumer.position(topic) == 10
        fill(cluster, 1)
        assert offsets_of(await consumer.poll(1)) == [10]


@pytest.mark.parametrize("target", [2, 40])
async def test_broker_reset_clears_cache_and_is_committed(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance, target: int
) -> None:
    """Brokers of 5.x answer the next pull with the offset to go on from."""
    fill(cluster, 40)
    answers = [target]

    def reset_once(command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["queueOffset"] != "32" or not answers:
            return None
        return pull_answer(command, ResponseCode.PULL_OFFSET_MOVED, answers.pop(), min_offset=0, max_offset=40)

    cluster.handlers[RequestCode.PULL_MESSAGE] = reset_once
    async with assigned(instance, auto_commit=False) as consumer:
        await wait_all_tasks_blocked()
        assert consumer.position(topic) == await consumer.committed(topic) == target
        assert await poll_all(consumer) == list(range(target, 40))
        await trio.sleep(6)
    assert cluster.committed[G, topic] == target


async def test_an_offset_out_of_range_may_end_the_consumer(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 10)
    cluster.committed[G, topic] = 99
    with pytest.raises(BrokerResponseError, match="not within 0 and 10"):
        async with assigned(instance, settings=LitePullConfig(out_of_range="raise")) as consumer:
            await consumer.poll()
