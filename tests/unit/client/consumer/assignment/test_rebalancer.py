from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE, Inbox, consumer
from tests.unit.client.consumer.fake_cluster import ADDRESS, FakeCluster, FakeInstance, as_instance, make_message
from triomq.client.consumer.assignment.rebalancer import Rebalancer
from triomq.client.consumer.config import ConsumerConfig, LitePullConfig
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.offsets.offset_store import RETURN_S
from triomq.protocol.bodies.client import ConsumerIdList
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.wire.command import RemotingCommand

GROUP = "G"


@asynccontextmanager
async def member(cluster: FakeCluster, client_id: str = "a", **more: object) -> AsyncGenerator[Rebalancer, None]:
    """A push consumer whose handlers never end; its rebalancer."""
    push = consumer(Inbox(busy_s=1e6), as_instance(FakeInstance(cluster, client_id)), grace_s=0, **more)
    async with push:
        await wait_all_tasks_blocked()
        assert push._engine is not None
        yield push._engine.rebalancer


def queue_ids(rebalancer: Rebalancer) -> list[int]:
    return sorted(queue.queue_id for queue in rebalancer.loops if queue.topic == "T")


def forgetful(cluster: FakeCluster, *known: str) -> list[str]:
    """Let the broker know these members only, as after a restart; return the list, to add to."""
    members = list(known)
    cluster.handlers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda command: command.reply(
        body=ConsumerIdList(members).encode()
    )
    return members


async def test_first_member_after_broker_restart_takes_no_queues(
    autojump_clock: MockClock, cluster: FakeCluster
) -> None:
    cluster.add_topic("T", 8)
    async with member(cluster, "a") as first, member(cluster, "b"):
        loops = dict(first.loops)
        assert queue_ids(first) == [0, 1, 2, 3]
        members = forgetful(cluster, "a")
        first.broker_lost("broker-a")
        first.wake()
        await trio.sleep(1.5)
        assert first.loops == loops
        members.append("b")
        first.wake()
        await trio.sleep(60)
        assert first.loops == loops


async def test_queues_of_vanished_member_are_taken_over_soon(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.add_topic("T", 8)
    async with member(cluster, "a") as first, member(cluster, "b"):
        forgetful(cluster, "a")
        first.broker_lost("broker-a")
        first.wake()
        await trio.sleep(RETURN_S + ConsumerConfig().retry_interval_s)
        assert queue_ids(first) == list(range(8))


async def test_progress_is_stored_before_giving_up_a_queue(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    queues = cluster.add_topic("T", 2)
    cluster.send(queues[1], b"x", b"y")
    async with member(cluster, "a") as first:
        loop = first.loops[queues[1]]
        loop.process_queue.remove(make_message(0))
        async with member(cluster, "b"):
            assert cluster.committed[GROUP, queues[1]] == 1
            assert loop.process_queue.dropped
            await trio.sleep(0.2)
            assert first._context.offsets.get(queues[1]) is None


async def test_later_topic_is_found_within_seconds(
    autojump_clock: MockClock, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.routes.clear()
    async with member(cluster, start="latest") as rebalancer:
        await trio.sleep(30)
        cluster.add_topic("T")
        cluster.send(QUEUE, b"first")
        await trio.sleep(5.1)
        assert rebalancer.loops[QUEUE].process_queue.first_offset == 0
    assert sum("does not exist" in record.getMessage() for record in caplog.records) == 1


async def test_a_strategy_that_raises_changes_nothing(
    autojump_clock: MockClock, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """C.2 scenario 36."""
    cluster.add_topic("T", 2)
    broken = False

    def strategy(queues: Sequence[MessageQueue], _members: object, _client_id: str) -> Sequence[MessageQueue]:
        if broken:
            raise ValueError("broken")
        return queues

    async with member(cluster, allocate=strategy) as rebalancer:
        broken = True
        rebalancer.wake()
        await trio.sleep(30)
        assert queue_ids(rebalancer) == [0, 1]
    assert "strategy failed" in caplog.text


async def test_broker_that_forgot_this_member_gets_a_heartbeat(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    async with member(cluster) as rebalancer:
        (fake,) = cluster.instances
        forgotten = fake.consumers.pop(GROUP)

        async def beat() -> None:
            fake.consumers[GROUP] = forgotten

        fake.beat = beat  # type: ignore[method-assign]
        cluster.add_topic("T", 2)
        await fake.find("T")
        await rebalancer.wait_next_round()
        assert queue_ids(rebalancer) == [0, 1]
        assert trio.current_time() == 0


async def test_queue_with_unknown_first_offset_is_retried_soon(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.add_topic("T", 2)
    cluster.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: (
        command.reply(ResponseCode.SYSTEM_BUSY)
        if command.ext_fields["queueId"] == "1" and trio.current_time() < 3
        else None
    )
    async with member(cluster) as rebalancer:
        assert queue_ids(rebalancer) == [0]
        await rebalancer.assigned.wait()
        assert queue_ids(rebalancer) == [0, 1]
        assert trio.current_time() <= 4


async def test_topic_limits_follow_the_number_of_queues(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.add_topic("T", 3)
    async with member(cluster, settings=ConsumerConfig(max_cached_messages_of_topic=100)) as rebalancer:
        assert rebalancer._context.limits.messages == 25  # with the queue of the retry topic


async def test_a_stalled_loop_is_replaced(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    async def never(_command: RemotingCommand) -> RemotingCommand:
        await trio.sleep_forever()

    cluster.handlers[RequestCode.PULL_MESSAGE] = never
    async with member(cluster) as rebalancer:
        loop = rebalancer.loops[QUEUE]
        await trio.sleep(119)
        assert rebalancer.loops[QUEUE] is loop
        await trio.sleep(22)
        assert rebalancer.loops[QUEUE] is not loop
        assert loop.process_queue.dropped


def progress_stored(cluster: FakeCluster) -> list[int]:
    """Return all offsets of the topic "T" that were stored, in their order."""
    fields = [command.ext_fields for command in cluster.requests if command.ext_fields.get("topic") == "T"]
    return [int(one["commitOffset"]) for one in fields if "commitOffset" in one and int(one.get("sysFlag", 1)) & 1]


async def test_concurrent_member_resumes_from_progress_of_another(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    cut, other = FakeInstance(cluster, "a"), FakeInstance(cluster, "b")
    cluster.send(QUEUE, *[b"x"] * 100)
    first, second = Inbox(busy_s=1.0), Inbox()
    async with consumer(first, as_instance(cut), max_concurrency=1):
        await trio.sleep(10.7)
        cut.cut_off(GROUP)
        async with consumer(second, as_instance(other)):
            await trio.sleep(10)
            assert (len(first.ended), second.ended[-1], cluster.committed[GROUP, QUEUE]) == (20, 99, 100)
            cluster.send(QUEUE, *[b"y"] * 100)
            await trio.sleep(1)
            cut.reconnect(GROUP)
            await trio.sleep(10)
        await trio.sleep(5)
        cluster.send(QUEUE, b"z")
        await trio.sleep(5)
    assert max(offset for offset in first.ended if offset < 100) <= 23
    assert first.ended[-1] == 200
    stored = progress_stored(cluster)
    assert stored == sorted(stored)
    assert cluster.committed[GROUP, QUEUE] == 201


async def test_progress_that_the_other_member_stores_late_counts(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    cut = FakeInstance(cluster, "a")
    cluster.send(QUEUE, *[b"x"] * 100)
    inbox = Inbox(busy_s=1.0)
    async with consumer(inbox, as_instance(cut), max_concurrency=1):
        await trio.sleep(10.7)
        cut.cut_off(GROUP)
        await trio.sleep(5)
        cluster.committed[GROUP, QUEUE] = 50
        cut.reconnect(GROUP)
        await trio.sleep(1.5)
        cluster.committed[GROUP, QUEUE] = 90
        await trio.sleep(30)
    assert inbox.ended[-1] == 99
    assert [offset for offset in inbox.ended if offset > 60] == list(range(90, 100))
    assert min(progress_stored(cluster)[-5:]) >= 90


async def test_cut_off_member_sets_no_progress_back(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    cut = FakeInstance(cluster, "a")
    cluster.send(QUEUE, *[b"x"] * 100)
    async with consumer(Inbox(busy_s=1.0), as_instance(cut), max_concurrency=1):
        await trio.sleep(10.7)
        cut.cut_off(GROUP)
        cluster.committed[GROUP, QUEUE] = 50
        cut.is_cut_off = False
    assert cluster.committed[GROUP, QUEUE] == 50


async def test_short_loss_of_the_connection_repeats_nothing(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    cut = FakeInstance(cluster, "a")
    cluster.send(QUEUE, *[b"x"] * 200)
    inbox = Inbox(busy_s=0.1)
    async with consumer(inbox, as_instance(cut), max_concurrency=4):
        await trio.sleep(1.07)
        cut.cut_off(GROUP)
        await trio.sleep(0.5)
        cut.reconnect(GROUP)
        await trio.sleep(10)
    assert sorted(inbox.ended) == list(range(200))
    assert cluster.committed[GROUP, QUEUE] == 200


async def test_offset_reset_of_a_doubtful_queue_counts(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    member = FakeInstance(cluster, "a")
    cluster.send(QUEUE, *[b"x"] * 10)
    inbox = Inbox()
    async with consumer(inbox, as_instance(member)):
        await trio.sleep(10)
        member.consumers[GROUP].connection_lost(ADDRESS)
        member.consumers[GROUP].reset_offsets("T", {QUEUE: 0})
        await trio.sleep(5)
    assert inbox.ended == [*range(10), *range(10)]


async def test_lite_pull_member_resumes_from_progress_of_another(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    cut = FakeInstance(cluster, "a")
    cluster.send(QUEUE, *[b"x"] * 100)
    async with LitePullConsumer(
        GROUP, instance=as_instance(cut), start="earliest", settings=LitePullConfig(auto_commit_interval_s=1.0)
    ) as consumer:
        await consumer.subscribe("T")
        polled = await consumer.poll()
        await trio.sleep(2)
        polled += await consumer.poll()
        await trio.sleep(2)
        assert cluster.committed[GROUP, QUEUE] == 32
        cut.cut_off(GROUP)
        polled += await consumer.poll()
        await trio.sleep(5)
        cluster.committed[GROUP, QUEUE] = 98
        cut.reconnect(GROUP)
        await trio.sleep(5)
        assert consumer.position(QUEUE) == 98
        late = await consumer.poll()
        await consumer.commit()
    assert (len(polled), [message.queue_offset for message in late]) == (96, [98, 99])
    assert cluster.committed[GROUP, QUEUE] == 100
