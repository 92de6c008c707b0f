from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE, Inbox, Service, consumer
from tests.unit.client.consumer.fake_cluster import ADDRESS, FakeCluster, FakeInstance, as_instance, make_message
from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.connection.broker_requests import ConsumerCallbacks
from triomq.client.consumer.assignment.rebalancer import Rebalancer
from triomq.client.consumer.assignment.strategies import AllocateStrategy, allocate_averagely
from triomq.client.consumer.config import ConsumerConfig, LitePullConfig, StartPolicy
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.offsets.first_offsets import FirstOffsets
from triomq.client.consumer.offsets.offset_store import RETURN_S, RemoteOffsetStore
from triomq.client.consumer.pulling.pull_context import PullContext
from triomq.client.consumer.subscription import Subscriptions
from triomq.protocol.bodies.client import ConsumerIdList
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.wire.command import RemotingCommand

GROUP = "G"


class Member:
    """A rebalancer without the rest of a consumer."""

    def __init__(
        self,
        cluster: FakeCluster,
        client_id: str,
        strategy: AllocateStrategy = allocate_averagely,
        start: str = "earliest",
        **settings: float,
    ) -> None:
        self.fake = FakeInstance(cluster, client_id)
        self.instance: ClientInstance = as_instance(self.fake)
        self.announced = 0
        self.subscriptions = Subscriptions(GROUP, {"T": "*"}, lambda: 1)
        config = ConsumerConfig(**settings)  # type: ignore[arg-type]  # names are checked by the class
        requests = QueueRequests(self.instance, GROUP)
        self.offsets = RemoteOffsetStore(requests)
        self.context = PullContext(requests, self.offsets, Service(), config, self._announce)
        first_offsets = FirstOffsets(requests, self.offsets, StartPolicy.parse(start), self.subscriptions.retry_topic)
        self.rebalancer = Rebalancer(self.instance, self.context, self.subscriptions, first_offsets, strategy)

    def _announce(self) -> None:
        self.announced += 1

    def heartbeat_data(self) -> object:
        return None

    def route_changed(self, _topic: str) -> None:
        self.rebalancer.wake()

    def members_changed(self) -> None:
        self.rebalancer.wake()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        self.fake.consumers[GROUP] = cast("ConsumerCallbacks", self)
        self.fake._notify(GROUP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.rebalancer.run)
            yield
            nursery.cancel_scope.cancel()
        del self.fake.consumers[GROUP]
        self.fake._notify(GROUP)

    def queue_ids(self, topic: str = "T") -> list[int]:
        return sorted(queue.queue_id for queue in self.rebalancer.loops if queue.topic == topic)


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
    first, second = Member(cluster, "a"), Member(cluster, "b")
    async with first.running(), second.running():
        await wait_all_tasks_blocked()
        loops = dict(first.rebalancer.loops)
        assert first.queue_ids() == [0, 1, 2, 3]
        members = forgetful(cluster, "a")
        first.rebalancer.broker_lost("broker-a")
        first.members_changed()
        await trio.sleep(1.5)
        assert first.rebalancer.loops == loops
        members.append("b")
        first.members_changed()
        await trio.sleep(60)
        assert first.rebalancer.loops == loops


async def test_queues_of_vanished_member_are_taken_over_soon(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.add_topic("T", 8)
    first, second = Member(cluster, "a"), Member(cluster, "b")
    async with first.running(), second.running():
        await wait_all_tasks_blocked()
        forgetful(cluster, "a")
        first.rebalancer.broker_lost("broker-a")
        first.members_changed()
        await trio.sleep(RETURN_S + first.context.config.retry_interval_s)
        assert first.queue_ids() == list(range(8))


async def test_progress_is_stored_before_giving_up_a_queue(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    queues = cluster.add_topic("T", 2)
    cluster.send(queues[1], b"x", b"y")
    first, second = Member(cluster, "a"), Member(cluster, "b")
    async with first.running():
        await wait_all_tasks_blocked()
        loop = first.rebalancer.loops[queues[1]]
        loop.process_queue.remove(make_message(0))
        async with second.running():
            await wait_all_tasks_blocked()
            assert cluster.committed[GROUP, queues[1]] == 1
            assert loop.process_queue.dropped
            await trio.sleep(0.2)
            assert first.offsets.get(queues[1]) is None


async def test_later_topic_is_found_within_seconds(
    autojump_clock: MockClock, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.routes.clear()
    member = Member(cluster, "a", start="latest")
    async with member.running():
        await member.rebalancer.assigned.wait()
        await trio.sleep(30)
        (queue,) = cluster.add_topic("T")
        cluster.send(queue, b"first")
        await trio.sleep(5.1)
        assert member.rebalancer.loops[queue].process_queue.first_offset == 0
    assert sum("does not exist" in record.getMessage() for record in caplog.records) == 1


async def test_a_strategy_that_raises_changes_nothing(
    autojump_clock: MockClock, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """C.2 scenario 36."""
    cluster.add_topic("T", 2)
    broken = False

    def strategy(queues: object, members: object, client_id: str) -> list[MessageQueue]:
        if broken:
            raise ValueError("broken")
        return list(queues)  # type: ignore[call-overload, no-any-return]

    member = Member(cluster, "a", strategy)
    async with member.running():
        await wait_all_tasks_blocked()
        broken = True
        member.rebalancer.wake()
        await trio.sleep(30)
        assert member.queue_ids() == [0, 1]
    assert "strategy failed" in caplog.text


async def test_broker_that_forgot_this_member_gets_a_heartbeat(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.add_topic("T", 2)
    cluster.add_topic("%RETRY%G")
    member = Member(cluster, "a")
    forgotten = [True]

    def answer(command: object) -> None:
        if forgotten and not cluster.heartbeats:
            member.fake.consumers.pop(GROUP, None)

    async def heartbeat_now() -> None:
        member.fake.consumers[GROUP] = cast("ConsumerCallbacks", member)
        forgotten.clear()

    cluster.handlers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = answer
    member.fake.beat = heartbeat_now  # type: ignore[method-assign]
    async with member.running():
        await member.rebalancer.assigned.wait()
        assert member.queue_ids() == [0, 1]
        assert trio.current_time() == 0


async def test_queue_with_unknown_first_offset_is_retried_soon(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.add_topic("T", 2)
    cluster.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: (
        command.reply(ResponseCode.SYSTEM_BUSY)
        if command.ext_fields["queueId"] == "1" and trio.current_time() < 3
        else None
    )
    member = Member(cluster, "a")
    async with member.running():
        await wait_all_tasks_blocked()
        assert member.queue_ids() == [0]
        await member.rebalancer.assigned.wait()
        assert member.queue_ids() == [0, 1]
        assert trio.current_time() <= 4


async def test_topic_limits_follow_the_number_of_queues(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.add_topic("T", 4)
    member = Member(cluster, "a", max_cached_messages_of_topic=100)
    async with member.running():
        await wait_all_tasks_blocked()
        assert member.context.limits.messages == 25


async def test_a_stalled_loop_is_replaced(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    (queue,) = cluster.add_topic("T")

    async def never(_command: RemotingCommand) -> RemotingCommand:
        await trio.sleep_forever()

    cluster.handlers[RequestCode.PULL_MESSAGE] = never
    member = Member(cluster, "a")
    async with member.running():
        await wait_all_tasks_blocked()
        loop = member.rebalancer.loops[queue]
        await trio.sleep(119)
        assert member.rebalancer.loops[queue] is loop
        await trio.sleep(22)
        assert member.rebalancer.loops[queue] is not loop
        assert loop.process_queue.dropped


PULL, UPDATE = RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET


def progress_stored(cluster: FakeCluster, topic: MessageQueue) -> list[int]:
    """Return all offsets that were stored, in their order."""
    commands = [command for command in cluster.requests if command.ext_fields.get("topic") == topic.topic]
    return [
        int(command.ext_fields["commitOffset"])
        for command in commands
        if command.code == UPDATE or (command.code == PULL and int(command.ext_fields["sysFlag"]) & 1)
    ]


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
    stored = progress_stored(cluster, QUEUE)
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
    assert min(progress_stored(cluster, QUEUE)[-5:]) >= 90


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
