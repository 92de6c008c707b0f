"""How a slave copies the commit log of its master: reports one way, frames of the log the other, sans-I/O.

A slave reports the end of its log, 8 bytes each time.  A master answers with frames: a physical offset, a size, and
that many bytes of its log.  A frame of size 0 is a heartbeat, with the offset of the next frame.
Source: HAConnection.java, HAService.java; store.md 9.2, 9.3.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from triomq.protocol.errors import ProtocolError

REPORT: Final = Struct(">q")
"""A slave's report: where its commit log ends."""
HEAD: Final = Struct(">qi")
"""Head of a master's frame: physical offset, and how many bytes follow."""
TRANSFER_BYTES: Final = 32 * 1024
"""The most bytes of the log in a frame of a master (haTransferBatchSize)."""
MAX_FRAME_BYTES: Final = 4 * 1024**2
"""Larger frames, head included, do not fit into a slave's buffer."""

_HEAD_BYTES: Final = HEAD.size
_MAX_DATA_BYTES: Final = MAX_FRAME_BYTES - _HEAD_BYTES


class Reports:
    """Reads a slave's reports, however the stream was divided."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | bytearray | memoryview) -> int | None:
        """Add received bytes; return the last complete report among them, ``None`` without one.

        Earlier reports say less, so they are skipped.
        """
        stream = self._rest + bytes(data)
        end = len(stream) - len(stream) % REPORT.size
        self._rest = stream[end:]
        return REPORT.unpack_from(stream, end - REPORT.size)[0] if end else None


class Frames:
    """Divides a master's stream into frames; holds at most one incomplete frame."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[int, memoryview]]:
        """Add received bytes; yield offset and data of each frame that they complete.

        Iterate to the end before the next call.  The data of a frame may be a view of ``data``: use it before ``data``
        changes.

        Raises:
            ProtocolError: a frame has a size that cannot be.  Nothing after it can be read.
        """
        stream = memoryview(data)
        while stream:
            rest = self._rest
            if rest:
                while len(rest) < (wanted := _frame_bytes(rest)) and stream:
                    part = stream[: wanted - len(rest)]
                    rest += part
                    stream = stream[len(part) :]
                if len(rest) < wanted:
                    return
                frame = memoryview(rest)
                self._rest = bytearray()
            else:
                wanted = _frame_bytes(stream)
                if len(stream) < wanted:
                    rest += stream
                    return
                frame, stream = stream[:wanted], stream[wanted:]
            yield HEAD.unpack_from(frame)[0], frame[_HEAD_BYTES:]


def start_of(report: int, log_end: int, file_size: int) -> int:
    """Return the offset from which a master sends to a slave whose first report is ``report``.

    A slave without a log gets the master's last file from its start.  Source: store.md 9.3.

    Args:
        report: end of the slave's log.
        log_end: end of the master's log.
        file_size: bytes of each file of the master's log.
    """
    return report if report > 0 else log_end - log_end % file_size


def _frame_bytes(stream: bytearray | memoryview) -> int:
    """Return the length of the frame that begins the stream, or of its head if that is incomplete."""
    if len(stream) < _HEAD_BYTES:
        return _HEAD_BYTES
    offset: int
    size: int
    offset, size = HEAD.unpack_from(stream)
    if not 0 <= size <= _MAX_DATA_BYTES:
        limit = f"at most {_MAX_DATA_BYTES} (the master's haTransferBatchSize)"
        raise ProtocolError(f"frame of the commit log at {offset}: {size} bytes, {limit}")
    return _HEAD_BYTES + size
