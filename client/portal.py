"""trio in a background thread, for callers outside trio, and facades whose methods call clients there.

One thread serves all such clients of the process.  Logic is written once, in the trio classes; ``sync.py`` and
``asyncio.py`` have one line for each method.

Rules: a context is entered and left in the same task; Ctrl-C in a caller cancels the call it waits for; a forked
child never waits for the parent's thread.
"""

import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import trio

from triomq.client.nursery import wrong_block
from triomq.protocol.errors import ClientClosedError, ClientError

P = ParamSpec("P")
T = TypeVar("T")
#: How long a cancelled client may take to unregister from its brokers.
_FINAL_GRACE_S: Final = 1.0


class HeldContext(Generic[T]):
    """An asynchronous context manager that a task of the portal keeps entered."""

    def __init__(self, target: AbstractAsyncContextManager[T]) -> None:
        self._target = target
        self._scope = trio.CancelScope()
        self._ready = trio.Event()
        self._leave = trio.Event()
        self._gone = trio.Event()
        self._error: BaseException | None = None
        self._entered: list[T] = []

    async def host(self) -> None:
        """Enter, wait for :meth:`leave`, and leave: the body of the task."""
        try:
            with self._scope:
                async with self._target as entered:
                    self._entered.append(entered)
                    self._ready.set()
                    await self._leave.wait()
        except trio.Cancelled:
            raise
        except BaseException as exc:  # noqa: BLE001  # boundary: passed on to the caller that waits; sys.exit() too
            self._error = exc
        finally:
            self._ready.set()
            self._gone.set()

    async def enter(self, nursery: trio.Nursery) -> T:
        """Start :meth:`host` and return the value of the context manager."""
        nursery.start_soon(self.host)
        try:
            await self._ready.wait()
        except trio.Cancelled:
            self._scope.cancel()
            raise
        if not self._entered:
            raise self._error or ClientClosedError("the client was closed while it was being opened")
        return self._entered[0]

    async def leave(self) -> None:
        """End :meth:`host`, and raise the error that ended it, if any."""
        self._leave.set()
        try:
            await self._gone.wait()
        except trio.Cancelled:
            self._scope.cancel()
            with trio.move_on_after(_FINAL_GRACE_S, shield=True):
                await self._gone.wait()
            raise
        if self._error is not None:
            raise self._error

    def check(self) -> None:
        """Check that the context is still entered.

        Raises:
            ClientClosedError: it failed; the cause is its error.
        """
        if self._gone.is_set():
            raise ClientClosedError(f"the client ended with an error: {self._error!r}") from self._error

    async def wait(self) -> None:
        """Wait until the context ends, and raise the error that ended it, if any."""
        await self._gone.wait()
        if self._error is not None:
            raise self._error


class Call(Generic[T]):
    """A function that runs in the portal's thread, and may be cancelled from another.

    Attributes:
        future: the result; it is never cancelled, so it is done only when the function has ended.
    """

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.future: Future[T] = Future()
        self._token = token
        self._scope = trio.CancelScope()

    def cancel(self) -> None:
        """Cancel the function; ``future`` is done once it has ended."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)

    async def run(self, function: Callable[[], Awaitable[T]]) -> None:
        """Run the function and set the future: the body of the task."""
        try:
            with self._scope:
                self.future.set_result(await function())
        except trio.Cancelled:
            raise
        except BaseException as exc:  # noqa: BLE001  # boundary: passed on through the future
            self.future.set_exception(exc)
        finally:
            if not self.future.done():  # cancelled, or the thread ends
                self.future.set_exception(ClientClosedError("interrupted"))


class Portal:
    """The background thread; it counts its users and ends with the last.

    Raises:
        ClientError: it cannot start.
    """

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.users = 0
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._stop: trio.Event
        self._started = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="triomq", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise ClientError(f"the client's thread cannot start: {self._failure}") from self._failure

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except OSError as exc:
            if self._started.is_set():
                raise
            self._failure = exc  # most likely the limit of open files
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        async with trio.open_nursery() as self._nursery:
            self._started.set()
            await self._stop.wait()
            self._nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """End the thread and wait for it."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    async def open(self, held: HeldContext[T]) -> T:
        """Enter a context; for :meth:`call` and :meth:`submit`."""
        return await held.enter(self._nursery)

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an asynchronous function in the thread and wait for its result.

        Raises:
            ClientClosedError: this is a fork of the process that opened it, or the thread has ended.
        """
        self._check_process()
        scope = trio.CancelScope()

        async def run() -> T:
            try:
                with scope:
                    return await function(*args, **kwargs)
            except trio.Cancelled:  # the thread ends: the last client was closed meanwhile
                raise ClientClosedError("the client was closed") from None  # noqa: ASYNC104
            raise ClientClosedError("interrupted")  # the caller has given up

        try:
            return trio.from_thread.run(run, trio_token=self._token)
        except trio.RunFinishedError:
            raise ClientClosedError("the client was closed") from None
        except KeyboardInterrupt:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(scope.cancel)
            raise

    def submit(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> "Call[T]":
        """Start an asynchronous function in the thread, with the context variables of the caller.

        Raises:
            ClientClosedError: this is a fork of the process that opened it, or the thread has ended.
        """
        self._check_process()
        call = Call[T](self._token)
        run = partial(call.run, partial(function, *args, **kwargs))
        try:
            self._token.run_sync_soon(partial(trio.lowlevel.spawn_system_task, run, context=contextvars.copy_context()))
        except trio.RunFinishedError:
            raise ClientClosedError("the client was closed") from None
        return call

    def call_plain(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a plain function in the thread, between two steps of its tasks."""
        self._check_process()

        def run(*_: Any) -> T:
            return function(*args, **kwargs)

        try:
            return trio.from_thread.run_sync(run, trio_token=self._token)
        except trio.RunFinishedError:
            raise ClientClosedError("the client was closed") from None

    def _check_process(self) -> None:
        if self.process_id != os.getpid():
            raise ClientClosedError(
                "opened before this process was forked: connections and threads do not survive that; open it in each "
                "process, as in Gunicorn's post_worker_init or Celery's worker_process_init (docs/services.md)"
            )


_lock = threading.Lock()
_portal: Portal | None = None


def acquire_portal() -> Portal:
    """Return the portal of this process, starting it if necessary, and add a user.

    Raises:
        ClientError: it cannot start.
    """
    global _portal
    with _lock:
        if _portal is None or _portal.process_id != os.getpid():
            _portal = Portal()
        _portal.users += 1
        return _portal


def release_portal(portal: Portal) -> None:
    """Remove a user; the last one ends the thread."""
    global _portal
    with _lock:
        portal.users -= 1
        if portal.users or portal.process_id != os.getpid():
            return
        if _portal is portal:
            _portal = None
    portal.stop()


def _renew_lock() -> None:
    """Replace the lock in a forked child, where the thread that may hold it does not exist."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


A = TypeVar("A", bound=AbstractAsyncContextManager[object], covariant=True)


class Facade(Generic[A]):
    """Holds a trio client open in the portal's thread."""

    _target: A
    _held: HeldContext[object] | None = None
    _portal: Portal | None = None
    _library = ""

    def _make(self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the trio client."""
        self._target = make(*args, **kwargs)

    def __enter__(self) -> Any:
        raise ClientError(wrong_block(self, self._library))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...  # else Python's error comes first

    async def __aenter__(self) -> Any:
        raise ClientError(wrong_block(self, self._library))

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None: ...

    def _hold(self) -> HeldContext[object]:
        if trio.lowlevel.in_trio_task():
            raise ClientError(wrong_block(self, self._library))
        if self._held is not None:
            raise ClientError(f"a {type(self).__name__} can be entered once only: make a new one")
        return HeldContext[object](self._target)

    def _entered(self) -> tuple[Portal, HeldContext[object]]:
        if self._portal is None or self._held is None:
            raise ClientClosedError(f"the {type(self).__name__} is not open: use it inside its with block")
        return self._portal, self._held

    def _call_at_end(self, notify: Callable[[], object]) -> None:
        """Call a function in the portal's thread when the client ends, by itself or because it is left."""
        portal, held = self._entered()
        portal.submit(held.wait).future.add_done_callback(lambda _: notify())

    def _open_portal(self) -> Portal:
        """Return the portal of a client that is open and has not failed."""
        portal, held = self._entered()
        held.check()
        return portal


def arguments_of(
    make: Callable[P, A],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Facade[A], P], None]]:
    """Give ``__init__`` the arguments of the trio class, which it makes."""

    def decorate(_init: Callable[..., None]) -> Callable[Concatenate[Facade[A], P], None]:
        @wraps(make.__init__)  # for help() and editors
        def init(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._make(make, args, kwargs)  # self is the facade

        return init

    return decorate


def plain(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Facade[A], P], T]:
    """Make a method that runs a plain one in the portal's thread, between two steps of its tasks."""

    @wraps(method)
    def call(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._open_portal().call_plain(method, self._target, *args, **kwargs)

    return call
