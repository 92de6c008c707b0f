"""The hooks that trace the calls of a handler: in RocketMQ's format, and with OpenTelemetry.

Source: behaviour.md B.16, ConsumeMessageTraceHookImpl.java.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from triomq.client.consumer.hooks import ConsumeHook, ConsumeReturnType, HookContext
from triomq.client.environment import wall_clock_ms
from triomq.client.producer.tracing import Tracer, trace_topic
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName
from triomq.protocol.trace import ConsumeBegun, ConsumeEnded

if TYPE_CHECKING:
    from triomq.client.telemetry import Telemetry

_CODES: Final = {kind: number for number, kind in enumerate(ConsumeReturnType)}


class TraceHook(ConsumeHook):
    """Records each message that a handler gets, and how its handling ended.

    Attributes:
        topic: where the records go; ``None``: nothing is recorded.
        tracer: takes the records; ``None`` while the consumer is not open.
    """

    def __init__(self, trace: bool | str) -> None:
        """Take the ``trace`` of a client."""
        self.topic: Final = trace_topic(trace)
        self.tracer: Tracer | None = None

    def join(self, hooks: Sequence[ConsumeHook]) -> Sequence[ConsumeHook]:
        """Return the hooks with this one, if it records."""
        return hooks if self.topic is None else (*hooks, self)

    def before(self, context: HookContext) -> None:
        """Record that the handler is called."""
        if self.tracer is None:
            return
        request_id = context.trace_id = uuid4().hex.upper()
        for message in _traced(context):
            self.tracer.put(
                ConsumeBegun(
                    wall_clock_ms(),
                    message.properties.get(PropertyName.MSG_REGION, ""),
                    context.group,
                    request_id,
                    message.message_id,
                    message.reconsume_times,
                    _keys(message),
                )
            )

    def after(self, context: HookContext) -> None:
        """Record how it ended."""
        if self.tracer is None or not context.trace_id:
            return
        messages = _traced(context)
        is_success = context.return_type is ConsumeReturnType.SUCCESS
        for message in messages:
            self.tracer.put(
                ConsumeEnded(
                    context.trace_id,
                    message.message_id,
                    round(context.took_s * 1000 / len(messages)),
                    is_success,
                    _keys(message),
                    _CODES[context.return_type or ConsumeReturnType.SUCCESS],
                    wall_clock_ms(),
                    context.group,
                )
            )

    def polled(self, group: str, messages: Sequence[MessageExt]) -> None:
        """Record messages that the user polled: they are handled out of sight, so they count as consumed."""
        if self.tracer is None:
            return
        context = HookContext(group, messages, ConsumeReturnType.SUCCESS)
        self.before(context)
        self.after(context)


class TelemetryHook(ConsumeHook):
    """Makes each call of a handler an operation of OpenTelemetry, to which all belongs that the handler does."""

    def __init__(self, telemetry: "Telemetry", model: MessageModel) -> None:
        self._telemetry = telemetry
        self._model = model.value.lower()

    def before(self, context: HookContext) -> None:
        """Begin it."""
        context.operation = self._telemetry.consuming("process", context.group, self._model, context.messages)
        context.operation.make_current()

    def after(self, context: HookContext) -> None:
        """End it."""
        if context.operation is not None and context.return_type is not None:
            is_success = context.return_type is ConsumeReturnType.SUCCESS
            context.operation.end(None if is_success else context.error or context.return_type.name)

    def abandoned(self, context: HookContext) -> None:
        """End it as well."""
        if context.operation is not None:
            context.operation.end("Cancelled")


def _keys(message: MessageExt) -> str:
    return " ".join(message.keys)


def _traced(context: HookContext) -> list[MessageExt]:
    return [message for message in context.messages if message.properties.get(PropertyName.TRACE_SWITCH) != "false"]
