"""A broker in a separate process: a :class:`BrokerHost` there, and its client here, connected by two pipes."""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from triomq.broker import BrokerConfig
from triomq.testing.host import BrokerHost

P = ParamSpec("P")
T = TypeVar("T")

_STOP_S: Final = 10.0


class ProcessHost:
    """Starts, asks and ends the process; it ends by itself with this one."""

    def __init__(self, config: BrokerConfig, sync_delay_s: float, ahead_ms: int) -> None:
        self._arguments: Final = (config, sync_delay_s, ahead_ms)
        self._lock: Final = threading.Lock()
        self._process: subprocess.Popen[bytes]

    def start(self) -> tuple[str, str]:
        """Start the process; return the addresses of broker and name server.

        Raises:
            TriomqError: as ``triomq.broker.open_broker``.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "triomq.testing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        addresses: tuple[str, str] = self._ask(self._arguments)
        return addresses

    def call(self, method: Callable[Concatenate[BrokerHost, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of :class:`BrokerHost` in the process."""
        result: T = self._ask((method, args, kwargs))
        return result

    def _ask(self, question: object) -> Any:
        """Send a question and return the answer, or raise it.

        Raises:
            ConnectionError: the process is not running.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            with self._lock:
                pickle.dump(question, self._process.stdin)
                self._process.stdin.flush()
                is_answer, result = pickle.load(self._process.stdout)  # noqa: S301  # from our child
        except (EOFError, OSError, ValueError):
            raise ConnectionError("the broker's process is not running: faults.restart() starts it again") from None
        if is_answer:
            return result
        raise result

    def stop(self) -> None:
        """Stop the broker in order, and kill it after 10 s."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()  # type: ignore[union-attr]  # likewise

    def kill(self) -> None:
        """Kill the process, as in a crash."""
        self._process.kill()
        self._process.wait()


def serve() -> None:
    """Run in the process: read the arguments of a host, then questions until the pipe ends."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write there

    def answer(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            result = True, function(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001  # boundary: passed on to the test
            result = False, exc
        pickle.dump(result, answers)
        answers.flush()

    host = BrokerHost(*pickle.load(questions))  # noqa: S301  # of the test that started us
    answer(host.start)
    while True:
        try:
            method, args, kwargs = pickle.load(questions)  # noqa: S301  # likewise
        except EOFError:
            break
        answer(host.call, method, *args, **kwargs)
    host.stop()
