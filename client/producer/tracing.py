"""Observing a producer: message trace, which records each message in a topic, and OpenTelemetry.

Trace records wait in a bounded buffer, and a task sends them in batches.  A record that finds the buffer full is
dropped: tracing delays no message and fails no send.

Source: behaviour.md B.16, AsyncTraceDispatcher.java, SendMessageTraceHookImpl.java.
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import open_service_nursery
from triomq.client.producer.config import ProducerConfig, SendResult
from triomq.client.producer.delivery import Choice, Delivery
from triomq.client.producer.publish import Outgoing, encode_message_properties, message_request
from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.errors import REMOTE_ERRORS
from triomq.protocol.event_log import EventLog
from triomq.protocol.names import TRACE_TOPIC
from triomq.protocol.record.message import Message, MessageExt
from triomq.protocol.record.properties import PropertyName
from triomq.protocol.requests.messages import EndTransactionRequestHeader
from triomq.protocol.trace import Published, TraceRecord, TransactionEnded, encode_trace, trace_keys

if TYPE_CHECKING:
    from triomq.client.telemetry import Telemetry

LOGGER: Final = logging.getLogger("triomq.client.producer.tracing")

_MAX_WAITING: Final = 20_000
_INTERVAL_S: Final = 0.2
_LAST_FLUSH_S: Final = 0.5
_MAX_BODY_CHARACTERS: Final = 118_000
_MAX_KEYS_CHARACTERS: Final = 24_000
_SETTINGS: Final = ProducerConfig(send_timeout_s=5.0)
_DELAYS: Final = frozenset(
    (
        PropertyName.DELAY_TIME_LEVEL,
        PropertyName.TIMER_DELAY_MILLIS,
        PropertyName.TIMER_DELIVER_MILLIS,
        PropertyName.START_DELIVER_TIME,
    )
)
_NORMAL, _HALF, _COMMIT, _DELAYED = 0, 1, 2, 3
_REGION: Final = "DefaultRegion"
_STATES: Final[Mapping[int, str]] = {
    int(MessageSysFlag.TRANSACTION_COMMIT): "COMMIT_MESSAGE",
    int(MessageSysFlag.TRANSACTION_ROLLBACK): "ROLLBACK_MESSAGE",
}


def trace_topic(trace: bool | str) -> str | None:
    """Return the topic that the ``trace`` of a client means; ``None``: it does not trace."""
    return (TRACE_TOPIC if trace is True else trace) or None


class Tracer:
    """Collects records and sends them; :meth:`put` may be called in any thread.

    Attributes:
        waiting: records that are to be sent.
        dropped: records that were not sent.
    """

    def __init__(self, instance: ClientInstance, group: str, topic: str) -> None:
        self._delivery = Delivery(instance, group, _SETTINGS)
        self._topic = topic
        self.waiting: deque[TraceRecord] = deque()
        self._log = EventLog(LOGGER, "trace records dropped topic=%s error=%s", logging.WARNING)
        self.dropped = 0

    def put(self, record: TraceRecord) -> None:
        """Send a record later, or drop it if too many wait."""
        if len(self.waiting) < _MAX_WAITING:
            self.waiting.append(record)
        else:
            self._drop(1, f"more than {_MAX_WAITING} wait")

    def decided(self, address: str, header: EndTransactionRequestHeader, message: Message | MessageExt) -> None:
        """Record the decision about a transaction, which the broker at ``address`` has accepted."""
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        record = TransactionEnded(
            wall_clock_ms(),
            _REGION,
            header.producer_group,
            message.topic,
            header.msg_id or "",
            message.tags or "",
            keys,
            address,
            _COMMIT,
            header.transaction_id or "",
            _STATES.get(header.commit_or_rollback, "UNKNOW"),
            header.from_transaction_check,
        )
        self.put(record)

    async def run(self) -> None:
        """Send waiting records periodically; runs until cancelled."""
        while True:
            await trio.sleep(_INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        """Send waiting records now."""
        while self.waiting:
            records, body = self._next_batch()
            keys = trace_keys(records)
            if sum(len(key) + 1 for key in keys) > _MAX_KEYS_CHARACTERS + 1024:  # users' keys make it too long
                keys = list(dict.fromkeys(record.message_id for record in records))
            message = Message(self._topic, body, keys=keys)
            try:
                message_id = uuid4().hex.upper()
                outgoing = message_request(message, message_id, encode_message_properties(message, message_id))
                await self._delivery.send(self._topic, outgoing, None)
            except trio.Cancelled:  # the last flush sends them; tools show a record that is stored twice once
                self.waiting.extendleft(reversed(records))
                raise
            except REMOTE_ERRORS as exc:
                self._drop(len(records), exc)
            else:
                self._log.ended()

    def _next_batch(self) -> tuple[list[TraceRecord], bytes]:
        """Remove the records of the next message; return them and its body."""
        records: list[TraceRecord] = []
        texts: list[str] = []
        size = keys = 0
        while self.waiting and size < _MAX_BODY_CHARACTERS and keys < _MAX_KEYS_CHARACTERS:
            record = self.waiting.popleft()
            text = encode_trace(record)
            records.append(record)
            texts.append(text)
            size += len(text)
            keys += sum(len(key) + 1 for key in trace_keys((record,)))
        return records, "".join(texts).encode()

    def _drop(self, count: int, reason: object) -> None:
        self.dropped += count
        self._log.occurred(self._topic, reason)


@asynccontextmanager
async def open_tracer(
    instance: ClientInstance, group: str, topic: str | None, kind: str
) -> AsyncGenerator[Tracer | None, None]:
    """Trace during the block, and send waiting records at its end; without a topic do not trace.

    Args:
        instance: connections to use.
        group: name of the producer or consumer group.
        topic: where to write.
        kind: ``PRODUCE`` or ``CONSUME``.
    """
    if topic is None:
        yield None
        return
    tracer = Tracer(instance, f"_INNER_TRACE_PRODUCER-{group}-{kind}", topic)
    try:
        async with open_service_nursery() as nursery:
            nursery.start_soon(tracer.run)
            yield tracer
    finally:
        with trio.move_on_after(_LAST_FLUSH_S, shield=True):
            await tracer.flush()
        tracer.dropped += len(tracer.waiting)
        if tracer.dropped:
            LOGGER.info("trace records not sent group=%s topic=%s records=%d", group, topic, tracer.dropped)


class SendObserver:
    """Records the sends of one producer: in a trace, as operations of OpenTelemetry, or both."""

    def __init__(
        self, instance: ClientInstance, group: str, tracer: Tracer | None, telemetry: "Telemetry | None"
    ) -> None:
        self._instance = instance
        self._group = group
        self._tracer = tracer
        self._telemetry = telemetry
        self._brokers: dict[str, tuple[str, bool]] = {}  # region, and whether the broker wants traces

    def answered(self, broker_name: str, ext_fields: Mapping[str, str]) -> None:
        """Take from a broker's answer its region, and whether it wants traces."""
        is_traced = ext_fields.get("TRACE_ON", "true") != "false"
        self._brokers[broker_name] = ext_fields.get("MSG_REGION", ""), is_traced

    @contextmanager
    def sending(self, topic: str, outgoing: Outgoing) -> Iterator[Callable[[SendResult], None]]:
        """Observe the send in the block, which calls the function with the result."""
        time_ms, began = wall_clock_ms(), trio.current_time()
        with nullcontext() if self._telemetry is None else self._telemetry.sending(topic, outgoing) as operation:

            def stored(result: SendResult) -> None:
                if operation is not None:
                    operation.stored(result.queue)
                self._trace(topic, outgoing, result, time_ms, round((trio.current_time() - began) * 1000))

            yield stored

    def _trace(self, topic: str, outgoing: Outgoing, result: SendResult, time_ms: int, took_ms: int) -> None:
        broker_name = result.queue.broker_name
        region, is_traced = self._brokers.get(broker_name, ("", False))
        if self._tracer is None or not is_traced:
            return
        address = self._instance.brokers.find(broker_name) or ""
        places = result.offset_message_id.split(",")
        for number, (message_id, body_bytes, properties) in enumerate(outgoing.contents()):
            kind = _NORMAL if _DELAYS.isdisjoint(properties) else _DELAYED
            if properties.get(PropertyName.TRANSACTION_PREPARED) == "true":
                kind = _HALF
            tags, keys = properties.get(PropertyName.TAGS, ""), properties.get(PropertyName.KEYS, "")
            place = places[number] if number < len(places) else ""
            record = Published(
                time_ms, region, self._group, topic, message_id, tags, keys, address, body_bytes, took_ms, kind, place
            )
            self._tracer.put(record)


class ObservedDelivery(Delivery):
    """Delivers for a producer with an observer."""

    __slots__ = ("_observer",)

    def __init__(self, instance: ClientInstance, group: str, settings: ProducerConfig, observer: SendObserver) -> None:
        super().__init__(instance, group, settings, observer.answered)
        self._observer = observer

    async def send(self, topic: str, outgoing: Outgoing, choose: Choice | None) -> SendResult:
        """Send and record it."""
        with self._observer.sending(topic, outgoing) as stored:
            result = await super().send(topic, outgoing, choose)
            stored(result)
        return result

    async def send_oneway(self, topic: str, outgoing: Outgoing, choose: Choice | None) -> None:
        """Write the request once; a trace records only what a broker has confirmed."""
        with self._observer.sending(topic, outgoing):
            await super().send_oneway(topic, outgoing, choose)
