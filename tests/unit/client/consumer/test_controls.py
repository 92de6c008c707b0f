"""Subscribing, suspending and resizing of running push consumers."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE, Inbox, consumer
from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance
from triomq.client.consumer.push import PushConsumer
from triomq.protocol.bodies.client import ConsumerRunningInfo
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ConfigError, IllegalNameError, SubscriptionParseError
from triomq.protocol.wire.command import RemotingCommand


def topics(push: PushConsumer) -> list[str]:
    return sorted({queue.topic for queue in push.statistics().queues} - {"%RETRY%G"})


def subscribed(cluster: FakeCluster) -> dict[str, str]:
    """What the newest heartbeat says."""
    (data,) = cluster.heartbeats[-1].consumer_data_set
    return {one.topic: one.sub_string for one in data.subscription_data_set if one.topic != "%RETRY%G"}


async def test_changed_expression_applies_even_to_a_held_pull(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    inbox = Inbox()
    async with consumer(inbox, cluster.instance, subscriptions={"T": "A"}) as push:
        await push.wait_assigned()
        await wait_all_tasks_blocked()
        pulls = [pull for pull in cluster.of(RequestCode.PULL_MESSAGE) if pull.ext_fields["topic"] == "T"]
        await push.subscribe("T", "B")
        await wait_all_tasks_blocked()
        again = [pull for pull in cluster.of(RequestCode.PULL_MESSAGE) if pull.ext_fields["topic"] == "T"]
        assert (len(pulls), len(again)) == (1, 2)
        assert int(again[1].ext_fields["subVersion"]) > int(again[0].ext_fields["subVersion"])
        assert subscribed(cluster) == {"T": "B"}
        for tag in ("A", "B"):
            cluster.send(QUEUE, b"x", properties={"TAGS": tag})
        await wait_all_tasks_blocked()
        assert inbox.ended == [1]
        assert trio.current_time() == 0


@pytest.mark.parametrize("orderly", [False, True])
async def test_unsubscribed_topic_is_released_with_offsets_stored(
    autojump_clock: MockClock, cluster: FakeCluster, orderly: bool
) -> None:
    """C.4 row 19."""
    (second,) = cluster.add_topic("U")
    cluster.send(second, b"x", b"y")
    inbox = Inbox()
    async with consumer(inbox, cluster.instance, subscriptions={"T": "*", "U": "*"}, orderly=orderly) as push:
        await push.wait_assigned()
        await wait_all_tasks_blocked()
        await push.unsubscribe("U")
        await trio.sleep(0.1)
        assert (topics(push), subscribed(cluster)) == (["T"], {"T": "*"})
        assert cluster.committed["G", second] == 2
        assert ("G", second) not in cluster.locks
        cluster.send(second, b"z")
        cluster.send(QUEUE, b"x")
        await trio.sleep(60)
        assert inbox.ended == [0, 1, 0]


async def test_topic_can_be_unsubscribed_during_assignment(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.add_topic("U")
    inside = trio.Event()

    async with consumer(Inbox(), cluster.instance) as push:
        await push.wait_assigned()

        async def answer_late(command: RemotingCommand) -> RemotingCommand:
            inside.set()
            await trio.sleep(2)
            return command.reply(ext_fields={"offset": "0"})

        cluster.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = answer_late
        async with trio.open_nursery() as nursery:
            nursery.start_soon(push.subscribe, "U")
            await inside.wait()
            nursery.start_soon(push.unsubscribe, "U")
        assert topics(push) == ["T"]


async def test_impossible_subscriptions_change_nothing(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    async with consumer(Inbox(), cluster.instance) as push:
        with pytest.raises(IllegalNameError):
            await push.subscribe("a b")
        with pytest.raises(SubscriptionParseError):
            await push.subscribe("T", "||")
        with pytest.raises(ConfigError, match="consumed anyway"):
            await push.subscribe("%RETRY%G")
        for name in ("U", "%RETRY%G"):
            with pytest.raises(ConfigError, match="is not subscribed"):
                await push.unsubscribe(name)
        await cluster.instances[0].beat()
        assert subscribed(cluster) == {"T": "*"}


async def test_suspended_consumer_pulls_nothing_but_handles_cached(
    autojump_clock: MockClock, cluster: FakeCluster
) -> None:
    inbox = Inbox(busy_s=1)
    cluster.send(QUEUE, b"0", b"1")
    async with consumer(inbox, cluster.instance, max_concurrency=1) as push:
        await trio.sleep(0.5)
        push.suspend()
        await wait_all_tasks_blocked()
        pulls = len(cluster.of(RequestCode.PULL_MESSAGE))
        cluster.send(QUEUE, b"2")
        await trio.sleep(300)  # longer than a pull may be idle
        assert (push.statistics().is_suspended, inbox.ended) == (True, [0, 1])
        assert len(cluster.of(RequestCode.PULL_MESSAGE)) == pulls
        assert push.statistics().queues[QUEUE].waiting_for == "the consumer is suspended"
        assert cluster.committed["G", QUEUE] == 2
        push.resume()
        await wait_all_tasks_blocked()
        assert (push.statistics().is_suspended, inbox.begun) == (False, [0, 1, 2])  # at once


async def test_suspended_consumer_does_not_rebalance_until_resumed(
    autojump_clock: MockClock, cluster: FakeCluster
) -> None:
    cluster.add_topic("T", 4)
    first, second = (as_instance(FakeInstance(cluster, name)) for name in "ab")
    async with consumer(Inbox(), first) as one:
        await one.wait_assigned()
        one.suspend()
        async with consumer(Inbox(), second) as two:
            await two.wait_assigned()
            await trio.sleep(55)  # no round is due when it resumes
            held = len([queue for queue in one.statistics().queues if queue.topic == "T"])
            one.resume()
            await wait_all_tasks_blocked()
            shared = len([queue for queue in one.statistics().queues if queue.topic == "T"])
    assert (held, shared) == (4, 2)


async def test_suspended_consumer_keeps_offset_of_new_member(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    inbox = Inbox()
    cluster.send(QUEUE, b"0", b"1")
    async with consumer(inbox, cluster.instance) as push:
        await trio.sleep(1)
        push.suspend()
        cluster.committed["G", QUEUE] = 7
        await trio.sleep(60)
        assert cluster.committed["G", QUEUE] == 7
    assert cluster.committed["G", QUEUE] == 7


async def test_more_handlers_run_at_once_after_resizing(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.send(QUEUE, *[b"x"] * 20)
    async with consumer(Inbox(busy_s=10), cluster.instance, max_concurrency=2, grace_s=0) as push:
        await trio.sleep(1)
        push.resize(7)
        await trio.sleep(1)
        assert push.statistics().in_flight == 7
        info = ConsumerRunningInfo.decode(cluster.instances[0].consumers["G"].running_info())
        assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "7"
        for number in (0, 1_001):
            with pytest.raises(ConfigError, match="within 1 and 1000"):
                push.resize(number)


async def test_pending_change_does_not_hang_when_consumer_ends(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    async def never(_command: RemotingCommand) -> RemotingCommand:
        return await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with consumer(Inbox(), cluster.instance) as push:
            await push.wait_assigned()
            cluster.handlers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = never
            nursery.start_soon(push.unsubscribe, "T")
            await trio.sleep(1)
            assert len(nursery.child_tasks) == 1
    assert trio.current_time() < 30
