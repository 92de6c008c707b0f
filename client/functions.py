"""The user's functions: coroutine functions, or plain ones, which run in worker threads."""

import inspect
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import trio

T = TypeVar("T")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object with ``async def __call__``
    )


async def call_in_thread(function: Callable[[T], Any], argument: T) -> Any:
    """Call a plain function in a worker thread, for a coroutine of trio or asyncio."""
    if trio.lowlevel.in_trio_task():
        return await trio.to_thread.run_sync(function, argument, abandon_on_cancel=True)
    return await _asyncio().to_thread(function, argument)


def call_anywhere(token: trio.lowlevel.TrioToken, function: Callable[[], Awaitable[None]]) -> Awaitable[None] | None:
    """Call a coroutine function of trio for a caller in trio, in asyncio or in a plain function.

    Args:
        token: of the loop in which the function runs.
        function: without arguments.

    Returns:
        An awaitable for a coroutine of trio or asyncio; ``None`` after the call for a plain function in a thread.
    """
    call = partial(trio.from_thread.run, function, trio_token=token)
    if trio.lowlevel.in_trio_task():
        is_home = trio.lowlevel.current_trio_token() is token
        return function() if is_home else trio.to_thread.run_sync(call)
    asyncio = _asyncio()
    if asyncio is None:  # a thread without a loop
        call()
        return None
    awaitable: Awaitable[None] = asyncio.to_thread(call)
    return awaitable


def is_in_asyncio() -> bool:
    """Whether this thread runs a loop of asyncio."""
    return _asyncio() is not None


def _asyncio() -> Any:
    """Return asyncio if this thread runs a loop of it; not imported here, as that takes longer than all clients."""
    module: Any = sys.modules.get("asyncio")
    try:
        if module is not None:
            module.get_running_loop()
    except RuntimeError:
        return None
    return module
