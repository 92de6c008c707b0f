"""Lifetimes: nurseries whose tasks end with the block, objects that live as long as one, signals that end a service.

Also calls: in parallel, because each waits for a round trip, and of the user's functions, which are coroutine functions
or plain ones that run in worker threads.
"""

import inspect
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, NoReturn, Self, TypeVar

import trio

from triomq.protocol.errors import ClientError

_T = TypeVar("_T")
_R = TypeVar("_R")
_AT_ONCE: Final = 32


@asynccontextmanager
async def open_service_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """Open a nursery whose tasks are cancelled when the block ends.

    One error, of the block or of a task, leaves as itself, not as an exception group of one; several leave as a
    group.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error: BaseException | None = group.split(trio.Cancelled)[1]
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is None or isinstance(error, BaseExceptionGroup):
            raise
        _raise_as_it_is(error)


def _raise_as_it_is(error: BaseException) -> None:
    """Raise without the group as its context, but with the context it had."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context  # no reference cycle through this frame


async def in_parallel(function: Callable[[_T], Awaitable[_R]], arguments: Iterable[_T]) -> list[_R]:
    """Call a function for each argument, up to 32 at a time; return the results in the order of the arguments.

    The first error cancels the other calls and leaves as itself.
    """
    todo = list(arguments)
    results: dict[int, _R] = {}
    numbers = iter(range(len(todo)))
    error: Exception | None = None

    async def work() -> None:
        nonlocal error
        for number in numbers:
            try:
                results[number] = await function(todo[number])
            except Exception as exc:  # noqa: BLE001  # raised below
                error = error or exc
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in todo[:_AT_ONCE]:
            nursery.start_soon(work)
    if error is not None:
        _raise_as_it_is(error)
    return [results[number] for number in range(len(todo))]


def wrong_block(client: object, library: str) -> str:
    """Return the text for a client of one API that is entered as those of another."""
    how = "blocks: use it as with" if not library else f"runs on {library}: use it as async with"
    return f"this {type(client).__name__} {how}; {_APIS}"


_APIS: Final = (
    "triomq.client is for trio, triomq.client.asyncio for asyncio, triomq.client.sync for threads and scripts"
)


@contextmanager
def stop_signals(notify: Callable[[], object]) -> Generator[None, None, None]:
    """Call ``notify`` at SIGTERM and SIGINT instead of their handlers, which return after the block.

    SIGINT stays ignored if it is, as in background jobs of shell scripts.

    Raises:
        ClientError: this is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ClientError("run() needs the main thread, which gets the signals; use the consumer as a with block here")
    numbers = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: notify()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


class OpenOnce(ABC):
    """An object that is used as ``async with`` and lives as long as the block, once."""

    _context: AbstractAsyncContextManager[None] | None = None

    @abstractmethod
    def _run(self) -> AbstractAsyncContextManager[None]:
        """Open before the block and close after it: an ``asynccontextmanager`` method."""

    def __enter__(self) -> NoReturn:
        raise ClientError(wrong_block(self, "trio"))

    __exit__ = __enter__  # else Python's error comes first

    async def __aenter__(self) -> Self:
        if not trio.lowlevel.in_trio_task():
            raise ClientError(wrong_block(self, "trio"))
        if self._context is not None:
            raise ClientError(f"a {type(self).__name__} can be entered once only: make a new one")
        self._context = self._run()
        await self._context.__aenter__()
        return self

    def __aexit__(self, *error: Any) -> Coroutine[Any, Any, bool | None]:
        assert self._context is not None
        return self._context.__aexit__(*error)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine."""
    while isinstance(function, partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004  # an object with ``async def __call__``
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def call_in_thread(function: Callable[[_T], Any], argument: _T) -> Any:
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
