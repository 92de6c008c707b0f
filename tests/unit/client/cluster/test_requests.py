from collections.abc import AsyncGenerator

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from tests.unit.client.fake_consumer import FakeConsumer
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.client.producer.producer import Producer
from triomq.protocol.codes import RequestCode, SerializeType
from triomq.protocol.errors import NameServerError
from triomq.protocol.record.message import Message
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import agreed_format, first_format, offer


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
