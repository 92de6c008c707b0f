from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from triomq.client.producer.config import ProducerConfig
from triomq.client.producer.delivery import Attempts, LatencyFaults, Retry, next_try
from triomq.client.producer.producer import Producer
from triomq.client.producer.transaction import HalfProducer
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ConnectError,
    ConnectionLostError,
    NoPermissionError,
    RequestTimeoutError,
    TriomqError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message
from triomq.protocol.wire.command import RemotingCommand


@pytest.mark.parametrize(
    ("latency_s", "avoided_s"),
    [(0.54, 0), (0.55, 30), (0.99, 30), (1, 60), (2, 120), (2.9, 120), (3, 180), (14, 180), (15, 600), (40, 600)],
)
def test_slow_broker_is_avoided_as_by_rocketmq(latency_s: float, avoided_s: float) -> None:
    now = 100.0
    faults = LatencyFaults(lambda: now)
    faults.answered("a", latency_s)
    assert faults.slow == ({"a": (latency_s, now + avoided_s)} if avoided_s else {})
    assert list(faults.prefer({"a", "b"})) == ["b"] * bool(avoided_s) or not avoided_s
    now += avoided_s
    assert set(faults.prefer({"a", "b"})) == {"a", "b"}
    faults.answered("a", 50)
    faults.answered("b", 20)
    faults.answered("c", 30)
    assert faults.prefer({"a", "b", "c"}) == ["b", "c"]  # the quicker half
    faults.answered("a", 0)
    assert faults.prefer({"a", "b", "c"}) == ["a"]


BUSY = BrokerResponseError.from_response(2, "busy")
BUSY_FOR_1S = BrokerResponseError.from_response(2, "busy", ext_fields={"retryAfterMs": "1000"})
FAILED, REFUSED = BrokerResponseError.from_response(1, ""), BrokerResponseError.from_response(13, "")
DENIED_FOR_1S = NoPermissionError(16, "", "", 1.0)
UNREACHED, LOST, LATE = ConnectError(""), ConnectionLostError(""), RequestTimeoutError("")
ONE, THREE = Attempts(("a",), 1), Attempts(("a", "b", "a"), 3)
NOT_REACHED = Attempts(("a", "a"), 0, 2)


@pytest.mark.parametrize(
    ("error", "attempts", "left_s", "has_other", "is_chosen", "pause_s"),
    [
        (FAILED, ONE, 2.0, False, False, 0.0),
        (FAILED, THREE, 2.0, True, False, None),
        (FAILED, ONE, 2.0, False, True, None),
        (FAILED, ONE, 0.0, True, False, None),
        (REFUSED, ONE, 2.0, True, False, None),
        (DENIED_FOR_1S, THREE, 2.0, True, False, 1.0),
        (BUSY, ONE, 2.9, True, False, 0.0),
        (BUSY, ONE, 2.95, False, False, 0.1),
        (BUSY, ONE, 2.8, False, True, pytest.approx(0.2)),
        (BUSY, THREE, 1.0, True, False, 0.5),
        (BUSY, THREE, 0.7, True, False, None),
        (BUSY_FOR_1S, THREE, 1.3, True, True, 1.0),
        (BUSY_FOR_1S, THREE, 1.2, True, False, None),
        (UNREACHED, NOT_REACHED, 2.0, True, False, 0.0),
        (UNREACHED, NOT_REACHED, 2.0, False, True, 0.2),
        (UNREACHED, Attempts(("a",) * 9, 0, 9), 2.0, False, False, 0.5),
        (UNREACHED, NOT_REACHED, 0.3, False, False, pytest.approx(0.1)),
        (UNREACHED, NOT_REACHED, 0.2, False, False, None),
        (LOST, THREE, 2.0, True, False, 0.0),
        (LOST, ONE, 2.0, False, False, 0.1),
        (LATE, Attempts(("a", "a"), 2), 0.05, False, False, 0.05),
        (LATE, THREE, 2.0, False, False, None),
        (LATE, ONE, 2.0, False, True, None),
    ],
)
def test_a_failed_attempt_is_repeated_after(  # a table
    error: TriomqError, attempts: Attempts, left_s: float, has_other: bool, is_chosen: bool, pause_s: float | None
) -> None:
    retry = next_try(error, attempts, left_s, ProducerConfig(), has_other=has_other, is_chosen=is_chosen)
    assert (None if retry is None else retry.pause_s) == pause_s


@pytest.mark.parametrize("code", [1, 14, 16, 17, 204, 205])
def test_another_broker_may_take_the_message_after(code: int) -> None:
    error = BrokerResponseError.from_response(code, "no")
    assert next_try(error, ONE, 2.0, ProducerConfig(), has_other=False, is_chosen=False) == Retry(0.0, ONE)


@pytest.mark.parametrize("error", [BUSY, BUSY_FOR_1S, UNREACHED])
def test_settings_forbid_waiting(error: TriomqError) -> None:
    settings = ProducerConfig(on_busy="raise", retries=0)
    assert next_try(error, ONE, 2.0, settings, has_other=False, is_chosen=False) is None


def test_waiting_for_busy_brokers_renews_the_attempts() -> None:
    retry = next_try(BUSY, THREE, 2.0, ProducerConfig(), has_other=True, is_chosen=False, spread=1.2)
    assert retry is not None
    assert retry.pause_s == pytest.approx(0.6)
    assert retry.attempts == Attempts(("a",), 1)


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


async def test_killed_broker_is_tried_once_until_it_returns(
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
async def test_frozen_broker_delays_sends_by_one_second(
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


async def test_single_broker_gets_the_whole_timeout(
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


async def test_oneway_send_skips_unreachable_brokers(producer: Producer, brokers: Pair) -> None:
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


@pytest.mark.parametrize(
    ("fields", "least_s"), [({"retryAfterMs": "700"}, 1.4), ({}, 0.2), ({"retryAfterMs": "x"}, 0.2)]
)
@pytest.mark.parametrize("queue", [None, MessageQueue("Topic", "broker-b", 0)])
async def test_send_waits_for_busy_brokers_and_stores_once(
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


async def test_new_topic_goes_to_a_reachable_broker(producer: Producer, name_server: FakeBroker, brokers: Pair) -> None:
    name_server.routes["TBW102"] = name_server.routes.pop("Topic")
    await brokers[1].stop()
    assert await send_some(producer) == {"broker-a": 8}
    await wait_all_tasks_blocked()
    asked = [command.ext_fields["topic"] for command in name_server.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)]
    assert asked.count("TBW102") == 2
