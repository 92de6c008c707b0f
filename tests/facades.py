"""The trio, blocking and asyncio clients, all used from trio, so that one suite tests all three facades.

The classes imported from here create clients of the facade that :func:`use_facade` names, by default of trio.  Handlers
are coroutine functions that run in the test's trio loop, wherever the facade calls them.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import trio

import triomq.client
from triomq.client import Message, Transaction
from triomq.client import asyncio as asyncio_facade
from triomq.client import sync as sync_facade
from triomq.client.nursery import is_async

FACADES: Final = ("trio", "sync", "asyncio")


class Carrier(Protocol):
    """Carries calls from trio to a facade, and calls of handlers back to trio."""

    facade: Any

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any: ...

    def wrap(self, handler: Callable[..., Awaitable[Any]], token: trio.lowlevel.TrioToken) -> Callable[..., Any]: ...


class SyncCarrier:
    """Calls in worker threads; handlers are plain functions."""

    facade: Any = sync_facade

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await trio.to_thread.run_sync(partial(function, *args, **kwargs), abandon_on_cancel=True)

    def wrap(self, handler: Callable[..., Awaitable[Any]], token: trio.lowlevel.TrioToken) -> Callable[..., Any]:
        return lambda *args: trio.from_thread.run(handler, *args, trio_token=token)


class AsyncioCarrier:
    """Calls in an asyncio loop in a thread; handlers are coroutine functions in that loop."""

    facade: Any = asyncio_facade

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        token, done = trio.lowlevel.current_trio_token(), trio.Event()
        future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)
        future.add_done_callback(lambda _: token.run_sync_soon(done.set))
        try:
            await done.wait()
        except trio.Cancelled:
            future.cancel()
            raise
        return future.result()

    def wrap(self, handler: Callable[..., Awaitable[Any]], token: trio.lowlevel.TrioToken) -> Callable[..., Any]:
        async def wrapped(*args: Any) -> Any:
            return await asyncio.to_thread(trio.from_thread.run, handler, *args, trio_token=token)

        return wrapped


_carrier: ContextVar[Carrier | None] = ContextVar("carrier", default=None)


@contextmanager
def use_facade(name: str) -> Iterator[None]:
    """Create clients of this facade in the block."""
    if name == "trio":
        yield
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    before = _carrier.set(SyncCarrier() if name == "sync" else AsyncioCarrier(loop))
    try:
        yield
    finally:
        _carrier.reset(before)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


class Carried:
    """A client of another facade, as a trio client."""

    def __init__(self, kind: str, carrier: Carrier, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._trio_class = getattr(triomq.client, kind)
        self._carrier = carrier
        for name in ("on_message", "on_messages", "check"):
            handler = kwargs.get(name)
            if handler is not None and is_async(handler):
                kwargs = {**kwargs, name: carrier.wrap(handler, trio.lowlevel.current_trio_token())}
        self._target = getattr(carrier.facade, kind)(*args, **kwargs)
        self._is_asyncio = isinstance(carrier, AsyncioCarrier)

    async def __aenter__(self) -> Self:
        await self._carrier.call(self._target.__aenter__ if self._is_asyncio else self._target.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        leave = self._target.__aexit__ if self._is_asyncio else self._target.__exit__
        with trio.CancelScope(shield=True):
            await self._carrier.call(leave, None, None, None)

    @asynccontextmanager
    async def transaction(self, message: Message) -> AsyncGenerator[Transaction]:
        """Enter the facade's block, and leave it with the error that leaves this one."""
        block = self._target.transaction(message)
        enter = block.__aenter__ if self._is_asyncio else block.__enter__
        leave = block.__aexit__ if self._is_asyncio else block.__exit__
        transaction = await self._carrier.call(enter)
        try:
            yield transaction
        except ValueError as exc:
            with suppress(ValueError):
                await self._carrier.call(leave, ValueError, exc, exc.__traceback__)
            raise
        await self._carrier.call(leave, None, None, None)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        if not inspect.iscoroutinefunction(getattr(self._trio_class, name, None)):
            return partial(_in_a_thread, method)

        def call(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
            token = trio.lowlevel.current_trio_token()
            carried = (self._carrier.wrap(arg, token) if callable(arg) and is_async(arg) else arg for arg in args)
            return self._carrier.call(method, *carried, **kwargs)

        return call


def _in_a_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a blocking function of a facade in a thread: trio does not allow it in its own."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *args, **kwargs).result()


if TYPE_CHECKING:
    from triomq.client import Admin, LitePullConsumer, Producer, PullConsumer, PushConsumer, TransactionProducer
else:

    def _maker(kind: str) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            carrier = _carrier.get()
            if carrier is None:
                return getattr(triomq.client, kind)(*args, **kwargs)
            return Carried(kind, carrier, args, kwargs)

        return make

    Admin = _maker("Admin")
    LitePullConsumer = _maker("LitePullConsumer")
    Producer = _maker("Producer")
    PullConsumer = _maker("PullConsumer")
    PushConsumer = _maker("PushConsumer")
    TransactionProducer = _maker("TransactionProducer")

__all__ = [
    "FACADES",
    "Admin",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "TransactionProducer",
    "use_facade",
]
