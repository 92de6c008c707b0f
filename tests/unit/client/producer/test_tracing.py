"""Tracing delays no message and fails no send, whatever becomes of the records."""

import logging
from collections.abc import AsyncGenerator

import pytest
import trio

from tests.unit.client.consumer.fake_cluster import make_message
from tests.unit.client.fake_broker import FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.config import ConsumeStatus
from triomq.client.consumer.handlers import ConsumeObserver, Handler
from triomq.client.producer import tracing
from triomq.client.producer.producer import Producer
from triomq.client.producer.tracing import Tracer, trace_topic
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.names import TRACE_TOPIC
from triomq.protocol.record.message import Message
from triomq.protocol.record.properties import decode_properties
from triomq.protocol.trace import ConsumeBegun, ConsumeEnded, Published, TraceRecord, decode_trace
from triomq.protocol.wire.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2


def recorded(broker: FakeBroker) -> list[TraceRecord]:
    bodies = [request.body for request in broker.of(SEND) if request.ext_fields["b"] == TRACE_TOPIC]
    return [record for body in bodies for record in decode_trace(bytes(body))]


@pytest.fixture
async def broker(fake_broker: FakeBroker) -> FakeBroker:
    fake_broker.add_topic(TRACE_TOPIC, 1)
    return fake_broker


@pytest.fixture
async def tracer(broker: FakeBroker) -> AsyncGenerator[Tracer, None]:
    async with ClientInstance(broker.address) as instance:
        yield Tracer(instance, "traces", TRACE_TOPIC)


async def test_sends_are_recorded_until_the_producer_ends(broker: FakeBroker) -> None:
    async with Producer("G", namesrv=broker.address, trace=True) as producer:
        result = await producer.send(Message("Topic", b"body", tags="A", keys=["k1", "k2"]))
        await producer.send(Message("Topic", b"later", delay_level=3))
        await producer.send_oneway(Message("Topic", b"nobody knows"))
    first, second = recorded(broker)
    assert isinstance(first, Published)
    assert isinstance(second, Published)
    assert (first.group, first.topic, first.message_id) == ("G", "Topic", result.message_id)
    assert (first.tags, first.keys, first.body_bytes, first.message_type) == ("A", "k1 k2", 4, 0)
    assert (first.store_host, first.offset_message_id) == (broker.address, result.offset_message_id)
    assert second.message_type == 3
    (request,) = (request for request in broker.of(SEND) if request.ext_fields["b"] == TRACE_TOPIC)
    properties = decode_properties(request.ext_fields["i"].encode())
    assert properties["KEYS"].split() == [first.message_id, "k1", "k2", second.message_id]


async def test_nothing_is_recorded_if_the_broker_says_so(broker: FakeBroker) -> None:
    def answer(command: RemotingCommand) -> RemotingCommand | None:
        reply = broker.answer_send(command)
        reply.ext_fields["TRACE_ON"] = "false"
        return reply

    broker.on(SEND, answer)
    async with Producer("G", namesrv=broker.address, trace=True) as producer:
        await producer.send(Message("Topic", b"body"))
    assert recorded(broker) == []


async def test_silent_broker_delays_the_end_half_a_second(broker: FakeBroker) -> None:
    broker.on(SEND, lambda command: None if command.ext_fields["b"] == TRACE_TOPIC else broker.answer_send(command))
    async with Producer("G", namesrv=broker.address, trace=True) as producer:
        await producer.send(Message("Topic", b"body"))
        left = trio.current_time()
    assert 0.4 < trio.current_time() - left < 5


async def test_unstorable_records_are_counted_and_logged_once(
    broker: FakeBroker, tracer: Tracer, caplog: pytest.LogCaptureFixture
) -> None:
    broker.on(SEND, lambda command: command.reply(ResponseCode.NO_PERMISSION, remark="no"))
    for _ in range(2):
        tracer.put(ConsumeEnded("R", "ID", 1, True, ""))
        await tracer.flush()
    assert tracer.dropped == 2
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


async def test_the_buffer_is_bounded(
    tracer: Tracer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "_MAX_WAITING", 3)
    for number in range(5):
        tracer.put(ConsumeEnded("R", str(number), 1, True, ""))
    assert [record.message_id for record in tracer.waiting] == ["0", "1", "2"]
    assert tracer.dropped == 2
    assert len(caplog.records) == 1


async def test_many_records_and_long_keys_are_split(broker: FakeBroker, tracer: Tracer) -> None:
    records = [ConsumeEnded("R" * 32, f"{number:032}", 1, True, f"{number} " + "k" * 500) for number in range(2000)]
    for record in records:
        tracer.put(record)
    await tracer.flush()
    assert recorded(broker) == records
    assert all(len(request.body) < 128_000 for request in broker.of(SEND))
    tracer.put(long := ConsumeEnded("R", "ID", 1, True, "k" * 32_000))
    await tracer.flush()
    assert recorded(broker)[-1] == long
    assert tracer.dropped == 0


async def test_cancelled_send_keeps_its_record(broker: FakeBroker, tracer: Tracer) -> None:
    broker.on(SEND, lambda _command: None)
    tracer.put(record := ConsumeEnded("R", "ID", 1, True, ""))
    with trio.move_on_after(0.1):
        await tracer.flush()
    assert list(tracer.waiting) == [record]


async def test_calls_of_a_handler_are_recorded(tracer: Tracer) -> None:
    observer = ConsumeObserver(tracer, None, MessageModel.CLUSTERING)
    handler = Handler(
        lambda _messages, _context: ConsumeStatus.RECONSUME_LATER, takes_batch=True, is_async=False, group="G"
    )
    traced = handler.with_hooks(observer.join(()), 900, orderly=False)
    messages = [make_message(1, UNIQ_KEY="A", KEYS="k"), make_message(2, UNIQ_KEY="B", TRACE_ON="false")]
    traced.function(messages, None)
    begun, ended = tracer.waiting
    assert isinstance(begun, ConsumeBegun)
    assert isinstance(ended, ConsumeEnded)
    assert (begun.group, begun.message_id, begun.retry_times, begun.keys) == ("G", "A", 0, "k")
    assert (ended.request_id, ended.message_id, ended.is_success, ended.code) == (begun.request_id, "A", False, 4)


def test_nothing_to_record_needs_no_hook() -> None:
    assert ConsumeObserver(None, None, MessageModel.CLUSTERING).join(()) == ()
    assert (trace_topic(False), trace_topic(True), trace_topic("other")) == (None, TRACE_TOPIC, "other")
