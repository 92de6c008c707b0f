from collections.abc import AsyncGenerator, Mapping

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from tests.unit.client.fake_consumer import FakeConsumer
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.client.producer.producer import Producer
from triomq.protocol.codes import RequestCode, ResponseCode, SerializeType
from triomq.protocol.record.message import Message
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import agreed_format, first_format, offer

JSON, ROCKETMQ, MSGPACK = SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK
ANNOUNCEMENT = {"triomqHeaderFormats": "msgpack"}
HEART_BEAT, SEND, ASK = RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2, RequestCode.GET_MAX_OFFSET


def announce(command: RemotingCommand) -> RemotingCommand:
    """Answer a heartbeat as triomq's broker does."""
    return command.reply(ext_fields=ANNOUNCEMENT if command.ext_fields == ANNOUNCEMENT else {})


def formats(broker: FakeBroker, *codes: int) -> list[int]:
    """The header formats of what a broker got, in order, of all requests or of some codes."""
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


async def test_a_broker_that_announced_msgpack_gets_it_from_then_on(
    instance: ClientInstance, broker: FakeBroker, fake_broker: FakeBroker
) -> None:
    broker.on(HEART_BEAT, announce)
    assert await ask(instance, broker) == JSON
    instance.groups.add_consumer("group", FakeConsumer("Topic"))
    await instance.groups.beat()
    await wait_all_tasks_blocked()
    assert await ask(instance, broker) == MSGPACK
    await instance.groups.beat()
    await instance.requests.oneway(broker.address, instance.requests.command(RequestCode.UPDATE_CONSUMER_OFFSET))
    await broker.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET)

    beats = broker.of(HEART_BEAT)
    assert {tuple(beat.ext_fields.items()) for beat in beats} == {tuple(ANNOUNCEMENT.items())}
    assert (beats[0].serialize_type, beats[-1].serialize_type) == (JSON, MSGPACK)
    assert formats(broker, RequestCode.UPDATE_CONSUMER_OFFSET) == [MSGPACK]
    await instance.routes.topic_route("Topic", refresh=True)
    assert set(formats(fake_broker)) == {JSON}


async def test_a_producer_changes_over_with_the_broker(
    instance: ClientInstance, broker: FakeBroker, fake_broker: FakeBroker
) -> None:
    broker.on(HEART_BEAT, lambda _command: None)
    async with Producer("group", instance=instance) as producer:
        await producer.send(Message("Topic", b"x"))
        broker.on(HEART_BEAT, announce)
        await instance.groups.beat()
        await producer.send(Message("Topic", b"x"))
    assert formats(broker, SEND) == [JSON, MSGPACK]
    assert formats(broker, RequestCode.UNREGISTER_CLIENT) == [MSGPACK]
    assert set(formats(fake_broker)) == {JSON}


@pytest.mark.parametrize("fields", [{}, {"triomqHeaderFormats": ""}, {"triomqHeaderFormats": "cbor"}])
async def test_a_broker_that_announced_nothing_never_gets_msgpack(
    instance: ClientInstance, broker: FakeBroker, fields: Mapping[str, str]
) -> None:
    broker.on(HEART_BEAT, lambda command: command.reply(ext_fields=fields))
    async with Producer("group", instance=instance) as producer:
        for _ in range(3):
            await instance.groups.beat()
            await producer.send(Message("Topic", b"x"))
            await ask(instance, broker)
    assert set(formats(broker)) == {JSON}


async def test_rejected_heartbeat_announces_no_header_format(instance: ClientInstance, broker: FakeBroker) -> None:
    broker.on(HEART_BEAT, lambda command: command.reply(ResponseCode.SYSTEM_ERROR, ANNOUNCEMENT, remark="no"))
    instance.groups.add_consumer("group", FakeConsumer("Topic"))
    await instance.groups.beat()
    assert await ask(instance, broker) == JSON


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


async def test_a_name_server_gets_json_even_where_it_is_a_broker_too(fake_broker: FakeBroker) -> None:
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


@pytest.mark.parametrize("wanted", [JSON, ROCKETMQ])
async def test_rocketmq_formats_apply_immediately_and_unannounced(
    fake_broker: FakeBroker, broker: FakeBroker, wanted: SerializeType
) -> None:
    broker.on(HEART_BEAT, lambda command: command.reply(ext_fields=ANNOUNCEMENT))
    config = ClientConfig(header_format=wanted)
    async with (
        ClientInstance(fake_broker.address, config) as instance,
        Producer("group", instance=instance) as producer,
    ):
        await producer.send(Message("Topic", b"x"))
        await instance.groups.beat()
        await producer.send(Message("Topic", b"x"))
    assert set(formats(fake_broker)) == set(formats(broker)) == {wanted}
    assert [beat.ext_fields for beat in broker.of(HEART_BEAT)] == [{}] * len(broker.of(HEART_BEAT))


@pytest.mark.parametrize("wanted", list(SerializeType))
@pytest.mark.parametrize("answered", ["", "msgpack", "cbor,msgpack", "msgpack2", "MSGPACK"])
def test_msgpack_needs_both_client_wish_and_broker_support(wanted: SerializeType, answered: str) -> None:
    agreed = agreed_format(wanted, {"triomqHeaderFormats": answered})
    assert (agreed == MSGPACK) == (wanted is MSGPACK and "msgpack" in answered.split(","))
    assert agreed in (wanted, first_format(wanted))
    assert first_format(wanted) != MSGPACK
    assert bool(offer(wanted)) == (wanted is MSGPACK)
