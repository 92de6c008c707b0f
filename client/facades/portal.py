"""trio in a background thread, for callers outside trio: one thread for all their clients of the process.

Rules: what is entered in the thread is left in the same task; Ctrl-C in a caller cancels what it waits for; a forked
child never waits for the parent's thread.
"""

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

import trio

from triomq.protocol.errors import ClientClosedError, ClientError

P = ParamSpec("P")
T = TypeVar("T")
#: After a second Ctrl-C, for what still has to be said to brokers.
_LAST_WORDS_S: Final = 1.0


class Guest(Generic[T]):
    """An asynchronous context manager that a task of the portal holds open."""

    def __init__(self, target: AbstractAsyncContextManager[T]) -> None:
        self._target = target
        self._scope = trio.CancelScope()
        self._ready = trio.Event()
        self._leave = trio.Event()
        self._gone = trio.Event()
        self._error: BaseException | None = None
        self._entered: list[T] = []

    async def host(self) -> None:
        """Enter, wait, leave; the task of the portal."""
        try:
            with self._scope:
                async with self._target as entered:
                    self._entered.append(entered)
                    self._ready.set()
                    await self._leave.wait()
        except trio.Cancelled:
            raise
        except BaseException as exc:  # noqa: BLE001  # boundary: it belongs to who waits for it; sys.exit() too
            self._error = exc
        finally:
            self._ready.set()
            self._gone.set()

    async def enter(self, nursery: trio.Nursery) -> T:
        """Start :meth:`host`; return what the context manager gives."""
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
        """End :meth:`host`; raise the error with which it ended."""
        self._leave.set()
        try:
            await self._gone.wait()
        except trio.Cancelled:
            self._scope.cancel()
            with trio.move_on_after(_LAST_WORDS_S, shield=True):
                await self._gone.wait()
            raise
        if self._error is not None:
            raise self._error

    def check(self) -> None:
        """Do nothing while it is open.

        Raises:
            ClientClosedError: it failed; its error is the cause.
        """
        if self._gone.is_set():
            raise ClientClosedError(f"it ended with an error: {self._error!r}") from self._error

    async def wait(self) -> None:
        """Return when it ended by itself; raise the error with which it did."""
        await self._gone.wait()
        if self._error is not None:
            raise self._error


class Call(Generic[T]):
    """A function that runs in the portal's thread, and may be cancelled from another.

    Attributes:
        future: its result; never cancelled itself, so its end is the end of the function.
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
        """Be the task."""
        try:
            with self._scope:
                self.future.set_result(await function())
        except trio.Cancelled:
            raise
        except BaseException as exc:  # noqa: BLE001  # boundary: it belongs to who waits for the future
            self.future.set_exception(exc)
        finally:
            if not self.future.done():  # cancelled, or the thread ends
                self.future.set_exception(ClientClosedError("interrupted"))


class Portal:
    """The thread, counted by its users: it ends with the last.

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
            self._failure = exc  # no file can be opened any more, most likely
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

    async def open(self, guest: Guest[T]) -> T:
        """Enter a guest; for :meth:`call` and :meth:`submit`."""
        return await guest.enter(self._nursery)

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
            except trio.Cancelled:  # the thread ends: another has left the last client meanwhile
                raise ClientClosedError("the client was closed") from None  # noqa: ASYNC104
            raise ClientClosedError("interrupted")  # nobody waits for it any more

        try:
            return trio.from_thread.run(run, trio_token=self._token)
        except trio.RunFinishedError:
            raise ClientClosedError("the client was closed") from None
        except KeyboardInterrupt:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(scope.cancel)
            raise

    def submit(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> "Call[T]":
        """Start an asynchronous function in the thread.

        Raises:
            ClientClosedError: this is a fork of the process that opened it, or the thread has ended.
        """
        self._check_process()
        call = Call[T](self._token)
        try:
            self._token.run_sync_soon(trio.lowlevel.spawn_system_task, call.run, partial(function, *args, **kwargs))
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
            raise ClientClosedError("opened before this process was forked: make a new one in each process")


_lock = threading.Lock()
_portal: Portal | None = None


def acquire_portal() -> Portal:
    """Return the process's portal, started if it is not there, and count one more user.

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
    """Count one user less; the last one ends the thread."""
    global _portal
    with _lock:
        portal.users -= 1
        if portal.users or portal.process_id != os.getpid():
            return
        if _portal is portal:
            _portal = None
    portal.stop()


def _renew_lock() -> None:
    """In a forked child: whoever held the lock is not there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
