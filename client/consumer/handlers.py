"""The user's handler: one message or a batch, a coroutine function or a plain one.

Source: behaviour.md B.12, B.13 (what a result means).
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from triomq.client.consumer.config import ConsumeContext, ConsumeStatus, OrderlyContext
from triomq.protocol.errors import ConfigError
from triomq.protocol.record.message import MessageExt

LOGGER: Final = logging.getLogger("triomq.client.consumer.handler")

Status: TypeAlias = ConsumeStatus | None
"""``None`` is success."""

OnMessage: TypeAlias = Callable[[MessageExt], Awaitable[Status]] | Callable[[MessageExt], Status]
"""Handles one message; a plain function runs in a worker thread."""

OnMessages: TypeAlias = (
    Callable[[list[MessageExt], ConsumeContext], Awaitable[Status]]
    | Callable[[list[MessageExt], ConsumeContext], Status]
    | Callable[[list[MessageExt], OrderlyContext], Awaitable[Status]]
    | Callable[[list[MessageExt], OrderlyContext], Status]
)
"""Handles several messages of one queue; a plain function runs in a worker thread.

An orderly consumer gives an ``OrderlyContext``, any other a ``ConsumeContext``.
"""


class Handler(NamedTuple):
    """A handler and what kind it is."""

    function: Callable[..., Any]
    takes_batch: bool
    is_async: bool

    @classmethod
    def of(cls, on_message: OnMessage | None, on_messages: OnMessages | None) -> "Handler":
        """Take the one that is given.

        Raises:
            ConfigError: both, none, or something that cannot be called.
        """
        if (on_message is None) == (on_messages is None):
            raise ConfigError("handler: give either on_message or on_messages")
        function = on_message if on_messages is None else on_messages
        if not callable(function):
            raise ConfigError(f"handler: {function!r} cannot be called")
        return cls(function, on_messages is not None, is_async(function))


def is_success(status: object) -> bool:
    """Whether a handler's result means that its messages are consumed; what is no status does not.

    A strange result is logged: most likely somebody returned ``True`` or forgot an ``await``.
    """
    if status is None or status is ConsumeStatus.SUCCESS:
        return True
    if status is not ConsumeStatus.RECONSUME_LATER:
        _complain(status)
    return False


def orderly_status(status: object) -> ConsumeStatus:
    """Return what a handler's result means in orderly consumption; what is no status: the messages come again."""
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
    LOGGER.error("handler returned %r, which is no status here, so its messages come again", status)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object with ``async def __call__``
    )
