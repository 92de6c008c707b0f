import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from tests.unit.client.fake_consumer import FakeConsumer, until
from triomq.client.admin.admin import Admin
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.client.consumer.pull import PullConsumer
from triomq.protocol.bodies.route import ClusterInfo
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConnectError, NoBrokerError, NoRouteError
from triomq.protocol.message_queue import MessageQueue


async def test_missing_route_names_servers_topics_and_command(fake_broker: FakeBroker) -> None:
    fake_broker.add_topic("Orders")
    fake_broker.add_topic("%RETRY%Order")
    async with ClientInstance(fake_broker.address) as instance:
        assert await instance.routes.find("Order") is None
        with pytest.raises(NoRouteError) as caught:
            await instance.routes.topic_route("Order")
        text = str(caught.value)
        assert f"name server asked: {fake_broker.address}" in text
        assert "similar topics: Orders;" in text
        assert "automatic creation seems off" in text
        assert "triomq topic create Order" in text

        fake_broker.add_topic("TBW102", 8, 7)
        with pytest.raises(NoRouteError, match="automatic creation is on: the first send creates the topic"):
            await instance.routes.topic_route("Order")


async def test_missing_route_is_explained_as_far_as_known(fake_broker: FakeBroker) -> None:
    fake_broker.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.reply(body=ClusterInfo().encode()))
    async with ClientInstance(fake_broker.address) as instance:
        text = f"'Order' has no route: no broker is registered .name server asked: {fake_broker.address}"
        with pytest.raises(NoBrokerError, match=text):
            await instance.routes.topic_route("Order")
        fake_broker.fail(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, ResponseCode.SYSTEM_ERROR)
        with pytest.raises(NoRouteError, match=r"^topic 'Order' does not exist: it has no route [^;]*; create it with"):
            await instance.routes.topic_route("Order")


async def test_used_routes_are_polled_and_changes_reported(fake_broker: FakeBroker) -> None:
    consumer = FakeConsumer("Topic", "%RETRY%group")
    async with ClientInstance(fake_broker.address, ClientConfig(poll_namesrv_interval_s=0.01)) as instance:
        instance.groups.add_consumer("group", consumer)
        await instance.routes.topic_route("Topic")
        fake_broker.add_topic("Topic", 8)
        fake_broker.add_topic("%RETRY%group", 1)
        await until(lambda: len(consumer.calls) >= 3)
        assert set(consumer.calls) == {("route", "Topic"), ("route", "%RETRY%group")}
        assert len(instance.routes.known_subscribe_queues("Topic")) == 8


async def test_moved_broker_uses_most_recently_learned_address(
    fake_broker: FakeBroker, make_broker: BrokerFactory
) -> None:
    """The route of "Other" is not polled, and still has the old address."""
    fake_broker.add_topic("Other")
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        await instance.routes.topic_route("Other")
        moved = await make_broker(fake_broker.name)
        moved.add_topic("Topic")
        fake_broker.routes = moved.routes
        await instance.routes.topic_route("Topic", refresh=True)
        assert instance.brokers.find(moved.name) == moved.address


async def test_newest_answer_decides_whether_master_is_away(fake_broker: FakeBroker) -> None:
    """Of two topics only one is asked for at a time."""
    fake_broker.add_topic("Other")
    async with ClientInstance(fake_broker.address) as instance:
        for addresses, topic in (
            ({0: "m:1", 1: "s:1"}, "Topic"),
            ({0: "m:1", 1: "s:1"}, "Other"),
            ({1: "s:1"}, "Topic"),
            ({0: "m:1", 1: "s:1"}, "Other"),
            ({0: "m:1", 1: "s:1"}, "Topic"),
            ({1: "s:1"}, "Other"),
            ({0: "m:1", 1: "s:1"}, "Topic"),
        ):
            fake_broker.routes[topic].broker_datas[0].broker_addrs = addresses
            await instance.routes.topic_route(topic, refresh=True)
            assert instance.brokers.find(fake_broker.name) == addresses.get(0, "s:1")


async def test_consumer_without_subscription_finds_moved_broker(
    fake_broker: FakeBroker, make_broker: BrokerFactory
) -> None:
    queue = MessageQueue("Topic", fake_broker.name, 0)
    name_server = await make_broker("name-server")
    name_server.routes = fake_broker.routes
    async with (
        ClientInstance(name_server.address) as instance,
        PullConsumer("group", instance=instance) as consumer,
        Admin(instance=instance) as admin,
    ):
        await consumer.queues("Topic")
        await fake_broker.stop()
        moved = await make_broker(fake_broker.name)
        moved.on(RequestCode.GET_MAX_OFFSET, lambda command: command.reply(ext_fields={"offset": "7"}))
        moved.add_topic("Topic")
        name_server.routes = moved.routes
        with pytest.raises(ConnectError):
            await consumer.max_offset(queue)
        await wait_all_tasks_blocked(0.05)
        assert await consumer.max_offset(queue) == 7
        await moved.stop()
        again = await make_broker(fake_broker.name)
        again.on(RequestCode.GET_MAX_OFFSET, lambda command: command.reply(ext_fields={"offset": "8"}))
        again.add_topic("Topic")
        name_server.routes = again.routes
        assert await admin.max_offset(queue) == 8


async def test_unreachable_broker_changes_no_polled_route(fake_broker: FakeBroker) -> None:
    """It may be back in a moment, and its queues shall not change hands for that."""
    async with ClientInstance(fake_broker.address) as instance:
        instance.groups.add_consumer("group", FakeConsumer("Topic"))
        await instance.routes.topic_route("Topic")
        instance.routes.refresh_unpolled("Topic")
        await wait_all_tasks_blocked(0.05)
    assert len(fake_broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1


async def test_polling_continues_after_logged_failure(
    fake_broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = ClientConfig(poll_namesrv_interval_s=0.01)
    async with ClientInstance(fake_broker.address, config) as instance:
        await instance.routes.publish("Topic")
        fake_broker.fail(RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.SYSTEM_ERROR, "no", times=2)
        await fake_broker.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, 5)
        await fake_broker.stop()
        await until(lambda: "routes not updated" in caplog.text)
        await fake_broker.restart()
        await fake_broker.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, 8)
    assert caplog.text.count("route not updated topic=Topic") == 2


async def test_route_changes_without_queue_change_are_not_announced(fake_broker: FakeBroker) -> None:
    consumer = FakeConsumer("Topic")
    fake_broker.add_topic("Unused")
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        instance.groups.add_consumer("group", consumer)
        fake_broker.routes["Topic"].broker_datas[0].broker_addrs[1] = "127.0.0.1:1"
        assert len((await instance.routes.topic_route("Topic", refresh=True)).broker_datas[0].broker_addrs) == 2
        await instance.routes.topic_route("Unused")
        assert consumer.calls == []


async def test_failures_ask_for_a_route_once_a_second(fake_broker: FakeBroker, autojump_clock: MockClock) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.publish("Topic")
        for _ in range(1000):
            instance.routes.refresh("Topic")
            await trio.sleep(0.01)
    assert 10 <= len(fake_broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) - 1 <= 13


@pytest.mark.parametrize("is_all_gone", [False, True])
async def test_incomplete_route_is_polled_every_3_s(
    fake_broker: FakeBroker, make_broker: BrokerFactory, autojump_clock: MockClock, is_all_gone: bool
) -> None:
    other = await make_broker("broker-b")
    fake_broker.add_topic("Topic", 4, 6, other)
    fake_broker.add_topic("Steady")
    before = fake_broker.routes["Topic"]

    async def asked_for(topic: str, seconds: float) -> int:
        fake_broker.requests.clear()
        await trio.sleep(seconds)
        asked = fake_broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        return sum(command.ext_fields["topic"] == topic for command in asked)

    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.publish("Topic")
        await instance.routes.publish("Steady")
        assert await asked_for("Topic", 305) in {10, 11}
        if is_all_gone:
            del fake_broker.routes["Topic"]
        else:
            fake_broker.add_topic("Topic")
        assert 10 <= await asked_for("Topic", 60) <= 20
        assert await asked_for("Steady", 60) in {1, 2, 3}
        assert await asked_for("Topic", 3.5) == 1
        fake_broker.routes["Topic"] = before
        await trio.sleep(3.5)
        assert instance.routes.known("Topic") == before
        assert await asked_for("Topic", 305) in {10, 11}

        fake_broker.add_topic("Topic")  # for good
        await trio.sleep(700)
        assert await asked_for("Topic", 305) in {10, 11}
