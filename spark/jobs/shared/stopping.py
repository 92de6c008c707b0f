"""Signals: the first SIGINT or SIGTERM asks a job to end in order, the second ends it at once.

The handler only records the signal: an exception out of it would leave the connection to the JVM in the middle of an
answer.  Under ``spark-submit`` the JVM gets the SIGTERM, and our output goes through it, so it is asked to tell us that
it ends, and to wait until the counts are written.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Set by ``spark-submit`` for the program it runs.
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_JVM_WAIT_S: Final = 10.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopper:
    """Takes note of the signals while its block runs; to be used in the main thread.

    Attributes:
        signal: the first one that came.
        finished: set when the block is done.
        waiting: held by whoever waits for ``finished``; the block's end waits for it in turn.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.finished = threading.Event()
        self.waiting = threading.Lock()
        self._event = threading.Event()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
        self.rearm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finished.set()
        with self.waiting:  # so that whoever waited has its answer before this process ends
            pass
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def rearm(self) -> None:
        """Install the handlers again: a new Spark context takes SIGINT for itself."""
        if self.signal is None:
            for number in _SIGNALS:
                signal.signal(number, self._note)

    def wait(self, timeout_s: float) -> bool:
        """Return whether a signal came, at once or within a time."""
        return self._event.wait(timeout_s)

    def note(self, number: int) -> None:
        """Take note of a signal that another process got for us."""
        if self.signal is None:
            self.signal = number
        self._event.set()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.note(number)
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)


class _Hook:
    """Runs in the JVM's shutdown, called back by it in a thread of its own."""

    def __init__(self, stopper: Stopper) -> None:
        self._stopper = stopper

    def run(self) -> None:
        """Let the job end, and wait for it."""
        with self._stopper.waiting:
            self._stopper.note(signal.SIGTERM)
            self._stopper.finished.wait(_JVM_WAIT_S)

    class Java:
        """What py4j makes of it."""

        implements: ClassVar = ["java.lang.Runnable"]


@contextmanager
def told_by_jvm(spark: "SparkSession", stopper: Stopper) -> Iterator[None]:
    """Let the stopper know, while the block runs, when the JVM of ``spark-submit`` ends."""
    if SUBMITTED not in os.environ:
        yield
        return
    gateway = spark.sparkContext._gateway  # noqa: SLF001  # as PySpark's own listeners do; nothing public gives it
    assert gateway is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # PySpark has no types for it
    runtime = gateway.jvm.java.lang.Runtime.getRuntime()
    thread = gateway.jvm.java.lang.Thread(_Hook(stopper))
    runtime.addShutdownHook(thread)
    try:
        yield
    finally:
        with suppress(Py4JError, OSError):  # it is ending
            runtime.removeShutdownHook(thread)
