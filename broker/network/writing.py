"""The writing half of a connection, and the memory that its peer makes the broker hold.

An answer is written in the step that made it, also by a processor that serves another connection; only what the kernel
does not take at once needs a task.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

import trio

from triomq.broker.config import ConnectionConfig
from triomq.broker.limits.peers import UNCOUNTED_BYTES, MemoryBudget
from triomq.broker.limits.quotas import Usage
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.work import Worker
from triomq.protocol.wire.write_queue import WriteQueue

LOGGER: Final = logging.getLogger("triomq.broker.network.writing")

JOIN_BYTES: Final = 64 * 1024  # up to here one copy is cheaper than a vector of buffers


class Wire(Protocol):
    """The socket of a connection: non-blocking, plain or with TLS."""

    def fileno(self) -> int:
        """Return the file descriptor; -1 after it was closed."""

    def recv(self, size: int, /) -> bytes:
        """Receive; b"" at the end."""

    def send(self, data: bytes, /) -> int:
        """Write; return how many bytes are gone."""

    def sendmsg(self, chunks: Iterable[bytes | memoryview], /) -> int:
        """Write buffers; return how many bytes are gone."""

    def close(self) -> None:
        """Close the socket."""


@dataclass(slots=True, eq=False)
class WriterContext:
    """The parts of a server that all its writers share."""

    config: ConnectionConfig
    statistics: BrokerStatistics
    worker: Worker
    budget: MemoryBudget


_Context = TypeVar("_Context", bound=WriterContext)


@dataclass(slots=True, eq=False, repr=False)
class Writer(ABC, Generic[_Context]):
    """Answers that a peer has yet to read.

    Attributes:
        peer: the peer's ``host:port``.
        closed: whether the connection is closed.
        held_bytes: memory that the peer makes the broker hold, kept by the budget.
        idle_s: time since the last read or write, kept by housekeeping.
        is_scheduled: whether it is in ``Worker.unflushed``.
        socket: through which it reads and writes.
        usage: counts the written bytes if the broker has quotas.
    """

    _context: _Context
    socket: Wire
    peer: str
    closed: bool = False
    held_bytes: int = 0
    idle_s: float = 0.0
    is_scheduled: bool = False
    usage: Usage | None = None
    _writes: WriteQueue = field(default_factory=WriteQueue)
    _received_bytes: int = 0  # frames that are unfinished or not served yet
    _kept_bytes: int = 0  # of its groups and subscriptions
    _drain_wanted: trio.Event | None = None  # set when the kernel took everything
    _was_reset: bool = False
    _close_reason: str = ""
    _write_failed: bool = False  # answers are dropped; what the peer sent before is still served

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the kernel has not taken yet."""
        return self._writes.pending_bytes

    def fileno(self) -> int:
        """Return the file descriptor of the socket; -1 after it was closed."""
        return self.socket.fileno()

    def send_frame(self, frame: bytes) -> None:
        """Queue a whole frame."""
        if self.closed or self._write_failed:
            return
        self._writes.put(frame)
        if len(frame) > JOIN_BYTES:  # at once, so that the budget knows of it
            self.flush()
        elif not self.is_scheduled:
            self.is_scheduled = True
            self._context.worker.unflushed.append(self)

    def send_chunks(self, head: bytes, chunks: Sequence[bytes | memoryview], size_bytes: int) -> None:
        """Queue the buffers of a whole frame; those after ``head`` have ``size_bytes``."""
        if size_bytes <= JOIN_BYTES:
            self.send_frame(b"".join((head, *chunks)))
            return
        self.send_frame(head)
        if not (self.closed or self._write_failed):
            for chunk in chunks:
                self._writes.put(chunk)

    def flush(self) -> None:
        """Write as much as the kernel takes; a task writes the rest when the peer reads."""
        self.is_scheduled = False
        if self.closed or self._write_failed:
            return
        if self._drain_wanted is None:
            try:
                self._write_some()
            except BlockingIOError:
                pass
            except OSError as exc:
                self._stop_writing(exc)
                return
            if not self._writes.pending_bytes:
                return
            self._drain_wanted = trio.Event()
            self._context.worker.nursery.start_soon(self._drain)
        self.count_held()

    def _write_some(self) -> None:
        writes = self._writes
        self.idle_s = 0.0
        if writes.pending_bytes <= JOIN_BYTES:
            size = self.socket.send(b"".join(writes.chunks()))
        else:
            size = self.socket.sendmsg(writes.chunks())
        writes.written(size)
        if self.usage is not None:
            self.usage.wrote(size)

    async def _drain(self) -> None:
        """Write the rest as fast as the peer reads; close the connection if it reads nothing for too long."""
        drained = self._drain_wanted
        try:
            while self._writes and not self.closed:
                with trio.move_on_after(self._context.config.unread_timeout_s) as waiting:
                    await trio.lowlevel.wait_writable(self.socket)
                if waiting.cancelled_caught:
                    self._context.statistics.stalled_peers += 1
                    LOGGER.warning(
                        "connection closed peer=%s reason=does not read unread=%d", self.peer, self.unread_bytes
                    )
                    self.close("peer does not read")
                    return
                try:
                    self._write_some()
                except BlockingIOError:
                    continue
                self.count_held()
        except (OSError, trio.ClosedResourceError) as exc:
            self._stop_writing(exc)
        finally:
            self._drain_wanted = None
            if drained is not None:
                drained.set()

    def _stop_writing(self, error: Exception) -> None:
        """Drop all answers; the reader serves what the peer sent before it closed, then ends the connection.

        A client may send its last offsets and close at once: the answer to one of them, or to a held pull, then fails
        while other offsets are still unread.
        """
        self._write_failed = True
        self._was_reset = isinstance(error, ConnectionResetError)  # the next read would look like a plain end
        self._writes.clear()
        self._close_reason = f"write failed: {error}"

    def count_held(self, received_bytes: int | None = None) -> None:
        """Report the held memory to the budget, with a new size of the requests that are not served yet, if given."""
        if received_bytes is not None:
            self._received_bytes = received_bytes
        held_bytes = self._writes.held_bytes + self._received_bytes + self._kept_bytes
        self._context.budget.hold(self, 0 if self.closed else held_bytes)

    def count_kept(self, size_bytes: int) -> None:
        """Report to the budget how much the groups and subscriptions of the peer take; little is not counted."""
        self._kept_bytes = size_bytes if size_bytes >= UNCOUNTED_BYTES else 0
        self.count_held()

    @abstractmethod
    def close(self, reason: str = "", *, closed_by_peer: bool = False) -> None:
        """Close the connection."""

    @abstractmethod
    def give_up(self) -> None:
        """Drop at once all that is held for the peer, and close the connection soon."""
