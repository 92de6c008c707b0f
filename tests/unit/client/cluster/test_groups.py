import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from tests.unit.client.fake_consumer import FakeConsumer
from triomq.client.cluster.instance import ClientInstance
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ClientError


async def test_slaves_get_heartbeats_of_consumers_only(fake_broker: FakeBroker, make_broker: BrokerFactory) -> None:
    slave = await make_broker("broker-a")
    fake_broker.routes["Topic"].broker_datas[0].broker_addrs[1] = slave.address
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        instance.groups.add_producer("producers")
        await instance.groups.beat()
        assert not slave.heartbeats()
        assert instance.brokers.find("broker-a", 1) == slave.address
        instance.groups.add_consumer("group", FakeConsumer("Topic"))
        await instance.groups.beat()
        assert slave.heartbeats()


async def test_two_consecutive_missed_heartbeats_log_a_warning(
    fake_broker: FakeBroker, make_broker: BrokerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await make_broker("broker-b")
    broker.add_topic("Topic")
    fake_broker.routes = broker.routes
    await broker.stop()
    async with ClientInstance(fake_broker.address) as instance:
        instance.groups.add_producer("producers")
        await wait_all_tasks_blocked()
        await instance.routes.topic_route("Topic")
        await wait_all_tasks_blocked()
        assert "heartbeat failed" not in caplog.text
        for _ in range(3):
            await instance.groups.beat()
        assert caplog.text.count(f"heartbeat failed broker={broker.address}") == 1

        await broker.restart()
        await instance.groups.beat()
        await broker.stop()
        await wait_all_tasks_blocked()
        await instance.groups.beat()
        assert caplog.text.count("heartbeat failed") == 1


async def test_leaving_unregisters_each_group_once(fake_broker: FakeBroker) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        instance.groups.add_producer("producers")
        instance.groups.add_producer("producers")
        instance.groups.add_consumer("group", FakeConsumer("Topic"))
        await instance.groups.beat()
        await instance.groups.remove_producer("producers")
        assert not fake_broker.of(RequestCode.UNREGISTER_CLIENT)
        with trio.CancelScope() as scope:
            scope.cancel()
            await instance.groups.remove_producer("producers")
            await instance.groups.remove_consumer("group")
        await instance.groups.remove_consumer("group")
        fields = [request.ext_fields for request in fake_broker.of(RequestCode.UNREGISTER_CLIENT)]
        assert fields == [
            {"clientID": instance.client_id, "producerGroup": "producers"},
            {"clientID": instance.client_id, "consumerGroup": "group"},
        ]


async def test_silent_broker_delays_leaving_by_one_second(fake_broker: FakeBroker, autojump_clock: MockClock) -> None:
    fake_broker.on(RequestCode.UNREGISTER_CLIENT, lambda _command: None)
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        instance.groups.add_producer("producers")
        await instance.groups.beat()
        start = trio.current_time()
        await instance.groups.remove_producer("producers")
    assert trio.current_time() - start == pytest.approx(1.0)


async def test_a_consumer_group_is_on_an_instance_once(fake_broker: FakeBroker) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        instance.groups.add_consumer("group", FakeConsumer())
        with pytest.raises(ClientError, match="'group' is on this instance already"):
            instance.groups.add_consumer("group", FakeConsumer())


async def test_broker_fails_until_it_answers_a_heartbeat(
    fake_broker: FakeBroker, make_broker: BrokerFactory, autojump_clock: MockClock
) -> None:
    broker, gone = await make_broker("broker-b"), await make_broker("broker-c")
    fake_broker.add_topic("Topic", 4, 6, broker, gone)
    async with ClientInstance(fake_broker.address) as instance:
        groups = instance.groups
        await instance.routes.topic_route("Topic")
        broker.fail(RequestCode.HEART_BEAT, ResponseCode.SYSTEM_ERROR)  # a refusal is an answer
        fake_broker.on(RequestCode.HEART_BEAT, lambda _command: None)
        await gone.stop()
        for _ in range(3):
            for one in (fake_broker, broker, gone):
                groups.send_failed(one.address)
        assert groups.failing == {fake_broker.address, broker.address, gone.address}
        await trio.sleep(10.5)
        assert groups.failing == {fake_broker.address, gone.address}
        assert len(fake_broker.heartbeats()) <= 5  # each waits 3 s for its answer

        fake_broker.on(RequestCode.HEART_BEAT, lambda command: command.reply())
        await trio.sleep(4)
        assert groups.failing == {gone.address}
        fake_broker.add_topic("Topic", 4, 6, broker)
        await instance.routes.topic_route("Topic", refresh=True)
        await trio.sleep(2)
        assert not groups.failing
