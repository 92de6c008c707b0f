"""trio in a background thread, for callers outside trio.

One thread serves all such clients of the process.

Rules: a context is entered and left in the same task; Ctrl-C in a caller cancels the call it waits for; a forked
child never waits for the parent's thread.
"""

import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Final, Generic, ParamSpec, TypeVar

import trio

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
            await self.wait()
        except trio.Cancelled:
            self._scope.cancel()
            with trio.move_on_after(_FINAL_GRACE_S, shield=True):
                await self._gone.wait()
            raise

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

    Attributes:
        nursery: for :meth:`HeldContext.enter`.

    Raises:
        ClientError: it cannot start.
    """

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.users = 0
        self._token: trio.lowlevel.TrioToken
        self.nursery: trio.Nursery
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
        async with trio.open_nursery() as self.nursery:
            self._started.set()
            await self._stop.wait()
            self.nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """End the thread and wait for it."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an asynchronous function in the thread and wait for its result; Ctrl-C cancels it.

        Raises:
            ClientClosedError: as :meth:`submit`.
        """
        if trio.lowlevel.in_trio_task():
            raise RuntimeError("this blocks the tasks of trio: call it in a thread")
        call = Call[T](self._token)
        try:
            self._start(call, partial(function, *args, **kwargs))
            return call.future.result()
        except KeyboardInterrupt:
            call.cancel()
            raise

    def submit(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """Start an asynchronous function in the thread, with the context variables of the caller.

        Raises:
            ClientClosedError: this is a fork of the process that opened it, or the thread has ended.
        """
        call = Call[T](self._token)
        self._start(call, partial(function, *args, **kwargs))
        return call

    def _start(self, call: Call[T], function: Callable[[], Awaitable[T]]) -> None:
        self._check_process()
        context = contextvars.copy_context()

        def start() -> None:
            try:
                trio.lowlevel.spawn_system_task(call.run, function, context=context)
            except RuntimeError as exc:  # the thread is about to end
                call.future.set_exception(ClientClosedError(f"the client was closed: {exc}"))

        try:
            self._token.run_sync_soon(start)
        except trio.RunFinishedError:
            raise ClientClosedError("the client was closed") from None

    def call_plain(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a plain function in the thread, between two steps of its tasks."""
        self._check_process()
        try:
            return trio.from_thread.run_sync(partial(function, *args, **kwargs), trio_token=self._token)
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
