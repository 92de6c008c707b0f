"""The user's handler, for one message or a batch; hooks around it, and filters between pull and handler.

Hooks observe; they change no result.  One that raises is logged and ignored.  Without hooks they cost nothing:
they wrap the handler's function when the consumer is created.  Message trace and OpenTelemetry are such a hook, too.

Source: behaviour.md B.10 (filter hooks), B.12, B.13 (results) and B.16 (hooks around the handler);
ConsumeMessageHook.java, FilterMessageHook.java, ConsumeMessageTraceHookImpl.java, ConsumeReturnType.java.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import uuid4

from triomq.client.consumer.config import ConsumeContext, ConsumeStatus, OrderlyContext
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import is_async
from triomq.client.producer.tracing import Tracer
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.errors import ConfigError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName
from triomq.protocol.trace import ConsumeBegun, ConsumeEnded
from triomq.protocol.typed import check_callable

if TYPE_CHECKING:
    from triomq.client.telemetry import Operation, Telemetry

LOGGER: Final = logging.getLogger("triomq.client.consumer.handler")

OnMessage: TypeAlias = Callable[[MessageExt], object]
"""Handles one message: a coroutine function, or a plain function, which runs in a worker thread, or in a process."""

OnMessages: TypeAlias = (
    Callable[[list[MessageExt], ConsumeContext], object] | Callable[[list[MessageExt], OrderlyContext], object]
)
"""Handles several messages of one queue: a coroutine function, or a plain function, which runs in a worker thread.

An orderly consumer gives an ``OrderlyContext``, any other a ``ConsumeContext``.
"""


#: The warning about a handler that raised, see :meth:`Handler.failure`.
RAISED: Final = (
    "handler raised group=%s topic=%s queue_id=%d offset=%d message_id=%s reconsume_times=%d messages=%d next=%s"
)
#: What happens to messages whose call raised.
COME_LATER: Final = "they come again after a delay, too often failed ones become dead letters"
BLOCK_THEIR_QUEUE: Final = "their queue pauses, then they come again"
ARE_GONE: Final = "they do not come again"


class Handler(NamedTuple):
    """A handler, what kind it is, the group whose messages it handles, and what follows when it raises."""

    function: Callable[..., Any]
    takes_batch: bool
    is_async: bool
    group: str = ""
    after_failure: str = COME_LATER

    @classmethod
    def of(
        cls,
        on_message: OnMessage | None,
        on_messages: OnMessages | None,
        group: str = "",
        after_failure: str = COME_LATER,
    ) -> "Handler":
        """Return the handler that is given.

        Raises:
            ConfigError: both or none, or as WrongTypeError something that cannot be called or takes other arguments.
        """
        if (on_message is None) == (on_messages is None):
            raise ConfigError("handler: give either on_message or on_messages")
        function: Any = on_message if on_messages is None else on_messages
        wanted = ("message",) if on_messages is None else ("messages", "context")
        check_callable("on_message" if on_messages is None else "on_messages", function, *wanted)
        return cls(function, on_messages is not None, is_async(function), group, after_failure)

    def with_hooks(self, hooks: "Sequence[ConsumeHook]", timeout_s: float, *, orderly: bool) -> "Handler":
        """Return the handler with hooks around it."""
        if not hooks:
            return self
        around = _Around(tuple(hooks), timeout_s, orderly, self)
        return self._replace(function=around.call_async if self.is_async else around.call)

    def failure(self, messages: Sequence[MessageExt]) -> tuple[object, ...]:
        """Return the arguments of :data:`RAISED` for messages whose call of the handler raised."""
        first = messages[0]
        place = self.group, first.topic, first.queue_id, first.queue_offset
        return *place, first.message_id, first.reconsume_times, len(messages), self.after_failure


def status_of(result: object) -> ConsumeStatus:
    """Return the status that a handler's result means: any value but a status consumes the messages, as ``None`` does.

    Raises:
        TypeError: the result is awaitable, so the handler has not run to its end.
    """
    if isinstance(result, ConsumeStatus):
        return result
    if result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that it was never awaited, far from here
        raise TypeError(f"handler returned {result!r:.80}, which nothing awaits: await it in an async def handler")
    return ConsumeStatus.SUCCESS


def is_success(result: object) -> bool:
    """Whether a handler's result consumes its messages; raises as :func:`status_of`."""
    return status_of(result) in _SUCCESSES


def orderly_status(result: object) -> ConsumeStatus:
    """Return the status that a handler's result means in orderly consumption; raises as :func:`status_of`."""
    status = status_of(result)
    return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if status is ConsumeStatus.RECONSUME_LATER else status


_SUCCESSES: Final = frozenset((ConsumeStatus.SUCCESS, ConsumeStatus.COMMIT))

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


@dataclass(frozen=True, slots=True)
class _Around:
    """A handler's function between its hooks."""

    hooks: tuple[ConsumeHook, ...]
    timeout_s: float
    orderly: bool
    handler: Handler

    async def call_async(self, *arguments: Any) -> object:
        with self._observed(arguments[0]) as context:
            context.result = await self.handler.function(*arguments)
        return context.result

    def call(self, *arguments: Any) -> object:
        with self._observed(arguments[0]) as context:
            context.result = self.handler.function(*arguments)
        return context.result

    @contextmanager
    def _observed(self, messages: Any) -> Iterator[HookContext]:
        context = HookContext(self.handler.group, tuple(messages) if self.handler.takes_batch else (messages,))
        for hook in self.hooks:
            _run(hook.before, context)
        started = perf_counter()
        try:
            yield context
            succeeded = is_success(context.result) or (self.orderly and context.result is ConsumeStatus.ROLLBACK)
            context.took_s = perf_counter() - started
            if context.took_s >= self.timeout_s:
                context.return_type = ConsumeReturnType.TIME_OUT
            else:
                context.return_type = ConsumeReturnType.SUCCESS if succeeded else ConsumeReturnType.FAILED
        except Exception as exc:
            context.took_s = perf_counter() - started
            context.return_type, context.result, context.error = ConsumeReturnType.EXCEPTION, None, exc
            raise
        except BaseException:
            for hook in self.hooks:
                _run(hook.abandoned, context)
            raise
        finally:
            if context.return_type is not None:
                for hook in self.hooks:
                    _run(hook.after, context)


def _run(hook: Callable[[HookContext], None], context: HookContext) -> None:
    try:
        hook(context)
    except Exception:  # boundary: foreign code may raise anything
        LOGGER.exception("consume hook failed messages=%d", len(context.messages))


_CODES: Final = {kind: number for number, kind in enumerate(ConsumeReturnType)}


class ConsumeObserver(ConsumeHook):
    """Records how a consumer handles its messages: in a trace, as operations of OpenTelemetry, or both."""

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
        self._trace_begun(context)

    def after(self, context: HookContext) -> None:
        """Record how the call ended."""
        is_success = context.return_type is ConsumeReturnType.SUCCESS
        if context.operation is not None and context.return_type is not None:
            context.operation.end(None if is_success else context.error or context.return_type.name)
        self._trace_ended(context)

    def abandoned(self, context: HookContext) -> None:
        """Record that the handler was cancelled."""
        if context.operation is not None:
            context.operation.end("Cancelled")

    def polled(self, group: str, messages: Sequence[MessageExt]) -> None:
        """Record messages that the user polled: they count as consumed, because their handling cannot be seen."""
        context = HookContext(group, messages, ConsumeReturnType.SUCCESS)
        self._trace_begun(context)
        self._trace_ended(context)
        if self._telemetry is not None:
            self._telemetry.consuming("receive", group, self._model, messages).end()

    def _trace_begun(self, context: HookContext) -> None:
        if self._tracer is None:
            return
        context.trace_id = trace_id = uuid4().hex.upper()
        now_ms, group = wall_clock_ms(), context.group
        for message in _traced(context):
            region, keys = message.properties.get(PropertyName.MSG_REGION, ""), " ".join(message.keys)
            begun = ConsumeBegun(now_ms, region, group, trace_id, message.message_id, message.reconsume_times, keys)
            self._tracer.put(begun)

    def _trace_ended(self, context: HookContext) -> None:
        if self._tracer is None or context.return_type is None or not context.trace_id:
            return
        now_ms, group, trace_id = wall_clock_ms(), context.group, context.trace_id
        is_success, code = context.return_type is ConsumeReturnType.SUCCESS, _CODES[context.return_type]
        messages = _traced(context)
        for message in messages:
            took_ms, keys = round(context.took_s * 1000 / len(messages)), " ".join(message.keys)
            ended = ConsumeEnded(trace_id, message.message_id, took_ms, is_success, keys, code, now_ms, group)
            self._tracer.put(ended)


def _traced(context: HookContext) -> list[MessageExt]:
    return [message for message in context.messages if message.properties.get(PropertyName.TRACE_SWITCH) != "false"]
