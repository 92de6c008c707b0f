"""How far a slave is behind its master."""

from collections import deque
from typing import Final, NamedTuple

_MARK_S: Final = 0.05
_MAX_MARKS: Final = 1200  # a minute


class SlaveState(NamedTuple):
    """A slave as its master sees it.

    Attributes:
        peer: its ``host:port``.
        acknowledged_offset: end of its log in its last report; -1 before the first one.
        lag_bytes: bytes of the log that it has not acknowledged.
        lag_s: age of the oldest of them; for those stored before the first slave connected, the age of that connection;
            ``None`` before the first report.
        report_age_s: time since its last report, or since it connected.
        sent_offset: up to here the log was sent; -1 before the first report.
        sent_bytes: of the log, since it connected.
    """

    peer: str
    acknowledged_offset: int
    lag_bytes: int
    lag_s: float | None
    report_age_s: float
    sent_offset: int
    sent_bytes: int


class Growth:
    """When the log has grown, for the last minute of growth at least."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque(maxlen=_MAX_MARKS)

    def note(self, end: int, now: float) -> None:
        """Note that the log ends at ``end`` from now on, ``now`` in seconds of a steady clock."""
        if not self._marks or now - self._marks[-1][1] >= _MARK_S:
            self._marks.append((end, now))

    def age(self, offset: int, end: int, now: float) -> float:
        """Return the age of the oldest record after ``offset``, s, in a log that ends at ``end``."""
        if offset >= end or not self._marks:
            return 0.0
        return now - next((at for mark, at in self._marks if mark > offset), self._marks[-1][1])
