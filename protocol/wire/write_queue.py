"""Buffers that wait for a socket: bounded by the owner, written with few system calls.

Sans-I/O: the owner calls ``socket.sendmsg(queue.chunks())`` and reports with :meth:`WriteQueue.written`.
"""

from collections import deque
from itertools import islice
from typing import Final

#: Buffers for one ``sendmsg``; Linux accepts 1024 (IOV_MAX), but fewer keep the call short.
MAX_CHUNKS: Final = 256


class WriteQueue:
    """Buffers in order, and their number of bytes."""

    __slots__ = ("_chunks", "pending_bytes")

    def __init__(self) -> None:
        self._chunks: deque[bytes | memoryview] = deque()
        self.pending_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def put(self, chunk: bytes | memoryview) -> None:
        """Add one buffer; it must not change until it is written."""
        if chunk:
            self._chunks.append(chunk)
            self.pending_bytes += len(chunk)

    def chunks(self) -> list[bytes | memoryview]:
        """Return the first buffers, at most :data:`MAX_CHUNKS`."""
        return list(islice(self._chunks, MAX_CHUNKS))

    def written(self, count: int) -> None:
        """Drop the first ``count`` bytes: the socket took them."""
        self.pending_bytes -= count
        chunks = self._chunks
        if not self.pending_bytes:
            chunks.clear()
            return
        while count:
            first = chunks[0]
            length = len(first)
            if count < length:
                chunks[0] = memoryview(first)[count:]
                return
            chunks.popleft()
            count -= length

    def clear(self) -> None:
        """Drop everything: the connection is closed."""
        self._chunks.clear()
        self.pending_bytes = 0
