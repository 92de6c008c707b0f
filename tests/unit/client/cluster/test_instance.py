from collections.abc import AsyncGenerator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from tests.unit.client.fake_consumer import FakeConsumer
from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.config import ClientConfig
from triomq.client.producer.producer import Producer
from triomq.protocol.codes import RequestCode, ResponseCode, SerializeType
from triomq.protocol.errors import ClientClosedError, ClientError, ConfigError, ConnectionLostError, NameServerError
from triomq.protocol.record.message import Message
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import agreed_format, first_format, offer
from triomq.protocol.wire.signing import ACCESS_KEY, SIGNATURE, Credentials

ALONE = ClientConfig(connect=False)


async def test_opaques_start_again_after_the_largest_int32() -> None:
    instance = ClientInstance("127.0.0.1:1")
    instance.requests._opaques = iter(range(2**31 - 1, 2**31 + 1))  # type: ignore[assignment]  # any counter
    assert [instance.requests.next_opaque(), instance.requests.next_opaque()] == [2**31 - 1, 0]


async def test_close_fails_pending_requests_and_rejects_new_ones(fake_broker: FakeBroker) -> None:
    fake_broker.on(RequestCode.HEART_BEAT, lambda _command: None)

    async def ask() -> None:
        with pytest.raises(ConnectionLostError):
            await closed.requests.ask(fake_broker.address, RequestCode.HEART_BEAT)

    async with trio.open_nursery() as nursery:
        async with ClientInstance(fake_broker.address) as closed:
            nursery.start_soon(ask)
            await fake_broker.wait_for(RequestCode.HEART_BEAT)
    command = closed.requests.command(RequestCode.HEART_BEAT)
    for attempt in (closed.requests.invoke, closed.requests.oneway):
        with pytest.raises(ClientClosedError, match="is closed"):
            await attempt(fake_broker.address, command)
    with pytest.raises(ClientClosedError, match="is closed"):
        await closed.routes.topic_route("Topic")
    with pytest.raises(ClientError, match="entered once only"):
        async with closed:
            pass


async def test_an_instance_is_borrowed_or_made() -> None:
    async with ClientInstance("127.0.0.1:1", ALONE) as given, use_instance(None, None, given) as borrowed:
        assert borrowed is given
    async with use_instance("127.0.0.1:1", ALONE, None) as own:
        assert own.client_id
    for namesrv, config, instance in ((None, None, None), ("a:1", None, own), (None, ClientConfig(), own)):
        with pytest.raises(ConfigError):
            async with use_instance(namesrv, config, instance):
                pass


async def test_client_ip_without_network_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("triomq.client.cluster.instance.socket.socket", fail)
    async with ClientInstance("127.0.0.1:1", ALONE) as instance:
        assert instance.client_id.startswith("127.0.0.1@")


async def test_name_server_defaults_to_the_environment(
    fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOMQ_NAMESRV", fake_broker.address)
    async with use_instance(None, None, None) as instance:
        assert instance.requests.name_servers.addresses == (fake_broker.address,)
    assert ClientInstance().requests.name_servers.addresses == (fake_broker.address,)
    monkeypatch.delenv("TRIOMQ_NAMESRV")
    with pytest.raises(ConfigError, match=r"no name server given; pass namesrv=.* or set TRIOMQ_NAMESRV"):
        ClientInstance()


async def test_failover_name_server_is_kept_after_it_answers(
    fake_broker: FakeBroker, make_broker: BrokerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    other = await make_broker("broker-b")
    other.add_topic("Topic")
    async with ClientInstance([fake_broker.address, other.address]) as instance:
        assert (await instance.routes.topic_route("Topic")).broker_datas[0].broker_name == "broker-a"
        await fake_broker.stop()

        assert (await instance.routes.topic_route("Topic", refresh=True)).broker_datas[0].broker_name == "broker-b"
        await fake_broker.restart()
        assert (await instance.routes.topic_route("Topic", refresh=True)).broker_datas[0].broker_name == "broker-b"
        assert instance.requests.name_servers.current == other.address
    assert "name server failed" in caplog.text


async def test_unreachable_name_servers_are_each_named_with_reason(
    fake_broker: FakeBroker, make_broker: BrokerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    other = await make_broker("broker-b")
    await other.stop()
    fake_broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _command: None)
    config = ClientConfig(api_timeout_s=0.05)
    async with ClientInstance(f"{fake_broker.address};{other.address}", config) as instance:
        with pytest.raises(NameServerError) as caught:
            await instance.routes.topic_route("Topic")
    assert f"no answer from {fake_broker.address} in time" in str(caught.value)
    assert f"cannot connect to {other.address}: Connection refused; it was given as name server" in str(caught.value)
    assert caplog.text.count("name server failed") == 1  # the last one's failure is the error


JSON, ROCKETMQ, MSGPACK = SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK
ANNOUNCEMENT = {"triomqHeaderFormats": "msgpack"}
HEART_BEAT, SEND, ASK = RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2, RequestCode.GET_MAX_OFFSET


def announce(command: RemotingCommand) -> RemotingCommand:
    """Answer a heartbeat as triomq's broker does."""
    return command.reply(ext_fields=ANNOUNCEMENT if command.ext_fields == ANNOUNCEMENT else {})


def formats(broker: FakeBroker, *codes: int) -> list[int]:
    """The header formats of a broker's requests in order, of all requests or of some codes."""
    return [request.serialize_type for request in broker.requests if not codes or request.code in codes]


@pytest.fixture
async def broker(fake_broker: FakeBroker, make_broker: BrokerFactory) -> FakeBroker:
    """A broker apart from its name server, as they are in truth; it knows nothing of msgpack."""
    made = await make_broker("broker-b")
    made.add_topic("Topic")
    made.on(ASK, lambda command: command.reply())
    fake_broker.routes = made.routes
    return made


@pytest.fixture
async def instance(fake_broker: FakeBroker, broker: FakeBroker) -> AsyncGenerator[ClientInstance, None]:
    """An instance that wants msgpack and has not yet met the broker."""
    async with ClientInstance(fake_broker.address, ClientConfig(header_format=MSGPACK)) as made:
        await made.routes.topic_route("Topic")
        yield made


async def ask(instance: ClientInstance, broker: FakeBroker) -> int:
    """Ask something of the broker; return the format it was asked in."""
    await instance.requests.ask(broker.address, ASK)
    return formats(broker, ASK)[-1]


async def test_with_the_connection_what_was_announced_is_forgotten(
    instance: ClientInstance, broker: FakeBroker
) -> None:
    broker.on(HEART_BEAT, announce)
    instance.groups.add_consumer("group", FakeConsumer("Topic"))
    await instance.groups.beat()
    await wait_all_tasks_blocked()
    assert await ask(instance, broker) == MSGPACK

    broker.on(HEART_BEAT, lambda command: command.reply())  # an Apache broker takes its place
    await broker.drop()
    await wait_all_tasks_blocked()
    before = len(broker.requests)
    for _ in range(2):
        assert await ask(instance, broker) == JSON
        await instance.groups.beat()
    assert set(formats(broker)[before:]) == {JSON}

    broker.on(HEART_BEAT, announce)
    await broker.drop()
    await wait_all_tasks_blocked()
    assert await ask(instance, broker) == JSON
    await wait_all_tasks_blocked()  # the heartbeat that follows a new connection
    assert await ask(instance, broker) == MSGPACK


async def test_name_server_that_is_a_broker_gets_json(fake_broker: FakeBroker) -> None:
    fake_broker.on(HEART_BEAT, announce)
    config = ClientConfig(header_format=MSGPACK)
    async with (
        ClientInstance(fake_broker.address, config) as instance,
        Producer("group", instance=instance) as producer,
    ):
        await producer.send(Message("Topic", b"x"))
        await instance.groups.beat()
        await producer.send(Message("Topic", b"x"))
        await instance.routes.topic_route("Topic", refresh=True)
    assert set(formats(fake_broker)) == {JSON}


@pytest.mark.parametrize("wanted", list(SerializeType))
@pytest.mark.parametrize("answered", ["", "msgpack", "cbor,msgpack", "msgpack2", "MSGPACK"])
def test_msgpack_needs_both_client_wish_and_broker_support(wanted: SerializeType, answered: str) -> None:
    agreed = agreed_format(wanted, {"triomqHeaderFormats": answered})
    assert (agreed == MSGPACK) == (wanted is MSGPACK and "msgpack" in answered.split(","))
    assert agreed in (wanted, first_format(wanted))
    assert first_format(wanted) != MSGPACK
    assert bool(offer(wanted)) == (wanted is MSGPACK)


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


async def test_signature_for_one_server_reaches_no_other(fake_broker: FakeBroker, make_broker: BrokerFactory) -> None:
    other = await make_broker("broker-b")
    other.add_topic("Topic")

    async def refuse_and_leave(command: RemotingCommand) -> RemotingCommand | None:
        if SIGNATURE not in command.ext_fields:
            return command.reply(ResponseCode.NO_PERMISSION, remark="username cannot be null.")  # Apache's, 5.x
        await fake_broker.stop()
        return None

    fake_broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, refuse_and_leave)
    config = ClientConfig(connect=False, credentials=Credentials("operator", "secret-of-operator"))
    async with ClientInstance([fake_broker.address, other.address], config) as instance:
        await instance.routes.topic_route("Topic")
    signed = [SIGNATURE in request.ext_fields for request in fake_broker.requests]
    assert signed == [False, True]
    assert not [request for request in other.requests if {ACCESS_KEY, SIGNATURE} & request.ext_fields.keys()]
