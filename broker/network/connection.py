"""One client connection: the hot path from received bytes to written answers.

Rules: one read's frames are answered by plain functions, without an await between them; all answers of a step, also
those to other connections, leave with one system call for each connection at the step's end; nobody waits for a peer
that does not read: it gets a task of its own until it does.

The socket is a plain non-blocking one: an answer can be written in the step that made it, also by a processor that
serves another connection, and only what the kernel does not take at once needs a task.
"""

import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import trio

from triomq.broker.network.addresses import Address
from triomq.broker.network.refusal import remark_of, response_code
from triomq.protocol.codes import CommandFlag, LanguageCode, RequestCode, ResponseCode
from triomq.protocol.errors import ProtocolError, TriomqError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter
from triomq.protocol.wire.write_queue import WriteQueue

if TYPE_CHECKING:
    from triomq.broker.processors.table import Processor
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.network.connection")

_READ_BYTES: Final = 64 * 1024
_JOIN_BYTES: Final = 64 * 1024  # up to here one copy is cheaper than a vector of buffers
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)


def _next_command(connection: "Connection", frames: Iterator[bytes]) -> RemotingCommand | None:
    """Read the next frame where all of them are served one by one; ``None`` at the end.

    Raises:
        ProtocolError: it cannot be read.
    """
    frame = next(frames, None)
    return None if frame is None else RemotingCommand.decode(frame)


class Connection:
    """A peer, what it sent and what it has yet to read.

    Attributes:
        peer: the peer's ``host:port``.
        peer_host: the peer's address as a record's bornHost keeps it.
        advertised: the broker's address for this peer, as routes tell it.
        store_host: the same as a record's storeHost keeps it.
        message_id_host: the same as offset message ids begin.
        language, version: of the peer's newest heartbeat.
    """

    __slots__ = (
        "_close_reason",
        "_drain_wanted",
        "_is_deaf",
        "_next_command",
        "_processors",
        "_socket",
        "_splitter",
        "_was_reset",
        "_writes",
        "advertised",
        "broker",
        "closed",
        "idle_s",
        "is_scheduled",
        "language",
        "message_id_host",
        "peer",
        "peer_host",
        "store_host",
        "version",
    )

    def __init__(
        self,
        broker: "Broker",
        sock: socket.socket,
        peer: Address,
        peer_host: bytes,
        advertised: str,
        store_host: bytes,
        processors: "Mapping[int, Processor]",
    ) -> None:
        self.broker = broker
        self.peer = str(peer)
        self.peer_host = peer_host
        self.advertised = advertised
        self.store_host = store_host
        self.message_id_host = store_host.hex().upper().encode()
        self.language: int = LanguageCode.OTHER
        self.version = 0
        self.closed = False
        self.is_scheduled = False  # whether the broker's list of connections to flush holds this one
        self.idle_s = 0.0  # time since the last read or write, kept by housekeeping
        self._socket = sock
        self._processors = processors
        takes_plain_sends = RequestCode.SEND_MESSAGE_V2 in processors
        self._next_command = broker.plain_sends.serve if takes_plain_sends else _next_command
        self._splitter = FrameSplitter(broker.config.max_frame_bytes)
        self._writes = WriteQueue()
        self._drain_wanted: trio.Event | None = None  # set when the kernel took everything
        self._was_reset = False
        self._close_reason = ""
        self._is_deaf = False  # the peer takes no answers any more; what it sent before is still served

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Connection {self.peer} {state} unread={self._writes.pending_bytes} bytes>"

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the peer has not taken yet."""
        return self._writes.pending_bytes

    # --- reading ----------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the number of the open socket; -1 when it is closed."""
        return self._socket.fileno()

    def read(self) -> None:
        """Take what the peer sent and answer it, in one step; every failure ends this connection only."""
        try:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:  # the kernel may wake a reader for nothing
                return
            if not data:
                self._end(self._explain_end(), closed_by_peer=not self._was_reset)
                return
            self.idle_s = 0.0
            frames, error = self._splitter.split(data)
            unserved = iter(frames)
            if self._serve_frames(unserved, error):
                self.broker.reader.remove(self)
                self.broker.connection_nursery.start_soon(self._serve_slowly, unserved, error)
        except Exception as exc:  # noqa: BLE001  # boundary: a bad connection must not harm the others
            self._fail(exc)

    def _serve_frames(self, frames: Iterator[bytes], error: ProtocolError | None) -> bool:
        """Answer frames; tell whether to stop, because the peer does not read the answers.

        Raises:
            ProtocolError: a frame cannot be read, or ``error`` was behind them; those before it have been answered.
        """
        try:
            while (command := self._next_command(self, frames)) is not None:
                self.serve(command)
                if self._writes.pending_bytes > self.broker.config.unread_high_bytes:
                    self.broker.end_step()
                    if self._has_too_much_unread():
                        return True
        except ProtocolError as exc:
            error = exc
        self.broker.end_step()
        if error is not None:
            raise error
        return False

    async def _serve_slowly(self, frames: Iterator[bytes], error: ProtocolError | None) -> None:
        """Serve a peer as fast as it reads its answers, until all it sent is served; then it is read again."""
        try:
            while not self.closed and (self._has_too_much_unread() or self._serve_frames(frames, error)):
                if self._drain_wanted is not None:
                    await self._drain_wanted.wait()
            if not self.closed:
                self.broker.reader.add(self)
        except Exception as exc:  # noqa: BLE001  # boundary, as in read()
            self._fail(exc)

    def _has_too_much_unread(self) -> bool:
        return self._drain_wanted is not None and self.unread_bytes > self.broker.config.unread_high_bytes // 2

    def _fail(self, error: Exception) -> None:
        if isinstance(error, ProtocolError):
            self.broker.statistics.bad_frames += 1
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
        self.broker.end_step()  # the members that are left learn it now

    def _explain_end(self) -> str:
        pending = self._splitter.pending_bytes
        if pending:
            self.broker.statistics.bad_frames += 1
            LOGGER.warning("connection ended inside a frame peer=%s bytes=%d", self.peer, pending)
        return "closed by peer"

    def serve(self, command: RemotingCommand) -> None:
        """Answer one command, now or later; nothing is raised."""
        if command.flag & _RESPONSE:
            if not self.broker.client_requests.answered(self, command):
                self.broker.statistics.unmatched_responses += 1
            return
        processor = self._processors.get(command.code)
        if processor is None:
            response: RemotingCommand | None = command.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported"
            )
        else:
            try:
                response = processor(self, command)
            except TriomqError as exc:
                response = self.broker.refuse(self, command, response_code(exc), remark_of(exc))
            except Exception as exc:  # boundary: one bad request must not harm the others
                LOGGER.exception("request failed code=%d peer=%s", command.code, self.peer)
                response = self.broker.refuse(
                    self, command, ResponseCode.SYSTEM_ERROR, f"{type(exc).__name__}: {remark_of(exc)}"
                )
        if response is not None and not command.flag & _ONEWAY:
            self.send(response)

    # --- writing ----------------------------------------------------------------------------------------

    def send(self, command: RemotingCommand) -> None:
        """Queue a command; it leaves at the end of this step (:meth:`Broker.end_step`).

        An answer that no frame can hold, of a hundred thousand queues for example, gives way to one that says so.
        """
        try:
            frame = command.encode()
        except ProtocolError as exc:
            LOGGER.error("command cannot be sent code=%d peer=%s: %s", command.code, self.peer, exc)
            if not command.is_response:
                return
            self.broker.statistics.failed_requests += 1
            remark = f"the answer cannot be sent: {remark_of(exc)}"
            frame = command.reply(ResponseCode.SYSTEM_ERROR, remark=remark).encode()
        self.send_frame(frame)

    def send_frame(self, frame: bytes) -> None:
        """Queue a whole frame."""
        if self.closed or self._is_deaf:
            return
        self._writes.put(frame)
        if not self.is_scheduled:
            self.is_scheduled = True
            self.broker.unflushed.append(self)

    def send_chunks(self, head: bytes, chunks: Sequence[bytes | memoryview], size_bytes: int) -> None:
        """Queue the buffers of a whole frame; those behind ``head`` are ``size_bytes``."""
        if size_bytes <= _JOIN_BYTES:
            self.send_frame(b"".join((head, *chunks)))
            return
        self.send_frame(head)
        if not (self.closed or self._is_deaf):
            for chunk in chunks:
                self._writes.put(chunk)

    def flush(self) -> None:
        """Write what the kernel takes now; a task of the broker writes the rest when the peer reads."""
        self.is_scheduled = False
        if self.closed or self._is_deaf or self._drain_wanted is not None:
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
            self.broker.connection_nursery.start_soon(self._drain)

    def _write_some(self) -> None:
        writes = self._writes
        self.idle_s = 0.0
        if writes.pending_bytes <= _JOIN_BYTES:
            writes.written(self._socket.send(b"".join(writes.chunks())))
        else:
            writes.written(self._socket.sendmsg(writes.chunks()))

    async def _drain(self) -> None:
        """Write the rest, as fast as the peer reads; close a peer that reads nothing for too long."""
        drained = self._drain_wanted
        try:
            while self._writes and not self.closed:
                with trio.move_on_after(self.broker.config.unread_timeout_s) as waiting:
                    await trio.lowlevel.wait_writable(self._socket)
                if waiting.cancelled_caught:
                    self.broker.statistics.stalled_peers += 1
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
        """Drop all answers; the reading task serves what the peer sent before it closed, then ends the connection.

        A client may send its last offsets and close at once: an answer to one of them, or to a held pull, then fails
        while others are still unread.
        """
        self._is_deaf = True
        self._was_reset = isinstance(error, ConnectionResetError)  # the next read would look like a plain end
        self._writes.clear()
        self._close_reason = f"write failed: {error}"

    # --- closing ----------------------------------------------------------------------------------------

    def close(self, reason: str = "", *, closed_by_peer: bool = False) -> None:
        """Close the connection and drop unsent answers; its groups are told.  Idempotent.

        Args:
            reason: for the log.
            closed_by_peer: whether the peer ended it in the usual way (FIN).
        """
        if self.closed:
            return
        self.closed = True
        self._writes.clear()
        self.broker.reader.remove(self)
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        self.broker.forget_connection(self, reason or self._close_reason or "closed", closed_by_peer=closed_by_peer)
