"""Frames from a reused receive buffer.

Fresh memory costs a page fault for every 4 KiB, which is more than copying its bytes, and assembling a long frame from
many reads copies it several times.  So short reads go through a :class:`FrameSplitter`, and a long frame is received in
place until it is complete.
"""

from typing import Final

from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.frame import LENGTH_BYTES, Frame, FrameSplitter

#: A frame that lacks more than this is received in place.
LONG_BYTES: Final = 64 * 1024
_LARGE_READ_BYTES: Final = 1024**2
_MAX_KEPT_BYTES: Final = 2 * 1024**2


class FrameReceiver:
    """Cut received bytes into frames, sans-I/O: receive into :meth:`room`, then call :meth:`received`.

    The buffer never holds more than one long frame, or one read of up to 1 MiB; one above 2 MiB is not kept.
    """

    __slots__ = ("_buffer", "_filled", "_frame_bytes", "_read_bytes", "_splitter")

    def __init__(self, max_frame_bytes: int) -> None:
        """Create a receiver; the limit includes the length field."""
        self._splitter = FrameSplitter(max_frame_bytes)
        self._buffer = memoryview(bytearray(LONG_BYTES))
        self._read_bytes = LONG_BYTES
        self._frame_bytes = 0  # size of the long frame that is received in place
        self._filled = 0  # bytes of it that are there

    def room(self) -> memoryview:
        """Return the memory for the next read; frames returned before become invalid."""
        if self._frame_bytes:
            return self._buffer[self._filled : self._frame_bytes]
        if len(self._buffer) < self._read_bytes or len(self._buffer) > _MAX_KEPT_BYTES:
            self._buffer = memoryview(bytearray(self._read_bytes))
        return self._buffer[: self._read_bytes]

    def received(self, count: int) -> tuple[list[Frame], ProtocolError | None]:
        """Return the frames that the first ``count`` bytes of :meth:`room` complete, and the error.

        As :meth:`FrameSplitter.split`; a view of other than :class:`FrameMemory` is valid until :meth:`room` is called.
        """
        if self._frame_bytes:
            self._filled += count
            if self._filled < self._frame_bytes:
                return [], None
            frame = self._buffer[LENGTH_BYTES : self._frame_bytes]
            self._frame_bytes = 0
            return [frame], None
        frames, error = self._splitter.split(self._buffer[:count])
        self._read_bytes = _LARGE_READ_BYTES if count == self._read_bytes else LONG_BYTES
        if self._splitter.missing_bytes > LONG_BYTES:
            self._begin_long_frame()
        return frames, error

    def _begin_long_frame(self) -> None:
        self._frame_bytes = self._splitter.pending_bytes + self._splitter.missing_bytes
        begin = self._splitter.take_pending()
        self._filled = len(begin)
        if len(self._buffer) < self._frame_bytes:
            self._buffer = memoryview(bytearray(self._frame_bytes))
        self._buffer[: self._filled] = begin
