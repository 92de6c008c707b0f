"""The user's handler: for one message or a batch, a coroutine function or a plain function.

Source: behaviour.md B.12, B.13 (what a result means).
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from triomq.client.consumer.config import ConsumeContext, ConsumeStatus, OrderlyContext
from triomq.client.functions import is_async
from triomq.protocol.errors import ConfigError
from triomq.protocol.record.message import MessageExt

LOGGER: Final = logging.getLogger("triomq.client.consumer.handler")

Status: TypeAlias = ConsumeStatus | None
"""``None`` is success."""

OnMessage: TypeAlias = Callable[[MessageExt], Awaitable[Status]] | Callable[[MessageExt], Status]
"""Handles one message; a plain function runs in a worker thread, or in a process."""

OnMessages: TypeAlias = (
    Callable[[list[MessageExt], ConsumeContext], Awaitable[Status]]
    | Callable[[list[MessageExt], ConsumeContext], Status]
    | Callable[[list[MessageExt], OrderlyContext], Awaitable[Status]]
    | Callable[[list[MessageExt], OrderlyContext], Status]
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
            ConfigError: both, none, or something that cannot be called.
        """
        if (on_message is None) == (on_messages is None):
            raise ConfigError("handler: give either on_message or on_messages")
        function = on_message if on_messages is None else on_messages
        if not callable(function):
            raise ConfigError(f"handler: {function!r} cannot be called")
        return cls(function, on_messages is not None, is_async(function), group, after_failure)

    def failure(self, messages: Sequence[MessageExt]) -> tuple[object, ...]:
        """Return the arguments of :data:`RAISED` for messages whose call of the handler raised."""
        first = messages[0]
        place = self.group, first.topic, first.queue_id, first.queue_offset
        return *place, first.message_id, first.reconsume_times, len(messages), self.after_failure

    def log_blocked_loop(self, blocked_s: float, messages: Sequence[MessageExt]) -> None:
        """Log that the handler kept the event loop from running anything else."""
        LOGGER.warning(
            "handler blocked the event loop: nothing else could run for about %.1f s; call blocking code by "
            "trio.to_thread.run_sync, or use a plain function as handler, which runs in a thread group=%s topic=%s "
            "message_id=%s",
            *(blocked_s, self.group, messages[0].topic, messages[0].message_id),
        )


def is_success(status: object) -> bool:
    """Whether a handler's result consumes its messages; a value that is no status does not.

    Such a value is logged: most likely the handler returned ``True`` or lacks an ``await``.
    """
    if status is None or status is ConsumeStatus.SUCCESS:
        return True
    if status is not ConsumeStatus.RECONSUME_LATER:
        _complain(status)
    return False


def orderly_status(status: object) -> ConsumeStatus:
    """Return the status that a handler's result means in orderly consumption; a value that is no status fails."""
    if status is None:
        return ConsumeStatus.SUCCESS
    if isinstance(status, ConsumeStatus) and status is not ConsumeStatus.RECONSUME_LATER:
        return status
    if status is not ConsumeStatus.RECONSUME_LATER:
        _complain(status)
    return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


def _complain(status: object) -> None:
    if inspect.iscoroutine(status):
        status.close()  # else Python warns that it was never awaited, far from here
    LOGGER.error("handler returned no status, its messages will be redelivered result=%r", status)
