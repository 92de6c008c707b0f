"""Hooks around the handler, and filters between pull and handler: for traces and metrics.

Hooks observe; they change no result.  One that raises is logged and ignored.  Without hooks they cost nothing:
they wrap the handler's function when the consumer is created.  Message trace and OpenTelemetry are such a hook, too.

Source: behaviour.md B.10 (filter hooks), B.12, B.13 and B.16 (hooks around the handler); ConsumeMessageHook.java,
FilterMessageHook.java, ConsumeMessageTraceHookImpl.java, ConsumeReturnType.java.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from triomq.client.consumer.config import ConsumeStatus
from triomq.client.consumer.handlers import Handler, status_of
from triomq.client.environment import wall_clock_ms
from triomq.client.producer.tracing import Tracer
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName
from triomq.protocol.trace import ConsumeBegun, ConsumeEnded

if TYPE_CHECKING:
    from triomq.client.telemetry import Operation, Telemetry

LOGGER: Final = logging.getLogger("triomq.client.consumer.hooks")

FilterHook: TypeAlias = Callable[[MessageQueue, list[MessageExt]], Iterable[MessageExt]]
"""Returns which of the messages of one pull to handle, in their order; runs in the trio thread."""


class ConsumeReturnType(Enum):
    """How a call of the handler ended.  Source: ConsumeReturnType.java."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"  # it took ``consume_timeout_s`` or longer; its result is still valid
    EXCEPTION = "EXCEPTION"
    RETURNNULL = "RETURNNULL"  # Java's clients only: here any value that is no status means success
    FAILED = "FAILED"  # the messages are redelivered


@dataclass(slots=True)
class HookContext:
    """One call of the handler, as its hooks see it.

    Attributes:
        group: the consumer's group.
        messages: what the handler gets.
        return_type: how it ended; ``None`` before.
        result: its return value.
        error: the exception that it raised.
        took_s: how long it ran.
        note: for the hooks themselves, for example from ``before`` to ``after``.
        trace_id: the id of this call in traces; "" without them.
        operation: this call in OpenTelemetry; ``None`` without it.
    """

    group: str
    messages: Sequence[MessageExt]
    return_type: ConsumeReturnType | None = None
    result: object = None
    error: Exception | None = None
    took_s: float = 0.0
    note: object = None
    trace_id: str = ""
    operation: "Operation | None" = None


class ConsumeHook:
    """Called before and after the handler, in the thread where that runs.

    Override what you need.  A handler that is cancelled because the consumer ends gets ``abandoned`` instead of
    ``after``.
    """

    def before(self, context: HookContext) -> None:
        """Do something before the handler is called."""

    def after(self, context: HookContext) -> None:
        """Do something when the handler has returned or raised."""

    def abandoned(self, context: HookContext) -> None:
        """Do something when the handler was cancelled."""


def choose(filters: Sequence[FilterHook], queue: MessageQueue, messages: list[MessageExt]) -> list[MessageExt]:
    """Return the messages that all filters keep; one that raises keeps all."""
    for function in filters:
        try:
            kept = {message.queue_offset for message in function(queue, list(messages))}
        except Exception:  # boundary: foreign code may raise anything
            LOGGER.exception("filter hook failed, its messages are kept queue=%s messages=%d", queue, len(messages))
        else:
            messages = [message for message in messages if message.queue_offset in kept]
    return messages


def with_hooks(
    handler: Handler, hooks: Sequence[ConsumeHook], group: str, timeout_s: float, *, orderly: bool
) -> Handler:
    """Return the handler with its hooks around it."""
    if not hooks:
        return handler
    around = _Around(tuple(hooks), group, timeout_s, _ORDERLY if orderly else _CONCURRENT, handler)
    return handler._replace(function=around.call_async if handler.is_async else around.call)


_ReturnTypes: TypeAlias = dict[ConsumeStatus, ConsumeReturnType]
_CONCURRENT: Final[_ReturnTypes] = {
    ConsumeStatus.SUCCESS: ConsumeReturnType.SUCCESS,
    ConsumeStatus.RECONSUME_LATER: ConsumeReturnType.FAILED,
    ConsumeStatus.COMMIT: ConsumeReturnType.SUCCESS,
    ConsumeStatus.ROLLBACK: ConsumeReturnType.FAILED,
    ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: ConsumeReturnType.FAILED,
}
_ORDERLY: Final[_ReturnTypes] = _CONCURRENT | {ConsumeStatus.ROLLBACK: ConsumeReturnType.SUCCESS}


@dataclass(frozen=True, slots=True)
class _Around:
    """A handler's function between its hooks."""

    hooks: tuple[ConsumeHook, ...]
    group: str
    timeout_s: float
    return_types: _ReturnTypes
    handler: Handler

    async def call_async(self, *arguments: Any) -> object:
        context, started = self._begin(arguments[0])
        try:
            result = await self.handler.function(*arguments)
            status = status_of(result)
        except Exception as exc:
            self._end(context, started, ConsumeReturnType.EXCEPTION, error=exc)
            raise
        except BaseException:
            for hook in self.hooks:
                _run(hook.abandoned, context)
            raise
        self._end(context, started, self.return_types[status], result)
        return result

    def call(self, *arguments: Any) -> object:
        context, started = self._begin(arguments[0])
        try:
            result = self.handler.function(*arguments)
            status = status_of(result)
        except Exception as exc:
            self._end(context, started, ConsumeReturnType.EXCEPTION, error=exc)
            raise
        self._end(context, started, self.return_types[status], result)
        return result

    def _begin(self, messages: Any) -> tuple[HookContext, float]:
        context = HookContext(self.group, tuple(messages) if self.handler.takes_batch else (messages,))
        for hook in self.hooks:
            _run(hook.before, context)
        return context, perf_counter()

    def _end(
        self,
        context: HookContext,
        started: float,
        return_type: ConsumeReturnType,
        result: object = None,
        error: Exception | None = None,
    ) -> None:
        context.took_s = perf_counter() - started
        context.result, context.error = result, error
        is_late = context.took_s >= self.timeout_s and error is None
        context.return_type = ConsumeReturnType.TIME_OUT if is_late else return_type
        for hook in self.hooks:
            _run(hook.after, context)


def _run(hook: Callable[[HookContext], None], context: HookContext) -> None:
    try:
        hook(context)
    except Exception:  # boundary: foreign code may raise anything
        LOGGER.exception("consume hook failed messages=%d", len(context.messages))


_CODES: Final = {kind: number for number, kind in enumerate(ConsumeReturnType)}


class ConsumeObserver(ConsumeHook):
    """Records what a consumer does with its messages: in a trace, as operations of OpenTelemetry, or both."""

    def __init__(self, tracer: Tracer | None, telemetry: "Telemetry | None", model: MessageModel) -> None:
        self._tracer = tracer
        self._telemetry = telemetry
        self._model = model.value.lower()

    def join(self, hooks: Sequence[ConsumeHook]) -> Sequence[ConsumeHook]:
        """Return the hooks, after this one if it records anything."""
        return hooks if self._tracer is None and self._telemetry is None else (self, *hooks)

    def before(self, context: HookContext) -> None:
        """Record that the handler is called; its own spans become children of the operation."""
        if self._telemetry is not None:
            context.operation = self._telemetry.consuming("process", context.group, self._model, context.messages)
            context.operation.make_current()
        if self._tracer is not None:
            self._trace_begun(self._tracer, context)

    def after(self, context: HookContext) -> None:
        """Record how the call ended."""
        is_success = context.return_type is ConsumeReturnType.SUCCESS
        if context.operation is not None and context.return_type is not None:
            context.operation.end(None if is_success else context.error or context.return_type.name)
        if self._tracer is not None and context.trace_id:
            self._trace_ended(self._tracer, context, is_success)

    def abandoned(self, context: HookContext) -> None:
        """Record that the handler was cancelled."""
        if context.operation is not None:
            context.operation.end("Cancelled")

    def polled(self, group: str, messages: Sequence[MessageExt]) -> None:
        """Record messages that the user polled: they count as consumed, because their handling cannot be seen."""
        if self._tracer is not None:
            context = HookContext(group, messages, ConsumeReturnType.SUCCESS)
            self._trace_begun(self._tracer, context)
            self._trace_ended(self._tracer, context, is_success=True)
        if self._telemetry is not None:
            self._telemetry.consuming("receive", group, self._model, messages).end()

    def _trace_begun(self, tracer: Tracer, context: HookContext) -> None:
        request_id = context.trace_id = uuid4().hex.upper()
        for message in _traced(context):
            tracer.put(
                ConsumeBegun(
                    wall_clock_ms(),
                    message.properties.get(PropertyName.MSG_REGION, ""),
                    context.group,
                    request_id,
                    message.message_id,
                    message.reconsume_times,
                    " ".join(message.keys),
                )
            )

    def _trace_ended(self, tracer: Tracer, context: HookContext, is_success: bool) -> None:
        messages = _traced(context)
        for message in messages:
            tracer.put(
                ConsumeEnded(
                    context.trace_id,
                    message.message_id,
                    round(context.took_s * 1000 / len(messages)),
                    is_success,
                    " ".join(message.keys),
                    _CODES[context.return_type or ConsumeReturnType.SUCCESS],
                    wall_clock_ms(),
                    context.group,
                )
            )


def _traced(context: HookContext) -> list[MessageExt]:
    return [message for message in context.messages if message.properties.get(PropertyName.TRACE_SWITCH) != "false"]
