from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE, G, Machine, assigned, fill, poll_all
from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance, offsets_of
from triomq.client.consumer.config import LitePullConfig
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.offsets.local_offsets import OffsetsFile
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

pytestmark = pytest.mark.usefixtures("files_take_no_time")

# --- subscribing and assigning ------------------------------------------------------------------------------


async def test_assign_and_subscribe_exclude_each_other(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    """C.2 scenario 68."""
    async with LitePullConsumer(G, instance=cluster.instance) as consumer:
        await consumer.subscribe("T")
        with pytest.raises(ClientError, match="mutually exclusive"):
            await consumer.assign([QUEUE])
    async with assigned(as_instance(FakeInstance(cluster, "b"))) as consumer:
        with pytest.raises(ClientError, match="mutually exclusive"):
            await consumer.subscribe("T")
        with pytest.raises(ClientError, match="use assign"):
            await consumer.unsubscribe("T")


async def test_waiters_wake_when_the_consumer_is_left(autojump_clock: MockClock, cluster: FakeCluster) -> None:
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
                LitePullConsumer(G, instance=cluster.instance) as subscribed,
                LitePullConsumer("H", instance=second) as one,
            ):
                await subscribed.subscribe("T")
                nursery.start_soon(wait, "poll", subscribed.poll, 1_000.0)
                nursery.start_soon(wait, "wait_assigned", subscribed.wait_assigned)
                nursery.start_soon(wait, "assign", one.assign, [QUEUE])
                await trio.sleep(5)
                assert not told
    assert sorted(told) == ["assign", "poll", "wait_assigned"]


async def test_topic_is_added_removed_and_changed(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    (one,), (two,) = cluster.add_topic("One"), cluster.add_topic("Two")
    for tag in ("A", "B"):
        cluster.send(one, tag.encode(), properties={"TAGS": tag})
    fill(cluster, 1, two)
    async with LitePullConsumer(G, instance=cluster.instance, start="earliest") as consumer:
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


@pytest.mark.parametrize("is_assigned", [False, True])
async def test_changed_filter_repeats_pulls_in_flight(cluster: FakeCluster, is_assigned: bool) -> None:
    """A broker of 5.x reports a reset once, perhaps in the answer to an abandoned pull."""

    async def consume(tags: str) -> int:
        await (consumer.assign([QUEUE], {"T": tags}) if is_assigned else consumer.subscribe("T", tags))
        await wait_all_tasks_blocked()
        return len(cluster.of(RequestCode.PULL_MESSAGE))

    async with LitePullConsumer(G, instance=cluster.instance, start="earliest") as consumer:
        assert [await consume(tags) for tags in ("A", "A", "B", "B")] == [1, 1, 2, 2]


async def test_what_cannot_be_consumed_is_refused(cluster: FakeCluster) -> None:
    with pytest.raises(IllegalNameError):
        LitePullConsumer("a b")
    with pytest.raises(ConfigError, match="auto_commit_interval_s"):
        LitePullConfig(auto_commit_interval_s=0.5)
    async with LitePullConsumer(G, instance=cluster.instance) as consumer:
        with pytest.raises(IllegalNameError):
            await consumer.subscribe("a b")
        with pytest.raises(SubscriptionParseError):
            await consumer.subscribe("T", "||")
        with pytest.raises(SubscriptionParseError):
            await consumer.assign([QUEUE], {"T": "||"})
        with pytest.raises(ClientError, match="call subscribe or assign first"):
            await consumer.poll()
        with pytest.raises(ClientError, match="nothing is subscribed"):
            consumer.statistics()
        with pytest.raises(NoRouteError):
            await consumer.assign([MessageQueue("Missing", "broker-a", 0)])
        assert consumer.assignment() == ()
    with pytest.raises(ClientClosedError):
        await consumer.poll()


# --- polling ------------------------------------------------------------------------------------------------


async def test_poll_waits_exactly_as_long_as_given(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    async with assigned(cluster.instance) as consumer, trio.open_nursery() as nursery:
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


async def test_a_cancelled_poll_takes_nothing(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    async with assigned(cluster.instance) as consumer:
        with trio.move_on_after(1):
            await consumer.poll(10)
        fill(cluster, 1)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await consumer.poll()
        assert offsets_of(await consumer.poll(0)) == [0]


async def test_paused_queue_is_polled_from_its_cache(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    one, two = queues = cluster.add_topic("T", 2)
    fill(cluster, 3, one)
    async with assigned(cluster.instance, *queues) as consumer:
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


async def test_commit_writes_the_file_in_time(
    autojump_clock: MockClock, cluster: FakeCluster, machine: Machine
) -> None:
    file = machine.folder / "one" / G / "offsets.json"
    fill(cluster, 40)
    async with machine.lite() as consumer:
        await consumer.subscribe("T")
        await consumer.poll()
        await consumer.commit()
        assert b":32" in file.read_bytes()
        await consumer.poll()
        consumer.commit_nowait()
        await wait_all_tasks_blocked()
        assert b":32" in file.read_bytes()
        await trio.sleep(6)
        assert b":40" in file.read_bytes()


async def test_progress_is_known_before_anything_is_subscribed_to(
    autojump_clock: MockClock, cluster: FakeCluster, machine: Machine
) -> None:
    async with machine.lite() as consumer:
        assert await consumer.committed(QUEUE) is None
        await consumer.assign([QUEUE])
        await consumer.commit({QUEUE: 5})
    async with machine.lite() as consumer:
        assert await consumer.committed(QUEUE) == 5


async def test_commit_raises_on_unwritable_file_and_leave_retries(
    autojump_clock: MockClock, cluster: FakeCluster, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 3)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with machine.lite() as consumer:
        await consumer.assign([QUEUE])
        await poll_all(consumer)
        with monkeypatch.context() as patch:
            patch.setattr(OffsetsFile, "save", full)
            with pytest.raises(ClientError, match=r"offsets.json not stored.*No space"):
                await consumer.commit()
    assert machine.offsets() == {QUEUE: 3}


async def test_a_seek_outside_the_queue_fails(cluster: FakeCluster) -> None:
    """C.2 scenario 68."""
    fill(cluster, 5)
    cluster.min_offsets[QUEUE] = 100
    async with assigned(cluster.instance) as consumer:
        for wrong in (-1, 99, 106):
            with pytest.raises(ConfigError, match="not within 100 and 105"):
                await consumer.seek(QUEUE, wrong)
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.seek(MessageQueue("T", "broker-a", 7), 0)
        for right in (100, 105):
            await consumer.seek(QUEUE, right)


async def test_seek_discards_cached_messages_and_resumes_there(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    for number in range(100):
        cluster.send(QUEUE, b"x", store_timestamp=1000 + number // 10)
    async with assigned(cluster.instance, auto_commit=False) as consumer:
        await wait_all_tasks_blocked()
        await consumer.seek(QUEUE, 90)
        assert consumer.position(QUEUE) == 90
        assert await poll_all(consumer) == list(range(90, 100))
        await consumer.seek_to_begin(QUEUE)
        assert await poll_all(consumer) == list(range(100))
        await consumer.seek_to_timestamp(QUEUE, 1007)
        assert await poll_all(consumer) == list(range(70, 100))
        await consumer.seek_to_begin(QUEUE)
        await consumer.seek_to_end(QUEUE)
        assert await poll_all(consumer) == []
        cluster.send(QUEUE, b"new")
        assert offsets_of(await consumer.poll(1)) == [100]
    assert not cluster.committed


async def test_unpolled_message_is_never_committed(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    """C.2 scenario 68."""
    fill(cluster, 70)
    async with assigned(cluster.instance) as consumer:
        await trio.sleep(60)
        assert cluster.committed.get((G, QUEUE), 0) == 0
        await consumer.poll()  # commits what earlier polls returned: nothing
        await trio.sleep(4)
        await consumer.poll()  # too early for another commit
        await trio.sleep(0.6)
        assert cluster.committed[G, QUEUE] == 0
        await trio.sleep(1)
        await consumer.poll()
        await trio.sleep(0.6)
        assert cluster.committed[G, QUEUE] == 64
        await trio.sleep(60)
    assert cluster.committed[G, QUEUE] == 64
    async with assigned(cluster.instance) as consumer:
        assert offsets_of(await consumer.poll()) == list(range(64, 70))


async def test_without_auto_commit_only_a_commit_commits(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    fill(cluster, 40)
    async with assigned(cluster.instance, auto_commit=False) as consumer:
        await consumer.poll()
        await trio.sleep(60)
        assert await consumer.committed(QUEUE) is None
        await consumer.commit()
        assert cluster.committed[G, QUEUE] == 32 == await consumer.committed(QUEUE)
        await consumer.poll()
        await trio.sleep(60)
        await consumer.commit({QUEUE: 35})
        assert cluster.committed[G, QUEUE] == 35
        consumer.commit_nowait([QUEUE])
        assert await consumer.committed(QUEUE) == 40
        assert cluster.committed[G, QUEUE] == 35
        await trio.sleep(0.6)
        assert cluster.committed[G, QUEUE] == 40
        with pytest.raises(ConfigError, match="negative"):
            await consumer.commit({QUEUE: -1})
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.commit([MessageQueue("T", "broker-a", 9)])
        consumer.commit_nowait({QUEUE: 3})
    assert cluster.committed[G, QUEUE] == 3


async def test_queue_that_lost_its_end_drops_the_cache(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    fill(cluster, 40)
    async with assigned(cluster.instance) as consumer:
        await wait_all_tasks_blocked()
        del cluster.records[QUEUE][30:]
        cluster.send(QUEUE, b"new")
        await wait_all_tasks_blocked()
        assert consumer.position(QUEUE) == 31


async def test_other_tags_do_not_hold_the_position(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    fill(cluster, 50)
    async with assigned(cluster.instance, expressions={"T": "A"}) as consumer:
        await trio.sleep(1)
        assert await consumer.poll(0) == []
        assert consumer.position(QUEUE) == 50
        await trio.sleep(6)
        await consumer.poll(0)
        await trio.sleep(1)
    assert cluster.committed[G, QUEUE] == 50
