"""Signals: the first SIGINT or SIGTERM ends a job in an orderly way, the second one immediately.

The handler only records the signal: an exception from it would leave the connection to the JVM in the middle of an
answer.  With ``spark-submit`` the JVM gets the SIGTERM, and a thread of the JVM copies our output.  So a shutdown hook
tells us when the JVM ends, and makes it wait until the counts are printed and copied.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from py4j.java_gateway import JVMView
from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Set by ``spark-submit`` for the program it runs.
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_JVM_WAIT_S: Final = 10.0
_COPY_WAIT_MS: Final = 2_000
#: The thread that copies our output (PythonRunner.scala).
_COPYING_THREAD: Final = "redirect output"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopper:
    """Records signals while its block runs; for the main thread.

    Attributes:
        signal: the first signal.
        finished: set at the end of the block.
        waiting: held while something waits for ``finished``; the end of the block waits for it in turn.
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
        with self.waiting:  # so that the waiter has its answer before this process ends
            pass
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def rearm(self) -> None:
        """Install the handlers again: a new Spark context replaces that of SIGINT."""
        if self.signal is None:
            for number in _SIGNALS:
                signal.signal(number, self._note)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a signal; return whether one arrived."""
        return self._event.wait(timeout_s)

    def note(self, number: int) -> None:
        """Record a signal that another process received for us."""
        if self.signal is None:
            self.signal = number
        self._event.set()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.note(number)
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)


class _Hook:
    """The JVM's shutdown hook, called in a separate thread."""

    def __init__(self, stopper: Stopper, jvm: JVMView) -> None:
        self._stopper = stopper
        self._jvm = jvm

    def run(self) -> None:
        """End the job, wait for it, then close its output and wait until that is copied."""
        with self._stopper.waiting:
            self._stopper.note(signal.SIGTERM)
            if self._stopper.finished.wait(_JVM_WAIT_S):
                _close_output()
                for thread in self._jvm.java.lang.Thread.getAllStackTraces().keySet().toArray():
                    if thread.getName() == _COPYING_THREAD:
                        thread.join(_COPY_WAIT_MS)

    class Java:
        """Tells py4j which interface this is."""

        implements: ClassVar = ["java.lang.Runnable"]


def _close_output() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with Path(os.devnull).open("w") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)


@contextmanager
def told_by_jvm(spark: "SparkSession", stopper: Stopper) -> Iterator[None]:
    """Notify the stopper if the JVM of ``spark-submit`` ends while the block runs."""
    if SUBMITTED not in os.environ:
        yield
        return
    gateway = spark.sparkContext._gateway  # noqa: SLF001  # as PySpark's own listeners do; there is no public way
    assert gateway is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # PySpark has no types for it
    runtime = gateway.jvm.java.lang.Runtime.getRuntime()
    thread = gateway.jvm.java.lang.Thread(_Hook(stopper, gateway.jvm))
    runtime.addShutdownHook(thread)
    try:
        yield
    finally:
        with suppress(Py4JError, OSError):  # it is ending
            runtime.removeShutdownHook(thread)
