"""``executor="process"``: the handler runs in worker processes, for plain functions that compute for long.

The service's threads stay.  Each calls :meth:`ProcessPool.call` in place of the handler and waits for one process,
which has one call at a time: so order, locks, hooks, replies and time limits are those of threads, and a process that
dies fails one call.  (``concurrent.futures`` fails all of them then, and its processes outlive a parent that is
killed.)  Processes are spawned: a fork would copy trio's loop and the locks of other threads.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from operator import attrgetter
from typing import Any, Final, NamedTuple

import trio

from triomq.client.consumer.handlers import LOGGER, Handler, status_of
from triomq.protocol.errors import ConfigError, HandlerProcessError
from triomq.protocol.record.message import REPLIER, MessageExt

#: How long processes may take to end before they are killed.
_END_S: Final = 1.0
_SPAWN: Final = multiprocessing.get_context("spawn")


class _Reply(NamedTuple):
    """A process asks for a reply to be sent."""

    message: MessageExt
    body: bytes


class _Worker:
    """A process with one call at a time."""

    def __init__(self) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a call in the process and return its pickled result, see :func:`_outcome`.

        Raises:
            EOFError, OSError: the process died.
        """
        self.connection.send((function, arguments))
        while isinstance(answer := self.connection.recv(), _Reply):
            self.connection.send_bytes(_outcome(lambda: (answer.message.reply, (answer.body,)), lambda result: result))
        return answer

    def reap(self, timeout_s: float) -> str:
        """Wait for the process, kill it after the time limit, and return how it ended."""
        self.process.join(timeout_s)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        code = self.process.exitcode or 0
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class ProcessPool:
    """The worker processes of one handler: at most as many as the threads that call.

    Raises:
        ConfigError: another process cannot import the handler.
    """

    def __init__(self, handler: Handler) -> None:
        _check_importable(handler)
        self._handler = handler
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._is_closed = False

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Start the first process, and end all of them after the block; those that have a call then are killed.

        Raises:
            ConfigError: the process cannot start, or cannot import the handler.
        """
        at_exit = Finalize(self, self._close, exitpriority=0)  # if the interpreter ends without leaving the block
        try:
            await trio.to_thread.run_sync(self._start_first, abandon_on_cancel=True)
            yield
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(at_exit)

    def call(self, *arguments: Any) -> Any:
        """Call the handler in a process; runs in a thread.

        Raises:
            HandlerProcessError: the process died.
            BaseException: what the handler raised, with the traceback in the process as a note.
        """
        return self._call(self._handler.function, arguments)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        worker = self._take()
        try:
            result, error, contexts = worker.call(function, arguments)
        except Exception as exc:  # noqa: BLE001  # boundary: what its pipe holds now is unknown
            raise self._bury(worker) from (None if isinstance(exc, EOFError | OSError) else exc)
        with self._lock:
            self._idle.append(worker)
        for mine, changed in zip(arguments[1:], contexts, strict=False):
            for name in mine.__slots__:
                setattr(mine, name, getattr(changed, name))
        if error is not None:
            raise error
        return result

    def _take(self) -> _Worker:
        with self._lock:
            if self._is_closed:
                raise SystemExit  # the caller has stopped waiting for this thread
            while self._idle:
                worker = self._idle.pop()
                if worker.process.is_alive():
                    return worker
                self._workers.discard(worker)
            worker = _Worker()
            self._workers.add(worker)
            return worker

    def _bury(self, worker: _Worker) -> BaseException:
        """Forget a process that died, and return the error for its call."""
        with self._lock:
            if self._is_closed:
                return SystemExit()
            self._workers.discard(worker)
        worker.connection.close()
        pid, how = worker.process.pid, worker.reap(_END_S)
        LOGGER.error("handler process died pid=%s how=%s group=%s", pid, how, self._handler.group)
        return HandlerProcessError(f"process {pid} ended by {how} while it had the handler's messages")

    def _start_first(self) -> None:
        try:
            self._call(callable, (self._handler.function,))  # imports the handler's module
        except Exception as exc:
            raise ConfigError(
                'executor="process": a process cannot import the handler, see the error above and on stderr; a script '
                f'must open its consumer below if __name__ == "__main__": {exc}'
            ) from exc

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            for worker in self._workers:
                if worker in self._idle:
                    worker.connection.close()  # it ends by itself
                else:
                    worker.process.kill()
        ends = time.monotonic() + _END_S
        for worker in self._workers:
            worker.reap(max(0.0, ends - time.monotonic()))


def _check_importable(handler: Handler) -> None:
    """Check that a spawned process finds the handler by its name."""
    function = handler.function
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    try:
        is_found = attrgetter(function.__qualname__)(module) is function
    except AttributeError:
        is_found = False
    if handler.is_async or not is_found:
        raise ConfigError(
            f'executor="process": {function!r} must be a plain function at the top level of a module, not a coroutine '
            'function, a lambda, a method or a function within another; or use executor="thread"'
        )
    if function.__module__ == "__main__" and not (getattr(module, "__file__", "") or getattr(module, "__spec__", None)):
        raise ConfigError(f'executor="process": {function!r} must be in a file that another process can import')


def _outcome(request: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]], convert: Callable[[Any], Any]) -> bytes:
    """Call; return the converted result, the error, and the arguments after the first, which the handler may change."""
    arguments: tuple[Any, ...] = ()
    try:
        function, arguments = request()
        return pickle.dumps((convert(function(*arguments)), None, arguments[1:]))
    except (Exception, SystemExit) as exc:  # noqa: BLE001  # boundary: raised again by the caller's process
        text = "".join(traceback.format_exception(exc))
        try:
            error = pickle.loads(pickle.dumps(exc))  # noqa: S301  # our own; not every exception can be copied
        except Exception:  # noqa: BLE001  # boundary: foreign code
            error = HandlerProcessError(f"{type(exc).__name__}: {exc}")
        error.add_note(f"In process {os.getpid()}:\n{text}")
        return pickle.dumps((None, error, arguments[1:]))


def _serve(connection: Connection) -> None:
    """Answer calls until the connection ends: the process's main function."""
    for number in (signal.SIGINT, signal.SIGTERM):  # these signals go to all processes of the group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    REPLIER.set(partial(_reply, connection))
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, OSError):
            return
        # imports the handler's module; a result that is no status need not be one that can be copied
        connection.send_bytes(_outcome(partial(pickle.loads, request), status_of))


def _reply(connection: Connection, message: MessageExt, body: bytes) -> Any:
    connection.send(_Reply(message, body))
    result, failure, _ = connection.recv()
    if failure is not None:
        raise failure
    return result


def _end_with_parent() -> None:
    """End also in the middle of a call when the parent is killed."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
