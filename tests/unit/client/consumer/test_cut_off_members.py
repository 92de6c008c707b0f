"""Members that lose the connection to a broker for long enough that others take their queues."""

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.benches import Inbox, consumer
from tests.unit.client.consumer.fake_cluster import ADDRESS, FakeCluster, FakeInstance, as_instance
from triomq.client.consumer.config import LitePullConfig
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import MessageQueue

GROUP = "G"
PULL, UPDATE = RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET


def progress_stored(cluster: FakeCluster, topic: MessageQueue) -> list[int]:
    """Return all offsets that were stored, in their order."""
    commands = [command for command in cluster.requests if command.ext_fields.get("topic") == topic.topic]
    return [
        int(command.ext_fields["commitOffset"])
        for command in commands
        if command.code == UPDATE or (command.code == PULL and int(command.ext_fields["sysFlag"]) & 1)
    ]


@pytest.fixture
def instances(cluster: FakeCluster) -> tuple[FakeInstance, FakeInstance]:
    return FakeInstance(cluster, "a"), FakeInstance(cluster, "b")


async def test_concurrent_member_resumes_from_progress_of_another(
    cluster: FakeCluster,
    topic: MessageQueue,
    instances: tuple[FakeInstance, FakeInstance],
    autojump_clock: MockClock,
) -> None:
    cut, other = instances
    cluster.send(topic, *[b"x"] * 100)
    first, second = Inbox(busy_s=1.0), Inbox()
    async with consumer(first, as_instance(cut), max_concurrency=1):
        await trio.sleep(10.7)
        cut.cut_off(GROUP)
        async with consumer(second, as_instance(other)):
            await trio.sleep(10)
            assert (len(first.ended), second.ended[-1], cluster.committed[GROUP, topic]) == (20, 99, 100)
            cluster.send(topic, *[b"y"] * 100)
            await trio.sleep(1)
            cut.reconnect(GROUP)
            await trio.sleep(10)
        await trio.sleep(5)
        cluster.send(topic, b"z")
        await trio.sleep(5)
    assert max(offset for offset in first.ended if offset < 100) <= 23
    assert first.ended[-1] == 200
    stored = progress_stored(cluster, topic)
    assert stored == sorted(stored)
    assert cluster.committed[GROUP, topic] == 201


async def test_progress_that_the_other_member_stores_late_counts(
    cluster: FakeCluster, topic: MessageQueue, instances: tuple[FakeInstance, FakeInstance], autojump_clock: MockClock
) -> None:
    cut = instances[0]
    cluster.send(topic, *[b"x"] * 100)
    inbox = Inbox(busy_s=1.0)
    async with consumer(inbox, as_instance(cut), max_concurrency=1):
        await trio.sleep(10.7)
        cut.cut_off(GROUP)
        await trio.sleep(5)
        cluster.committed[GROUP, topic] = 50
        cut.reconnect(GROUP)
        await trio.sleep(1.5)
        cluster.committed[GROUP, topic] = 90
        await trio.sleep(30)
    assert inbox.ended[-1] == 99
    assert [offset for offset in inbox.ended if offset > 60] == list(range(90, 100))
    assert min(progress_stored(cluster, topic)[-5:]) >= 90


async def test_cut_off_member_sets_no_progress_back(
    cluster: FakeCluster, topic: MessageQueue, instances: tuple[FakeInstance, FakeInstance], autojump_clock: MockClock
) -> None:
    cut = instances[0]
    cluster.send(topic, *[b"x"] * 100)
    async with consumer(Inbox(busy_s=1.0), as_instance(cut), max_concurrency=1):
        await trio.sleep(10.7)
        cut.cut_off(GROUP)
        cluster.committed[GROUP, topic] = 50
        cut.is_cut_off = False
    assert cluster.committed[GROUP, topic] == 50


async def test_short_loss_of_the_connection_repeats_nothing(
    cluster: FakeCluster, topic: MessageQueue, instances: tuple[FakeInstance, FakeInstance], autojump_clock: MockClock
) -> None:
    cut = instances[0]
    cluster.send(topic, *[b"x"] * 200)
    inbox = Inbox(busy_s=0.1)
    async with consumer(inbox, as_instance(cut), max_concurrency=4):
        await trio.sleep(1.07)
        cut.cut_off(GROUP)
        await trio.sleep(0.5)
        cut.reconnect(GROUP)
        await trio.sleep(10)
    assert sorted(inbox.ended) == list(range(200))
    assert cluster.committed[GROUP, topic] == 200


async def test_offset_reset_of_a_doubtful_queue_counts(
    cluster: FakeCluster, topic: MessageQueue, instances: tuple[FakeInstance, FakeInstance], autojump_clock: MockClock
) -> None:
    member = instances[0]
    cluster.send(topic, *[b"x"] * 10)
    inbox = Inbox()
    async with consumer(inbox, as_instance(member)):
        await trio.sleep(10)
        member.consumers[GROUP].connection_lost(ADDRESS)
        member.consumers[GROUP].reset_offsets("T", {topic: 0})
        await trio.sleep(5)
    assert inbox.ended == [*range(10), *range(10)]


async def test_lite_pull_member_resumes_from_progress_of_another(
    cluster: FakeCluster, topic: MessageQueue, instances: tuple[FakeInstance, FakeInstance], autojump_clock: MockClock
) -> None:
    cut = instances[0]
    cluster.send(topic, *[b"x"] * 100)
    async with LitePullConsumer(
        GROUP, instance=as_instance(cut), start="earliest", settings=LitePullConfig(auto_commit_interval_s=1.0)
    ) as consumer:
        await consumer.subscribe("T")
        polled = await consumer.poll()
        await trio.sleep(2)
        polled += await consumer.poll()
        await trio.sleep(2)
        assert cluster.committed[GROUP, topic] == 32
        cut.cut_off(GROUP)
        polled += await consumer.poll()
        await trio.sleep(5)
        cluster.committed[GROUP, topic] = 98
        cut.reconnect(GROUP)
        await trio.sleep(5)
        assert consumer.position(topic) == 98
        late = await consumer.poll()
        await consumer.commit()
    assert (len(polled), [message.queue_offset for message in late]) == (96, [98, 99])
    assert cluster.committed[GROUP, topic] == 100
