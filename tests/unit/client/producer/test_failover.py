from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from triomq.client.producer.config import ProducerConfig
from triomq.client.producer.producer import Producer
from triomq.client.producer.transaction import HalfProducer
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import RequestTimeoutError, SystemBusyError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message
from triomq.protocol.wire.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2
Pair = tuple[FakeBroker, FakeBroker]


@pytest.fixture
async def name_server(make_broker: BrokerFactory) -> FakeBroker:
    return await make_broker("name-server")


@pytest.fixture
async def brokers(name_server: FakeBroker, make_broker: BrokerFactory) -> Pair:
    one, other = await make_broker("broker-a"), await make_broker("broker-b")
    name_server.add_topic("Topic", 4, 6, one, other)
    route = name_server.routes["Topic"]
    route.queue_datas, route.broker_datas = route.queue_datas[1:], route.broker_datas[1:]
    return one, other


@pytest.fixture
async def producer(name_server: FakeBroker, brokers: Pair) -> AsyncGenerator[Producer, None]:
    async with Producer("group", namesrv=name_server.address) as made:
        yield made


async def send_some(producer: Producer, count: int = 8) -> Counter[str]:
    """Send messages one after the other; return how many each broker stored."""
    results = [await producer.send(Message("Topic", b"x")) for _ in range(count)]
    return Counter(result.queue.broker_name for result in results)


def freeze(broker: FakeBroker) -> Callable[[], None]:
    """Let a broker answer nothing; return what ends that."""
    before = dict(broker.handlers)
    broker.handlers.update(dict.fromkeys(before, lambda _command: None))
    return lambda: broker.handlers.update(before)


async def test_a_killed_broker_is_tried_once_and_again_when_it_is_back(
    producer: Producer, name_server: FakeBroker, brokers: Pair, autojump_clock: MockClock
) -> None:
    other = brokers[1]
    assert await send_some(producer) == {"broker-a": 4, "broker-b": 4}
    await other.stop()
    began = trio.current_time()
    assert await send_some(producer, 20) == {"broker-a": 20}
    await name_server.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
    assert trio.current_time() - began < 0.1
    assert other.connected == 1

    await trio.sleep(30)
    await other.restart()
    await trio.sleep(4)
    assert await send_some(producer) == {"broker-a": 4, "broker-b": 4}


async def send_half_message(producer: Producer) -> object:
    assert isinstance(producer, HalfProducer)
    return await producer.send_half(Message("Topic", b"x"))


async def send_batch(producer: Producer) -> object:
    return await producer.send_batch([Message("Topic", b"x")] * 3)


async def send_one(producer: Producer) -> object:
    return await producer.send(Message("Topic", b"x"))


@pytest.mark.parametrize("auto_batch", [False, True])
@pytest.mark.parametrize("send", [send_one, send_batch, send_half_message])
async def test_a_frozen_broker_holds_up_sends_for_one_second(
    name_server: FakeBroker,
    brokers: Pair,
    autojump_clock: MockClock,
    send: Callable[[Producer], Awaitable[object]],
    auto_batch: bool,
) -> None:
    settings = ProducerConfig(auto_batch=auto_batch)
    async with HalfProducer("group", namesrv=name_server.address, settings=settings) as producer:
        await send_some(producer)
        thaw = freeze(brokers[1])
        waits: list[float] = []
        for _ in range(20):
            began = trio.current_time()
            await send(producer)
            waits.append(trio.current_time() - began)
            await trio.sleep(1)  # time for it to look healthy again
        assert sum(wait > 0.1 for wait in waits) == 1
        assert max(waits) == pytest.approx(1.0, abs=0.1)

        thaw()
        await trio.sleep(4)
        assert await send_some(producer) == {"broker-a": 4, "broker-b": 4}


async def test_a_slow_broker_that_is_alive_gets_its_time(
    producer: Producer, brokers: Pair, autojump_clock: MockClock
) -> None:
    """It answers heartbeats meanwhile, so the message is not stored twice."""

    async def slowly(command: RemotingCommand) -> RemotingCommand:
        await trio.sleep(1.9)
        return brokers[1].answer_send(command)

    brokers[1].on(SEND, slowly)
    assert await send_some(producer) == {"broker-a": 4, "broker-b": 4}


async def test_broker_that_answers_heartbeats_but_no_sends_is_left_in_time(
    producer: Producer, brokers: Pair, autojump_clock: MockClock
) -> None:
    brokers[1].on(SEND, lambda _command: None)
    assert await send_some(producer, 6) == {"broker-a": 6}


async def test_without_another_broker_a_send_waits_for_its_whole_timeout(
    producer: Producer, brokers: Pair, autojump_clock: MockClock
) -> None:
    await send_some(producer)
    for broker in brokers:
        freeze(broker)
    await brokers[0].stop()
    with pytest.raises(RequestTimeoutError):
        await send_some(producer, 2)
    began = trio.current_time()
    with pytest.raises(RequestTimeoutError):
        await send_some(producer, 1)
    assert trio.current_time() - began == pytest.approx(3.0, abs=0.1)


async def test_all_brokers_are_tried_even_if_more_fail_than_retries(
    name_server: FakeBroker, make_broker: BrokerFactory, autojump_clock: MockClock
) -> None:
    brokers = [await make_broker(f"broker-{letter}") for letter in "abcde"]
    name_server.add_topic("Topic", 1, 6, *brokers)
    route = name_server.routes["Topic"]
    route.queue_datas, route.broker_datas = route.queue_datas[1:], route.broker_datas[1:]
    async with Producer("group", namesrv=name_server.address, settings=ProducerConfig(retries=1)) as producer:
        await send_some(producer, 5)
        for broker in brokers[1:]:
            await broker.stop()
        assert await send_some(producer, 10) == {"broker-a": 10}


async def test_a_oneway_send_goes_where_a_connection_can_be_made(producer: Producer, brokers: Pair) -> None:
    await brokers[1].stop()
    for _ in range(8):
        await producer.send_oneway(Message("Topic", b"x"))
    await brokers[0].wait_for(SEND, 8)


def be_busy(broker: FakeBroker, times: int = 2**31, **fields: str) -> None:
    """Refuse sends, ``times`` times."""
    left = times

    def refuse(command: RemotingCommand) -> RemotingCommand:
        nonlocal left
        left -= 1
        return broker.answer_send(command) if left < 0 else command.reply(ResponseCode.SYSTEM_BUSY, fields)

    broker.on(SEND, refuse)


async def test_a_busy_broker_is_left_for_another_one(
    producer: Producer, brokers: Pair, autojump_clock: MockClock
) -> None:
    be_busy(brokers[1])
    assert await send_some(producer) == {"broker-a": 8}
    be_busy(brokers[0])
    with pytest.raises(SystemBusyError):
        await send_some(producer)


@pytest.mark.parametrize(
    ("fields", "least_s"), [({"retryAfterMs": "700"}, 1.4), ({}, 0.2), ({"retryAfterMs": "x"}, 0.2)]
)
@pytest.mark.parametrize("queue", [None, MessageQueue("Topic", "broker-b", 0)])
async def test_a_send_waits_as_long_as_busy_brokers_say_and_is_stored_once(
    producer: Producer,
    brokers: Pair,
    autojump_clock: MockClock,
    fields: dict[str, str],
    least_s: float,
    queue: MessageQueue | None,
) -> None:
    be_busy(brokers[0])
    be_busy(brokers[1], 2, **fields)
    began = trio.current_time()
    result = await producer.send(Message("Topic", b"x"), queue=queue)
    assert (result.queue.broker_name, result.queue_offset) == ("broker-b", 0)
    if queue is not None:  # else the other broker was asked, too
        assert least_s <= trio.current_time() - began <= 2 * least_s


@pytest.mark.parametrize("after_ms", ["3000", "2900"])  # the second leaves too little for another attempt
async def test_a_send_ends_when_busy_brokers_want_more_time_than_it_has(
    producer: Producer, brokers: Pair, autojump_clock: MockClock, after_ms: str
) -> None:
    for broker in brokers:
        be_busy(broker, retryAfterMs=after_ms)
    began = trio.current_time()
    with pytest.raises(SystemBusyError, match=r"to be tried again after [23.9]+ s") as caught:
        await producer.send(Message("Topic", b"x"))
    assert caught.value.retry_after_s == int(after_ms) / 1000
    assert trio.current_time() - began < 0.1


async def test_busy_brokers_are_an_error_at_once_if_wanted(
    name_server: FakeBroker, brokers: Pair, autojump_clock: MockClock
) -> None:
    for broker in brokers:
        be_busy(broker)
    async with Producer("group", namesrv=name_server.address, settings=ProducerConfig(on_busy="raise")) as producer:
        began = trio.current_time()
        with pytest.raises(SystemBusyError):
            await producer.send(Message("Topic", b"x"))
        assert trio.current_time() - began < 0.1
    assert sum(len(broker.of(SEND)) for broker in brokers) == 3


async def test_without_retries_the_first_failure_is_raised(
    name_server: FakeBroker, brokers: Pair, autojump_clock: MockClock
) -> None:
    freeze(brokers[1])
    async with Producer("group", namesrv=name_server.address, settings=ProducerConfig(retries=0)) as producer:
        began = trio.current_time()
        with pytest.raises(RequestTimeoutError):
            await send_some(producer)
        assert trio.current_time() - began == pytest.approx(3.0, abs=0.1)


async def test_slow_brokers_are_avoided_if_wanted(
    name_server: FakeBroker, brokers: Pair, autojump_clock: MockClock
) -> None:
    async def slowly(command: RemotingCommand) -> RemotingCommand:
        await trio.sleep(0.6)
        return brokers[1].answer_send(command)

    brokers[1].on(SEND, slowly)
    settings = ProducerConfig(send_latency_fault_enable=True)
    async with Producer("group", namesrv=name_server.address, settings=settings) as producer:
        assert (await send_some(producer, 40))["broker-b"] == 1

        await brokers[0].stop()  # the slow one is better than none
        assert await send_some(producer) == {"broker-b": 8}
        await brokers[0].restart()
        await trio.sleep(4)
        assert (await send_some(producer))["broker-a"] >= 7


async def test_a_frozen_broker_does_not_count_as_slow(
    name_server: FakeBroker, brokers: Pair, autojump_clock: MockClock
) -> None:
    settings = ProducerConfig(send_latency_fault_enable=True)
    async with Producer("group", namesrv=name_server.address, settings=settings) as producer:
        await send_some(producer)
        thaw = freeze(brokers[1])
        assert await send_some(producer) == {"broker-a": 8}
        thaw()
        await trio.sleep(4)
        assert await send_some(producer) == {"broker-a": 4, "broker-b": 4}

        brokers[1].on(SEND, lambda _command: None)  # it answers heartbeats
        began = trio.current_time()
        while trio.current_time() < began + 30:
            await send_some(producer)
            await trio.sleep(1)
        brokers[1].on(SEND, brokers[1].answer_send)
        assert await send_some(producer) == {"broker-a": 8}


async def test_a_new_topic_is_created_on_a_broker_that_is_there(
    producer: Producer, name_server: FakeBroker, brokers: Pair
) -> None:
    name_server.routes["TBW102"] = name_server.routes.pop("Topic")
    await brokers[1].stop()
    assert await send_some(producer) == {"broker-a": 8}
    await wait_all_tasks_blocked()
    asked = [command.ext_fields["topic"] for command in name_server.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)]
    assert asked.count("TBW102") == 2
