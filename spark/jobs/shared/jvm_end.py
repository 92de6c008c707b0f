"""Under ``spark-submit`` it is the JVM that gets a SIGTERM, and our output goes through it.

So it is asked to tell us that it ends, and to wait until the counts are written.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar, Final

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started

from triomq.spark.jobs.shared.stopping import Stopper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Set by ``spark-submit`` for the program it runs.
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_WAIT_S: Final = 10.0


class _Hook:
    """Runs in the JVM's shutdown, called back by it in a thread of its own."""

    def __init__(self, stopper: Stopper) -> None:
        self._stopper = stopper

    def run(self) -> None:
        """Let the job end, and wait for it."""
        with self._stopper.waiting:
            self._stopper.note(signal.SIGTERM)
            self._stopper.finished.wait(_WAIT_S)

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
