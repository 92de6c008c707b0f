"""The hook that traces the calls of a handler.

Source: behaviour.md B.16, ConsumeMessageTraceHookImpl.java.
"""

from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from triomq.client.consumer.hooks import ConsumeHook, ConsumeReturnType, HookContext
from triomq.client.environment import wall_clock_ms
from triomq.client.producer.tracing import Tracer, trace_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName
from triomq.protocol.trace import ConsumeBegun, ConsumeEnded

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


def _keys(message: MessageExt) -> str:
    return " ".join(message.keys)


def _traced(context: HookContext) -> list[MessageExt]:
    return [message for message in context.messages if message.properties.get(PropertyName.TRACE_SWITCH) != "false"]
