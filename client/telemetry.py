"""OpenTelemetry: a span and metrics for each send and each call of a handler (``ClientConfig.open_telemetry``).

Needs the extra ``otel``, and is imported only if a client asks for it.  Only the API is used: the program's SDK
decides about exporters, the format of contexts in messages, and sampling.

All names are here.  Source: the semantic conventions for messaging and RocketMQ, whose status is Development.  Older
names were never used, so ``OTEL_SEMCONV_STABILITY_OPT_IN`` has nothing to choose from.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, Protocol, Self, TypeAlias

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, SpanKind, StatusCode

import triomq
from triomq.client.config import OpenTelemetry
from triomq.protocol.codes import code_name
from triomq.protocol.errors import BrokerResponseError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName

Attributes: TypeAlias = dict[str, Any]

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
MESSAGE_TAG: Final = "messaging.rocketmq.message.tag"
MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
ERROR_TYPE: Final = "error.type"

OPERATION_DURATION: Final = "messaging.client.operation.duration"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"

_SCHEMA: Final = "https://opentelemetry.io/schemas/1.37.0"
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_KINDS: Final = {"send": SpanKind.PRODUCER, "receive": SpanKind.CLIENT, "process": SpanKind.CONSUMER}
_ROOT: Final = Context()


class Sendable(Protocol):
    """A prepared request; see ``Outgoing``."""

    @property
    def is_batch(self) -> bool:
        """Whether it may have several messages."""

    def contents(self) -> Iterable[tuple[str, int, dict[str, str]]]:
        """Yield id, length of the body and properties of each message."""

    def add_properties(self, added: Mapping[str, str]) -> int:
        """Add properties to each message; return how many messages there are."""


class Telemetry:
    """Makes spans and metrics for the clients of an instance, in any thread."""

    def __init__(self, settings: bool | OpenTelemetry, client_id: str, namespace: str | None) -> None:
        """Take the providers, and the attributes that all spans share."""
        to = settings if isinstance(settings, OpenTelemetry) else OpenTelemetry()
        meter = metrics.get_meter("triomq", triomq.__version__, to.meter_provider, _SCHEMA)

        def seconds(name: str) -> metrics.Histogram:
            return meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=_BUCKETS_S)

        duration, consumed = seconds(OPERATION_DURATION), meter.create_counter(CONSUMED_MESSAGES, "{message}")
        self._instruments = {
            "send": (duration, meter.create_counter("messaging.client.sent.messages", "{message}")),
            "receive": (duration, consumed),
            "process": (seconds("messaging.process.duration"), consumed),
        }
        self._tracer = trace.get_tracer("triomq", triomq.__version__, to.tracer_provider, _SCHEMA)
        self._client: Attributes = {"messaging.client.id": client_id, "messaging.rocketmq.namespace": namespace or ""}

    def sending(self, topic: str, outgoing: Sendable) -> "Operation":
        """Begin to send messages, which get the context of the new span; its parent is the caller's."""
        own: Attributes = {}
        if not outgoing.is_batch:
            ((message_id, _, properties),) = outgoing.contents()
            own = _describe(message_id, properties) | _describe_delivery(properties)
        operation = self._begin("send", topic, {}, own, None, ())
        carrier: dict[str, str] = {}
        propagate.inject(carrier, operation.context)
        operation.count = outgoing.add_properties(carrier)
        if outgoing.is_batch:
            operation.span.set_attribute(MESSAGE_COUNT, operation.count)
        return operation

    def consuming(self, name: str, group: str, model: str, messages: Sequence[MessageExt]) -> "Operation":
        """Begin to ``process`` or ``receive`` messages of one queue.

        To process one message continues its trace; whatever has several messages has links to theirs.
        """
        first, count = messages[0], len(messages)
        parent = _ROOT if name == "process" else None
        origins = [propagate.extract(message.properties, _ROOT) for message in messages]
        if name == "process" and count == 1:
            parent = origins.pop()
        spans = [trace.get_current_span(origin).get_span_context() for origin in origins]
        links = [Link(span) for span in spans if span.is_valid]
        own = _describe(first.message_id, first.properties) if count == 1 else {MESSAGE_COUNT: count}
        own |= {"messaging.rocketmq.consumption_model": model, PARTITION: str(first.queue_id)}
        operation = self._begin(name, first.topic, {"messaging.consumer.group.name": group}, own, parent, links)
        operation.count = count
        return operation

    def _begin(
        self, name: str, topic: str, shared: Attributes, own: Attributes, parent: Context | None, links: Sequence[Link]
    ) -> "Operation":
        """Begin an operation; ``shared`` are attributes of its metrics too, ``own`` only of its span."""
        measured = {SYSTEM: "rocketmq", OPERATION_NAME: name, OPERATION_TYPE: name, DESTINATION: topic, **shared}
        attributes = {**measured, **self._client, **own}
        span = self._tracer.start_span(f"{name} {topic}", parent, _KINDS[name], attributes, links)
        return Operation(span, trace.set_span_in_context(span, parent), measured, *self._instruments[name])


@dataclass(slots=True)
class Operation:
    """A span, and the measurements recorded at its end; ``with`` ends it, and records an error.

    Attributes:
        span: the span.
        context: what the operation does belongs to it.
        count: messages it is about.
    """

    span: trace.Span
    context: Context
    _measured: Attributes
    _duration: metrics.Histogram
    _messages: metrics.Counter
    count: int = 1
    _token: Token[Context] | None = None
    _began: float = field(default_factory=perf_counter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self.end(error)

    def make_current(self) -> None:
        """Make later spans of the running task or thread children of this operation, until it ends."""
        self._token = attach(self.context)

    def stored(self, queue: MessageQueue) -> None:
        """Note where the messages were stored."""
        self.span.set_attribute(PARTITION, str(queue.queue_id))

    def end(self, error: BaseException | str | None = None) -> None:
        """End it, perhaps by an error."""
        if self._token is not None:
            detach(self._token)
        if error is not None:
            self._measured[ERROR_TYPE] = _error_type(error)
            self.span.set_attribute(ERROR_TYPE, _error_type(error))
            self.span.set_status(StatusCode.ERROR, str(error))
            if isinstance(error, Exception):
                self.span.record_exception(error)
        self._duration.record(perf_counter() - self._began, self._measured, self.context)
        self._messages.add(self.count, self._measured, self.context)
        self.span.end()


def _error_type(error: BaseException | str) -> str:
    if isinstance(error, BrokerResponseError):
        return code_name(error.code)
    return error if isinstance(error, str) else type(error).__qualname__


def _describe(message_id: str, properties: Mapping[str, str]) -> Attributes:
    """Return the attributes that both sender and consumer of a message know."""
    attributes: Attributes = {"messaging.message.id": message_id}
    for name, attribute in ((PropertyName.TAGS, MESSAGE_TAG), (PropertyName.SHARDING_KEY, MESSAGE_GROUP)):
        if name in properties:
            attributes[attribute] = properties[name]
    if PropertyName.KEYS in properties:
        attributes["messaging.rocketmq.message.keys"] = properties[PropertyName.KEYS].split()
    return attributes


def _describe_delivery(properties: Mapping[str, str]) -> Attributes:
    """Return the attributes that only the sender knows: brokers remove their properties."""
    if properties.get(PropertyName.TRANSACTION_PREPARED) == "true":
        return {MESSAGE_TYPE: "transaction"}
    if level := properties.get(PropertyName.DELAY_TIME_LEVEL):
        return {MESSAGE_TYPE: "delay", "messaging.rocketmq.message.delay_time_level": int(level)}
    if at_ms := properties.get(PropertyName.TIMER_DELIVER_MILLIS):
        return {MESSAGE_TYPE: "delay", "messaging.rocketmq.message.delivery_timestamp": int(at_ms)}
    if PropertyName.TIMER_DELAY_MILLIS in properties:
        return {MESSAGE_TYPE: "delay"}
    return {MESSAGE_TYPE: "fifo" if PropertyName.SHARDING_KEY in properties else "normal"}
