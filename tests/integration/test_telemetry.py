"""OpenTelemetry: one trace from the sender through the broker to what the handler does, whatever the way."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import triomq.client
import triomq.client.asyncio as of_asyncio
from triomq.client import (
    ClientConfig,
    ConfigError,
    ConsumerConfig,
    ConsumeStatus,
    LitePullConsumer,
    Message,
    MessageExt,
    OpenTelemetry,
    Producer,
    ProducerConfig,
    PushConsumer,
    SystemBusyError,
    Transaction,
    TransactionProducer,
    TransactionState,
    sync,
)
from triomq.protocol.codes import ResponseCode
from triomq.testing import RunningBroker

GROUP = "readers"


class Exported:
    """Spans and metrics in memory."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        meters = MeterProvider([self.reader])
        self.config = ClientConfig(open_telemetry=OpenTelemetry(tracer_provider=provider, meter_provider=meters))

    def __getitem__(self, name: str) -> list[ReadableSpan]:
        """Ended spans whose name begins so."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def figures(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        """Attributes and point of each series of a metric."""
        data = self.reader.get_metrics_data()
        assert data is not None
        every = [one for of in data.resource_metrics for scope in of.scope_metrics for one in scope.metrics]
        return [
            (dict(point.attributes or {}), point)
            for one in every
            if one.name == metric
            for point in one.data.data_points
        ]


@pytest.fixture
def exported() -> Exported:
    return Exported()


MESSAGE = Message("orders", b"x", tags="A", keys=["k1", "k2"], sharding_key="S")
Run = Callable[[str, Exported, Callable[..., Any], bool], None]
"""Sends the message and consumes it, in a span for each."""


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.parent is not None
    assert parent.context is not None
    return (span.parent.trace_id, span.parent.span_id) == (parent.context.trace_id, parent.context.span_id)


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def span_ids(*spans: ReadableSpan) -> list[int]:
    return [span.context.span_id for span in spans if span.context is not None]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


@pytest.fixture
def topic(rocketmq_broker: RunningBroker) -> str:
    rocketmq_broker.create_topic("orders", queues=1)
    return "orders"


def in_loop(api: Any, run: Callable[..., Any], sleep: Callable[[float], Awaitable[None]]) -> Run:
    def run_in_loop(namesrv: str, exported: Exported, wait: Callable[..., Any], orderly: bool) -> None:
        async def work(_: MessageExt) -> None:
            with exported.tracer.start_as_current_span("work"):
                await sleep(0)

        async def main() -> None:
            given: dict[str, Any] = {"namesrv": namesrv, "config": exported.config}
            consumer: dict[str, Any] = {"on_message": work, "subscriptions": {"orders": "*"}, "start": "earliest"}
            async with api.Producer("P", **given) as producer:
                async with api.PushConsumer(GROUP, **given, **consumer, orderly=orderly):
                    with exported.tracer.start_as_current_span("call"):
                        await producer.send(MESSAGE)
                    await wait(GROUP)

        run(main)

    return run_in_loop


def in_threads(namesrv: str, exported: Exported, wait: Callable[..., Any], orderly: bool) -> None:
    def work(_: MessageExt) -> None:
        with exported.tracer.start_as_current_span("work"):
            pass

    given: dict[str, Any] = {"namesrv": namesrv, "config": exported.config}
    subscriptions = {"orders": "*"}
    with (
        sync.Producer("P", **given) as producer,
        sync.PushConsumer(
            GROUP, **given, on_message=work, subscriptions=subscriptions, start="earliest", orderly=orderly
        ),
    ):
        with exported.tracer.start_as_current_span("call"):
            producer.send(MESSAGE)
        wait(GROUP)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    "run",
    [
        in_loop(triomq.client, trio.run, trio.sleep),
        in_loop(of_asyncio, lambda main: asyncio.run(main()), asyncio.sleep),
        in_threads,
    ],
    ids=["trio", "asyncio", "threads"],
)
@pytest.mark.usefixtures("topic")
def test_a_send_and_its_handler_are_one_trace(
    rocketmq_broker: RunningBroker,
    exported: Exported,
    run: Run,
    orderly: bool,
) -> None:
    with exported.tracer.start_as_current_span("opens the clients"):  # not the parent of the messages they handle
        run(rocketmq_broker.namesrv, exported, rocketmq_broker.wait_until_consumed, orderly)
    (call,), (send,), (process,), (work,) = exported["call"], exported["send"], exported["process"], exported["work"]
    assert is_child(send, call)
    assert is_child(process, send)
    assert is_child(work, process)
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert (send.name, process.name) == ("send orders", "process orders")
    sent, processed = attributes(send), attributes(process)
    client_id, message_id = sent.pop("client.id"), sent.pop("message.id")
    both = {
        "system": "rocketmq",
        "destination.name": "orders",
        "destination.partition.id": "0",
        "rocketmq.namespace": "",
        "rocketmq.message.tag": "A",
        "rocketmq.message.keys": ("k1", "k2"),
        "rocketmq.message.group": "S",
    }
    assert sent == {**both, "operation.name": "send", "operation.type": "send", "rocketmq.message.type": "fifo"}
    assert processed.pop("message.id") == message_id == rocketmq_broker.messages("orders")[0].message_id
    assert processed.pop("client.id") != client_id
    consumer = {"consumer.group.name": GROUP, "rocketmq.consumption_model": "clustering"}
    assert processed == {**both, **consumer, "operation.name": "process", "operation.type": "process"}


async def test_each_way_to_send_carries_the_context(
    rocketmq_broker: RunningBroker, exported: Exported, topic: str
) -> None:
    async def commit(_: Transaction) -> TransactionState:
        return TransactionState.COMMIT

    async def check(_: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN

    old = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    message = Message(topic, b"again", properties={"traceparent": old, "mine": "1"})
    given: dict[str, Any] = {"namesrv": rocketmq_broker.namesrv, "config": exported.config}
    async with (
        Producer("P", **given) as producer,
        Producer("A", **given, settings=ProducerConfig(auto_batch=True)) as batching,
        TransactionProducer("T", **given, check=check) as deciding,
    ):
        await producer.send(message)
        assert message.properties == {"traceparent": old, "mine": "1"}
        await producer.send(Message(topic, b"delayed", delay_level=3))
        await producer.send(Message(topic, b"later", delay_s=60))
        await producer.send_oneway(Message(topic, b"oneway"))
        await deciding.send(Message(topic, b"transaction"), commit)
        await producer.send_batch([Message(topic, b"batch"), Message(topic, b"batch")])
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(batching.send, Message(topic, b"alone"))
        await producer.send(Message(topic, b"full", properties={"filling": "x" * 32_500}))
    rocketmq_broker.clock.advance(minutes=2)
    spans = {f"{span.context.span_id:016x}": span for span in exported["send"] if span.context is not None}
    stored = rocketmq_broker.messages(topic)
    full = [message for message in stored if message.body == b"full"]
    assert [message.properties.get("traceparent") for message in full] == [None]
    found = [
        (spans[message.properties["traceparent"].split("-")[2]], message) for message in stored if message not in full
    ]
    kinds = {message.body: attributes(span).get("rocketmq.message.type") for span, message in found}
    assert kinds == {
        b"again": "normal",
        b"delayed": "delay",
        b"later": "delay",
        b"oneway": "normal",
        b"transaction": "transaction",
        b"batch": None,
        b"alone": "normal",
    }
    assert [attributes(span)["batch.message_count"] for span, message in found if message.body == b"batch"] == [2, 2]
    assert len({id(span) for span, message in found if message.body == b"alone"}) == 8
    assert len(spans) == len(found)  # the batch has one for two messages; that of the full message is in none
    assert {message.message_id for span, message in found if "message.id" in attributes(span)} == {
        attributes(span)["message.id"] for span, message in found if "message.id" in attributes(span)
    }
    (sent,) = exported.figures("messaging.client.sent.messages")
    (duration,) = exported.figures("messaging.client.operation.duration")
    assert sent[0] == duration[0]
    assert (sent[1].value, duration[1].count) == (len(stored), len(spans))


async def test_failures_have_error_type_and_redeliveries_share_trace(
    rocketmq_broker: RunningBroker, exported: Exported, topic: str
) -> None:
    outcomes = iter([ValueError("no"), ConsumeStatus.RECONSUME_LATER, None])

    def fail_twice(_: MessageExt) -> ConsumeStatus | None:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    given: dict[str, Any] = {"namesrv": rocketmq_broker.namesrv, "config": exported.config}
    async with (
        Producer("P", **given, settings=ProducerConfig(on_busy="raise")) as producer,
        PushConsumer(GROUP, **given, on_message=fail_twice, subscriptions={topic: "*"}, start="earliest"),
    ):
        rocketmq_broker.faults.refuse(code=ResponseCode.SYSTEM_BUSY, next=1)
        with pytest.raises(SystemBusyError):
            await producer.send(Message(topic, b"x"))
        await producer.send(Message(topic, b"x"))
        for _ in range(3):
            await rocketmq_broker.wait_until_consumed(GROUP)
            rocketmq_broker.clock.advance(minutes=2)
    refused, sent = exported["send"]
    assert refused.status.status_code is StatusCode.ERROR
    assert (attributes(refused)["error.type"], "error.type" in attributes(sent)) == ("SYSTEM_BUSY", False)
    processed = exported["process"]
    assert [span.name for span in processed] == ["process orders"] * 3
    assert all(is_child(span, sent) for span in processed)
    assert [attributes(span).get("error.type") for span in processed] == ["ValueError", "FAILED", None]
    assert [event.name for event in processed[0].events] == ["exception"]
    for metric, counted in (
        ("messaging.client.sent.messages", ["", "SYSTEM_BUSY"]),
        ("messaging.client.consumed.messages", ["", "FAILED", "ValueError"]),
        ("messaging.process.duration", ["", "FAILED", "ValueError"]),
    ):
        found = exported.figures(metric)
        assert sorted(of.get("error.type", "") for of, _ in found) == counted
        assert {of["messaging.destination.name"] for of, _ in found} == {topic}


@pytest.mark.parametrize("orderly", [False, True])
async def test_batches_and_polls_have_links(
    rocketmq_broker: RunningBroker, exported: Exported, topic: str, orderly: bool
) -> None:
    def take(messages: list[MessageExt], _: Any) -> None:
        assert len(messages) == 3

    given: dict[str, Any] = {"namesrv": rocketmq_broker.namesrv, "config": exported.config}
    async with Producer("P", **given) as producer:
        for _ in range(3):
            await producer.send(Message(topic, b"x"))
    async with PushConsumer(
        GROUP, **given, on_messages=take, subscriptions={topic: "*"}, start="earliest", orderly=orderly
    ):
        await rocketmq_broker.wait_until_consumed(GROUP)
    async with LitePullConsumer("pollers", **given, start="earliest") as consumer:
        await consumer.subscribe(topic)
        assert len(await consumer.poll(30)) == 3
    (process,), (receive,) = exported["process"], exported["receive"]
    assert links(process) == links(receive) == span_ids(*exported["send"])
    assert (process.parent, receive.parent, receive.kind) == (None, None, SpanKind.CLIENT)
    assert [attributes(span)["batch.message_count"] for span in (process, receive)] == [3, 3]
    consumed = exported.figures("messaging.client.consumed.messages")
    assert {of["messaging.operation.name"]: point.value for of, point in consumed} == {"process": 3, "receive": 3}


async def test_a_cancelled_handler_ends_its_span(
    rocketmq_broker: RunningBroker, exported: Exported, topic: str
) -> None:
    began = trio.Event()

    async def hang(_: MessageExt) -> None:
        began.set()
        await trio.sleep_forever()

    given: dict[str, Any] = {"namesrv": rocketmq_broker.namesrv, "config": exported.config}
    settings = ConsumerConfig(grace_s=0)
    async with (
        Producer("P", **given) as producer,
        PushConsumer(GROUP, **given, on_message=hang, subscriptions={topic: "*"}, start="earliest", settings=settings),
    ):
        await producer.send(Message(topic, b"x"))
        await began.wait()
    (process,) = exported["process"]
    assert attributes(process)["error.type"] == "Cancelled"


def test_nothing_is_imported_and_sent_unless_asked_for(rocketmq_broker: RunningBroker, topic: str) -> None:
    code = (
        "import sys; import triomq.client.asyncio; from triomq.client.sync import *\n"
        "with Producer('P') as producer: producer.send(Message('orders', b'x'))\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    environment = {"TRIOMQ_NAMESRV": rocketmq_broker.namesrv}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=30)
    (message,) = rocketmq_broker.messages(topic)
    assert "traceparent" not in message.properties


def test_the_error_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'triomq\[otel\]'"):
        ClientConfig(open_telemetry=True)
