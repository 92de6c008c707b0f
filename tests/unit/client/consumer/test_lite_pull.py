from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance, offsets_of
from tests.unit.client.consumer.lite_pull_bench import G, assigned, fill, poll_all
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.config import LitePullConfig
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.protocol.bodies.client import ConsumeType
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import (
    ClientClosedError,
    ClientError,
    ConfigError,
    IllegalNameError,
    NoRouteError,
    SubscriptionParseError,
)
from triomq.protocol.message_queue import MessageQueue

# --- subscribing and assigning ------------------------------------------------------------------------------


async def test_assign_after_subscribe_fails_and_the_other_way_round(
    autojump_clock: MockClock, topic: MessageQueue, instance: ClientInstance, cluster: FakeCluster
) -> None:
    """C.2 scenario 68."""
    async with LitePullConsumer(G, instance=instance) as consumer:
        await consumer.subscribe("T")
        with pytest.raises(ClientError, match="mutually exclusive"):
            await consumer.assign([topic])
    async with assigned(as_instance(FakeInstance(cluster, "b"))) as consumer:
        with pytest.raises(ClientError, match="mutually exclusive"):
            await consumer.subscribe("T")
        with pytest.raises(ClientError, match="use assign"):
            await consumer.unsubscribe("T")


async def test_whoever_waits_is_told_when_the_consumer_is_left(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    told: list[str] = []

    async def wait(name: str, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        with pytest.raises(ClientClosedError):
            await function(*arguments)
        told.append(name)

    cluster.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(1, remark="busy")
    second = as_instance(FakeInstance(cluster, "127.0.0.1@2"))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with (
                LitePullConsumer(G, instance=instance) as subscribed,
                LitePullConsumer("H", instance=second) as one,
            ):
                await subscribed.subscribe("T")
                nursery.start_soon(wait, "poll", subscribed.poll, 1_000.0)
                nursery.start_soon(wait, "wait_assigned", subscribed.wait_assigned)
                nursery.start_soon(wait, "assign", one.assign, [topic])
                await trio.sleep(5)
                assert not told
    assert sorted(told) == ["assign", "poll", "wait_assigned"]


async def test_members_share_topic_and_commit_delivered_messages(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance
) -> None:
    queues = cluster.add_topic("T", 4)
    for queue in queues:
        fill(cluster, 3, queue)
    other = as_instance(FakeInstance(cluster, "127.0.0.1@2"))
    async with LitePullConsumer(G, instance=instance, start="earliest", auto_commit=False) as first:
        await first.subscribe("T")
        await first.wait_assigned()
        assert first.assignment() == queues
        assert len(await poll_all(first)) == 12
        await first.commit()
        async with LitePullConsumer(G, instance=other, start="earliest") as second:
            await second.subscribe("T")
            await second.wait_assigned()
            await wait_all_tasks_blocked()
            assert (first.assignment(), second.assignment()) == (queues[:2], queues[2:])
            assert await poll_all(second) == []
        await wait_all_tasks_blocked()
        assert first.assignment() == queues


async def test_a_change_of_the_assignment_is_told(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance
) -> None:
    queues = cluster.add_topic("T", 4)
    other = as_instance(FakeInstance(cluster, "127.0.0.1@2"))
    seen: list[tuple[MessageQueue, ...]] = []

    async def watch(consumer: LitePullConsumer) -> None:
        while len(seen) < 3:
            seen.append(await consumer.wait_assignment_changed(seen[-1] if seen else ()))

    async with LitePullConsumer(G, instance=instance) as first, trio.open_nursery() as nursery:
        await first.subscribe("T")
        nursery.start_soon(watch, first)
        async with LitePullConsumer(G, instance=other) as second:
            await second.subscribe("T")
            await wait_all_tasks_blocked()
    assert seen == [queues, queues[:2], queues]


async def test_leave_raises_for_callers_waiting_for_reassignment(topic: MessageQueue, instance: ClientInstance) -> None:
    errors: list[ClientError] = []

    async def watch(consumer: LitePullConsumer) -> None:
        try:
            await consumer.wait_assignment_changed([topic])
        except ClientError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        async with assigned(instance) as consumer:
            nursery.start_soon(watch, consumer)
            await wait_all_tasks_blocked()
    assert isinstance(errors[0], ClientClosedError)


async def test_topic_can_be_added_removed_and_its_expression_changed(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance
) -> None:
    (one,), (two,) = cluster.add_topic("One"), cluster.add_topic("Two")
    for tag in ("A", "B"):
        cluster.send(one, tag.encode(), properties={"TAGS": tag})
    fill(cluster, 1, two)
    async with LitePullConsumer(G, instance=instance, start="earliest") as consumer:
        await consumer.subscribe("One", "A")
        await consumer.wait_assigned()
        await wait_all_tasks_blocked()
        assert [message.body for message in await consumer.poll(0)] == [b"A"]
        await consumer.subscribe("Two")
        await consumer.wait_assigned()
        assert consumer.assignment() == (one, two)
        await wait_all_tasks_blocked()
        assert [message.body for message in await consumer.poll(0)] == [b"0"]
        await consumer.subscribe("One", "B")
        await consumer.wait_assigned()
        cluster.send(one, b"C", properties={"TAGS": "A"})
        cluster.send(one, b"D", properties={"TAGS": "B"})
        assert await poll_all(consumer) == [3]
        await consumer.unsubscribe("One")
        assert consumer.assignment() == (two,)
        (data,) = cluster.heartbeats[-1].consumer_data_set
        assert [subscription.topic for subscription in data.subscription_data_set] == ["Two"]
    assert data.consume_type is ConsumeType.CONSUME_ACTIVELY


async def test_assigned_queues_are_exclusive_and_subscribe_nothing(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance
) -> None:
    queues = cluster.add_topic("T", 4)
    other = as_instance(FakeInstance(cluster, "127.0.0.1@2"))
    async with assigned(instance, *queues) as first, assigned(other, queues[1]) as second:
        await first._engine._instance.groups.beat()  # type: ignore[union-attr]  # it is there
        await trio.sleep(60)
        assert (first.assignment(), second.assignment()) == (queues, (queues[1],))
        assert not cluster.heartbeats[-1].consumer_data_set[0].subscription_data_set
        await first.assign(queues[2:])
        assert first.assignment() == queues[2:]


async def test_lite_pull_requests_are_flagged_with_their_expression(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    async with assigned(instance, expressions={"T": "A || B"}):
        await wait_all_tasks_blocked()
    (pull,) = cluster.of(RequestCode.PULL_MESSAGE)
    assert (pull.ext_fields["sysFlag"], pull.ext_fields["subscription"]) == ("22", "A || B")
    assert pull.ext_fields["suspendTimeoutMillis"] == "20000"


@pytest.mark.parametrize("is_assigned", [False, True])
async def test_pulls_in_flight_are_sent_again_only_if_their_filter_changes(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance, is_assigned: bool
) -> None:
    """A broker of 5.x tells a reset once, perhaps in the answer to a pull that nobody waits for."""

    async def consume(tags: str) -> int:
        await (consumer.assign([topic], {"T": tags}) if is_assigned else consumer.subscribe("T", tags))
        await wait_all_tasks_blocked()
        return len(cluster.of(RequestCode.PULL_MESSAGE))

    async with LitePullConsumer(G, instance=instance, start="earliest") as consumer:
        assert [await consume(tags) for tags in ("A", "A", "B", "B")] == [1, 1, 2, 2]


async def test_what_cannot_be_consumed_is_refused(topic: MessageQueue, instance: ClientInstance) -> None:
    with pytest.raises(IllegalNameError):
        LitePullConsumer("a b")
    with pytest.raises(ConfigError, match="auto_commit_interval_s"):
        LitePullConfig(auto_commit_interval_s=0.5)
    async with LitePullConsumer(G, instance=instance) as consumer:
        with pytest.raises(IllegalNameError):
            await consumer.subscribe("a b")
        with pytest.raises(SubscriptionParseError):
            await consumer.subscribe("T", "||")
        with pytest.raises(SubscriptionParseError):
            await consumer.assign([topic], {"T": "||"})
        with pytest.raises(ClientError, match="call subscribe or assign first"):
            await consumer.poll()
        with pytest.raises(ClientError, match="nothing is subscribed"):
            consumer.statistics()
        with pytest.raises(NoRouteError):
            await consumer.assign([MessageQueue("Missing", "broker-a", 0)])
        assert consumer.assignment() == ()
    with pytest.raises(ClientClosedError):
        await consumer.poll()


async def test_later_topic_is_consumed_from_its_first_message(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance
) -> None:
    async with LitePullConsumer(G, instance=instance) as consumer:
        await consumer.subscribe("T")
        await consumer.wait_assigned()
        cluster.add_topic("T")
        fill(cluster, 2)
        assert offsets_of(await consumer.poll(10)) == [0, 1]


# --- polling ------------------------------------------------------------------------------------------------


async def test_a_poll_returns_the_messages_of_one_pull_each_once(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 70)
    async with assigned(instance) as consumer:
        await wait_all_tasks_blocked()
        units = [offsets_of(await consumer.poll()) for _ in range(3)]
        assert [len(unit) for unit in units] == [32, 32, 6]
        assert [*units[0], *units[1], *units[2]] == list(range(70))
        statistics = consumer.statistics()
        assert (statistics.polled, statistics.cached_messages, statistics.cached_bytes) == (70, 0, 0)
    assert consumer.statistics().queues[topic].next_pull_offset == 70


async def test_a_poll_waits_as_long_as_it_is_told_to_and_no_longer(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    async with assigned(instance) as consumer, trio.open_nursery() as nursery:
        assert await consumer.poll() == []
        assert trio.current_time() == 5
        assert await consumer.poll(0) == []
        assert trio.current_time() == 5

        async def send_later() -> None:
            await trio.sleep(2)
            fill(cluster, 1)

        nursery.start_soon(send_later)
        assert offsets_of(await consumer.poll(60)) == [0]
        assert trio.current_time() == 7
        with pytest.raises(ConfigError):
            await consumer.poll(-1)


async def test_a_cancelled_poll_takes_nothing(
    autojump_clock: MockClock, topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    async with assigned(instance) as consumer:
        with trio.move_on_after(1):
            await consumer.poll(10)
        fill(cluster, 1)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await consumer.poll()
        assert offsets_of(await consumer.poll(0)) == [0]


async def test_tasks_that_poll_at_once_share_the_messages(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    got: list[int] = []
    async with assigned(instance) as consumer:

        async def work() -> None:
            while len(got) < 200:
                got.extend(offsets_of(await consumer.poll(0.001)))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(work)
            await wait_all_tasks_blocked()
            fill(cluster, 200)
    assert sorted(got) == list(range(200))


async def test_pulling_pauses_on_full_cache_and_resumes_with_polling(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 500)
    settings = LitePullConfig(max_cached_messages=100)
    async with assigned(instance, settings=settings) as consumer:
        await wait_all_tasks_blocked()
        assert consumer.statistics().cached_messages == 128
        assert await poll_all(consumer) == list(range(500))


async def test_a_limit_for_all_queues_bounds_their_sum(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance
) -> None:
    queues = cluster.add_topic("T", 8)
    for queue in queues:
        fill(cluster, 500, queue)
    async with assigned(instance, *queues, settings=LitePullConfig(max_cached_messages_in_all=256)) as consumer:
        await wait_all_tasks_blocked()
        assert consumer.statistics().cached_messages <= 256 + 8 * 32


async def test_paused_queues_are_not_pulled_but_cache_can_be_polled(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance
) -> None:
    one, two = queues = cluster.add_topic("T", 2)
    fill(cluster, 3, one)
    async with assigned(instance, *queues) as consumer:
        await wait_all_tasks_blocked()
        consumer.pause([one])
        await wait_all_tasks_blocked()
        assert consumer.statistics().queues[one].waiting_for == "the queue is paused"
        assert offsets_of(await consumer.poll(0)) == [0, 1, 2]
        fill(cluster, 5, one)
        fill(cluster, 1, two)
        assert [message.queue_id for message in await consumer.poll(0.5)] == [1]
        assert await consumer.poll(30) == []
        consumer.resume([one])
        assert offsets_of(await consumer.poll(0.5)) == [3, 4, 5, 6, 7]
        with pytest.raises(ClientError, match="not assigned"):
            consumer.pause([MessageQueue("T", "broker-a", 9)])


# --- the end ------------------------------------------------------------------------------------------------


async def test_leave_stores_committed_offsets_and_leaves_group(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 40)
    async with assigned(instance, auto_commit=False) as consumer:
        await consumer.poll()
        consumer.commit_nowait()
        await consumer.poll()
        assert cluster.members(G) == ["127.0.0.1@1"]
    assert cluster.committed[G, topic] == 32
    assert cluster.members(G) == []


async def test_leaving_by_a_cancellation_stores_it_too(
    topic: MessageQueue, cluster: FakeCluster, instance: ClientInstance
) -> None:
    fill(cluster, 40)
    with trio.CancelScope() as scope:
        async with assigned(instance, auto_commit=False) as consumer:
            await consumer.poll()
            consumer.commit_nowait()
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert cluster.committed[G, topic] == 32
    assert cluster.members(G) == []


async def test_a_consumer_that_never_subscribed_joins_no_group(cluster: FakeCluster, instance: ClientInstance) -> None:
    cluster.add_topic("T", 2)
    async with LitePullConsumer(G, instance=instance) as consumer:
        queue, _ = await consumer.queues("T")
        assert await consumer.committed(queue) is None
    assert not cluster.of(RequestCode.HEART_BEAT)
    assert cluster.members(G) == []


async def test_backlog_uses_long_pulls_where_brokers_offer_them(
    cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    cluster.max_transfer_count = 1_024
    cluster.send(topic, *[b"x"] * 500)
    async with assigned(instance) as consumer:
        sizes = [len(await consumer.poll()) for _ in range(3)]
    assert sizes == [32, 256, 212]
