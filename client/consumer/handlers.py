"""The user's handler: for one message or a batch, a coroutine function or a plain function.

Source: behaviour.md B.12, B.13 (what a result means).
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from triomq.client.consumer.config import ConsumeContext, ConsumeStatus, OrderlyContext
from triomq.client.nursery import is_async
from triomq.protocol.errors import ConfigError, ProtocolError, UnsupportedCompressionError
from triomq.protocol.record.message import MessageExt
from triomq.protocol.typed import check_callable

LOGGER: Final = logging.getLogger("triomq.client.consumer.handler")

OnMessage: TypeAlias = Callable[[MessageExt], Awaitable[object]] | Callable[[MessageExt], object]
"""Handles one message; a plain function runs in a worker thread, or in a process."""

OnMessages: TypeAlias = (
    Callable[[list[MessageExt], ConsumeContext], Awaitable[object]]
    | Callable[[list[MessageExt], ConsumeContext], object]
    | Callable[[list[MessageExt], OrderlyContext], Awaitable[object]]
    | Callable[[list[MessageExt], OrderlyContext], object]
)
"""Handles several messages of one queue; a plain function runs in a worker thread.

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


#: The error about messages that no handler can read here.
HELD: Final = "messages are held until a package is installed: %s group=%s topic=%s queue_id=%d offset=%d messages=%d"


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

    def failure(self, messages: Sequence[MessageExt]) -> tuple[object, ...]:
        """Return the arguments of :data:`RAISED` for messages whose call of the handler raised."""
        first = messages[0]
        place = self.group, first.topic, first.queue_id, first.queue_offset
        return *place, first.message_id, first.reconsume_times, len(messages), self.after_failure

    def held(self, messages: Sequence[MessageExt], error: UnsupportedCompressionError) -> tuple[object, ...]:
        """Return the arguments of :data:`HELD` for messages whose call failed, one of which has this error."""
        first = messages[0]
        return error, self.group, first.topic, first.queue_id, first.queue_offset, len(messages)

    def log_blocked_loop(self, blocked_s: float, messages: Sequence[MessageExt]) -> None:
        """Log that the handler kept the event loop from running anything else."""
        LOGGER.warning(
            "handler blocked the event loop: nothing else could run for about %.1f s; call blocking code by "
            "trio.to_thread.run_sync, or use a plain function as handler, which runs in a thread group=%s topic=%s "
            "message_id=%s",
            blocked_s,
            self.group,
            messages[0].topic,
            messages[0].message_id,
        )


def missing_package(messages: Sequence[MessageExt]) -> UnsupportedCompressionError | None:
    """Return the error of a body whose compression needs a package that is not installed; ``None``: all can be read."""
    for message in messages:
        try:
            _ = message.body
        except UnsupportedCompressionError as exc:
            return exc
        except ProtocolError:
            continue
    return None


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
