"""Buffers that wait for a socket: bounded by the owner, written with few system calls.

Sans-I/O: the owner calls ``socket.sendmsg(queue.chunks())`` and reports with :meth:`WriteQueue.written`.
"""

from collections import deque
from itertools import islice
from mmap import mmap
from typing import Final

#: Buffers for one ``sendmsg``; Linux accepts 1024 (IOV_MAX), but fewer keep the call short.
MAX_CHUNKS: Final = 256


#: Memory of a waiting buffer besides its bytes.
_OVERHEAD_BYTES: Final = 64


class WriteQueue:
    """Buffers in order.

    Attributes:
        pending_bytes: bytes that are left to write.
        held_bytes: memory of the buffers; not of views of mapped files, which the kernel can drop.
    """

    __slots__ = ("_chunks", "_written", "held_bytes", "pending_bytes")

    def __init__(self) -> None:
        self._chunks: deque[bytes | memoryview] = deque()
        self._written = 0  # bytes of the first buffer
        self.pending_bytes = 0
        self.held_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def put(self, chunk: bytes | memoryview) -> None:
        """Add one buffer; it must not change until it is written."""
        if chunk:
            self._chunks.append(chunk)
            self.pending_bytes += len(chunk)
            if isinstance(chunk, bytes) or _is_held(chunk):
                self.held_bytes += len(chunk) + _OVERHEAD_BYTES

    def chunks(self) -> list[bytes | memoryview]:
        """Return the first buffers, at most :data:`MAX_CHUNKS`."""
        chunks = list(islice(self._chunks, MAX_CHUNKS))
        if self._written:
            chunks[0] = memoryview(chunks[0])[self._written :]
        return chunks

    def written(self, count: int) -> None:
        """Drop the first ``count`` bytes: the socket took them."""
        left = self.pending_bytes - count
        if not left:
            self.clear()
            return
        self.pending_bytes = left
        chunks = self._chunks
        count += self._written
        while count >= (length := len(chunks[0])):
            if _is_held(chunks.popleft()):
                self.held_bytes -= length + _OVERHEAD_BYTES
            count -= length
        self._written = count

    def clear(self) -> None:
        """Drop everything: all is written, or the connection closed."""
        self._chunks.clear()
        self.pending_bytes = self.held_bytes = self._written = 0


def _is_held(chunk: bytes | memoryview) -> bool:
    return isinstance(chunk, bytes) or type(chunk.obj) is not mmap
