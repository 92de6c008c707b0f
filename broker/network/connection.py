"""One client connection: the hot path from received bytes to written answers.

Rules: the frames of one read are answered by plain functions, without an await between them; all answers of a step,
also those to other connections, leave with one system call per connection at the end of the step; a peer that does
not read delays nobody: it gets a task of its own until it does.

The socket is a plain non-blocking one, so an answer can be written in the step that made it, also by a processor that
serves another connection; only what the kernel does not take at once needs a task.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import trio

from triomq.broker.addresses import Address
from triomq.broker.config import ConnectionConfig
from triomq.broker.network.client_requests import ClientRequests
from triomq.broker.network.connection_reader import ConnectionReader
from triomq.broker.network.refusal import Refusals, remark_of
from triomq.broker.network.sockets import Wire
from triomq.broker.network.steps import Steps
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.codes import CommandFlag, LanguageCode, ResponseCode
from triomq.protocol.errors import ProtocolError
from triomq.protocol.host import encode_host
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter
from triomq.protocol.wire.write_queue import WriteQueue

LOGGER: Final = logging.getLogger("triomq.broker.network.connection")

_READ_BYTES: Final = 64 * 1024
_JOIN_BYTES: Final = 64 * 1024  # up to here one copy is cheaper than a vector of buffers
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)

#: Answers one request: returns the response, or ``None`` if there is none, or none yet.  Must not await.
Processor: TypeAlias = "Callable[[Connection, RemotingCommand], RemotingCommand | None]"

#: Returns the next command that must be served by itself; may serve those before it.  ``None``: none is left.
NextCommand: TypeAlias = "Callable[[Connection, Iterator[bytes]], RemotingCommand | None]"


def next_command(_connection: "Connection", frames: Iterator[bytes]) -> RemotingCommand | None:
    """Return the next frame, where each is served by itself; ``None`` at the end.

    Raises:
        ProtocolError: it cannot be read.
    """
    frame = next(frames, None)
    return None if frame is None else RemotingCommand.decode(frame)


def refuse_unserved(_connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer a request whose code nobody serves."""
    return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported")


class Requests(NamedTuple):
    """The requests that a port serves; ``unserved`` answers all others."""

    processors: Mapping[int, Processor]
    next_command: NextCommand = next_command
    unserved: Processor = refuse_unserved


@dataclass(slots=True, eq=False)
class ConnectionContext:
    """What all connections of a server share.

    Attributes:
        forget: called with each closed connection, and whether its peer closed it.
        connections: those that are open.
    """

    config: ConnectionConfig
    statistics: BrokerStatistics
    refusals: Refusals
    client_requests: ClientRequests
    steps: Steps
    forget: "Callable[[Connection, bool], None]"
    reader: ConnectionReader = field(default_factory=ConnectionReader)
    connections: "set[Connection]" = field(default_factory=set)


class Connection:
    """A peer, the requests it sent, and the answers it has yet to read.

    Attributes:
        peer: the peer's ``host:port``.
        peer_ip: the peer's address without the port.
        peer_host: the peer's address as a record's bornHost.
        advertised: the broker's address for this peer, as routes contain it.
        store_host: the same address as a record's storeHost.
        message_id_host: the same address as offset message ids begin with.
        language, version: of the peer's newest heartbeat; version 0 before the first one.
        is_local: whether the peer is on this machine.
        logins: the accounts whose first request here has been noted; they decide nothing.
    """

    __slots__ = (
        "_close_reason",
        "_context",
        "_drain_wanted",
        "_next_command",
        "_processors",
        "_socket",
        "_splitter",
        "_unserved",
        "_was_reset",
        "_write_failed",
        "_writes",
        "advertised",
        "closed",
        "idle_s",
        "is_local",
        "is_scheduled",
        "language",
        "logins",
        "message_id_host",
        "peer",
        "peer_host",
        "peer_ip",
        "store_host",
        "version",
    )

    def __init__(
        self,
        context: ConnectionContext,
        sock: Wire,
        peer: Address,
        advertised: str,
        store_host: bytes,
        requests: Requests,
        *,
        is_local: bool = False,
    ) -> None:
        self.peer = str(peer)
        self.peer_ip = peer.host
        self.peer_host = encode_host(peer.host, peer.port)
        self.advertised = advertised
        self.store_host = store_host
        self.message_id_host = store_host.hex().upper().encode()
        self.language: int = LanguageCode.OTHER
        self.version = 0
        self.is_local = is_local
        self.logins: frozenset[str] = frozenset()
        self.closed = False
        self.is_scheduled = False  # whether it is in ``Steps.unflushed``
        self.idle_s = 0.0  # time since the last read or write, kept by housekeeping
        self._context = context
        self._socket = sock
        self._processors = requests.processors
        self._next_command = requests.next_command
        self._unserved = requests.unserved
        self._splitter = FrameSplitter(context.config.max_frame_bytes)
        self._writes = WriteQueue()
        self._drain_wanted: trio.Event | None = None  # set when the kernel took everything
        self._was_reset = False
        self._close_reason = ""
        self._write_failed = False  # answers are dropped; what the peer sent before is still served

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Connection {self.peer} {state} unread={self._writes.pending_bytes} bytes>"

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the kernel has not taken yet."""
        return self._writes.pending_bytes

    # --- reading ----------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the file descriptor of the socket; -1 after it was closed."""
        return self._socket.fileno()

    def use_socket(self, sock: Wire) -> None:
        """Read and write through something else on the same socket."""
        self._socket = sock

    def read(self) -> None:
        """Receive what the peer sent and answer it, in one step; every failure ends this connection only."""
        try:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:  # a spurious wake-up
                return
            if not data:
                self._end(self._explain_end(), closed_by_peer=not self._was_reset)
                return
            self.idle_s = 0.0
            frames, error = self._splitter.split(data)
            unserved = iter(frames)
            if self._serve_frames(unserved, error):
                self._context.reader.remove(self)
                self._context.steps.nursery.start_soon(self._serve_slowly, unserved, error)
        except Exception as exc:  # noqa: BLE001  # boundary: a bad connection must not harm the others
            self._fail(exc)

    def _serve_frames(self, frames: Iterator[bytes], error: ProtocolError | None) -> bool:
        """Answer frames; return whether it stopped early because the peer does not read the answers.

        Raises:
            ProtocolError: a frame cannot be read, or ``error`` followed them; those before it have been answered.
        """
        try:
            while (command := self._next_command(self, frames)) is not None:
                self.serve(command)
                if self._writes.pending_bytes > self._context.config.unread_high_bytes:
                    self._context.steps.end()
                    if self._has_too_much_unread():
                        return True
        except ProtocolError as exc:
            error = exc
        self._context.steps.end()
        if error is not None:
            raise error
        return False

    async def _serve_slowly(self, frames: Iterator[bytes], error: ProtocolError | None) -> None:
        """Serve a peer as fast as it reads its answers, until all its frames are served; then read it again."""
        try:
            while not self.closed and (self._has_too_much_unread() or self._serve_frames(frames, error)):
                if self._drain_wanted is not None:
                    await self._drain_wanted.wait()
            if not self.closed:
                self._context.reader.add(self)
        except Exception as exc:  # noqa: BLE001  # boundary, as in read()
            self._fail(exc)

    def _has_too_much_unread(self) -> bool:
        return self._drain_wanted is not None and self.unread_bytes > self._context.config.unread_high_bytes // 2

    def _fail(self, error: Exception) -> None:
        if isinstance(error, ProtocolError):
            self._context.statistics.bad_frames += 1
            reason = f"bad frame: {error}"
            LOGGER.warning("connection closed peer=%s reason=%s", self.peer, reason)
        elif isinstance(error, OSError):
            reason = f"connection lost: {error}"
        else:
            reason = f"{type(error).__name__}: {error}"
            LOGGER.error("connection closed peer=%s reason=%s", self.peer, reason, exc_info=error)
        self._end(reason)

    def _end(self, reason: str, *, closed_by_peer: bool = False) -> None:
        self.close(reason, closed_by_peer=closed_by_peer)
        self._context.steps.end()  # sends the notices to the remaining members

    def _explain_end(self) -> str:
        pending = self._splitter.pending_bytes
        if pending:
            self._context.statistics.bad_frames += 1
            LOGGER.warning("connection ended inside a frame peer=%s bytes=%d", self.peer, pending)
        return "closed by peer"

    def serve(self, command: RemotingCommand) -> None:
        """Answer one command, now or later; raises nothing."""
        if command.flag & _RESPONSE:
            if not self._context.client_requests.handle_answer(self, command):
                self._context.statistics.unmatched_responses += 1
            return
        try:
            response = self._processors.get(command.code, self._unserved)(self, command)
        except Exception as exc:  # noqa: BLE001  # boundary: one bad request must not harm the others
            response = self._context.refusals.response_to(self.peer, command, exc)
        if response is not None and not command.flag & _ONEWAY:
            self.send(response)

    # --- writing ----------------------------------------------------------------------------------------

    def send(self, command: RemotingCommand) -> None:
        """Queue a command; it is written at the end of this step (:meth:`Steps.end`).

        An answer too large for a frame, of a hundred thousand queues for example, is replaced by an error response.
        """
        try:
            frame = command.encode()
        except ProtocolError as exc:
            LOGGER.error("command cannot be sent code=%d peer=%s: %s", command.code, self.peer, exc)
            if not command.is_response:
                return
            self._context.statistics.failed_requests += 1
            remark = f"the answer cannot be sent: {remark_of(exc)}"
            frame = command.reply(ResponseCode.SYSTEM_ERROR, remark=remark).encode()
        self.send_frame(frame)

    def send_frame(self, frame: bytes) -> None:
        """Queue a whole frame."""
        if self.closed or self._write_failed:
            return
        self._writes.put(frame)
        if not self.is_scheduled:
            self.is_scheduled = True
            self._context.steps.unflushed.append(self)

    def send_chunks(self, head: bytes, chunks: Sequence[bytes | memoryview], size_bytes: int) -> None:
        """Queue the buffers of a whole frame; those after ``head`` have ``size_bytes``."""
        if size_bytes <= _JOIN_BYTES:
            self.send_frame(b"".join((head, *chunks)))
            return
        self.send_frame(head)
        if not (self.closed or self._write_failed):
            for chunk in chunks:
                self._writes.put(chunk)

    def flush(self) -> None:
        """Write what the kernel takes now; a task writes the rest when the peer reads."""
        self.is_scheduled = False
        if self.closed or self._write_failed or self._drain_wanted is not None:
            return
        try:
            self._write_some()
        except BlockingIOError:
            pass
        except OSError as exc:
            self._stop_writing(exc)
            return
        if self._writes and not self.closed:
            self._drain_wanted = trio.Event()
            self._context.steps.nursery.start_soon(self._drain)

    def _write_some(self) -> None:
        writes = self._writes
        self.idle_s = 0.0
        if writes.pending_bytes <= _JOIN_BYTES:
            writes.written(self._socket.send(b"".join(writes.chunks())))
        else:
            writes.written(self._socket.sendmsg(writes.chunks()))

    async def _drain(self) -> None:
        """Write the rest as fast as the peer reads; close the connection if it reads nothing for too long."""
        drained = self._drain_wanted
        try:
            while self._writes and not self.closed:
                with trio.move_on_after(self._context.config.unread_timeout_s) as waiting:
                    await trio.lowlevel.wait_writable(self._socket)
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

    # --- closing ----------------------------------------------------------------------------------------

    def close(self, reason: str = "", *, closed_by_peer: bool = False) -> None:
        """Close the connection, drop unsent answers, and remove it from its groups.  Idempotent.

        Args:
            reason: for the log.
            closed_by_peer: whether the peer ended it in the usual way (FIN).
        """
        if self.closed:
            return
        self.closed = True
        self._writes.clear()
        context = self._context
        context.reader.remove(self)
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        context.connections.discard(self)
        level = logging.INFO if self.version else logging.DEBUG  # a probe sends no heartbeat
        LOGGER.log(level, "connection closed peer=%s reason=%s", self.peer, reason or self._close_reason or "closed")
        context.forget(self, closed_by_peer)
        context.client_requests.forget(self)
