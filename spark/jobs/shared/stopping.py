"""SIGINT and SIGTERM: the first asks a job to end in order, the second ends it at once.

The handler only takes note: an exception out of it would leave the connection to the JVM in the middle of an answer.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final, Self

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
