"""One client connection: the hot path from received bytes to answers; ``writing.py`` writes them.

Rules:

- Plain functions answer the frames of one read, without an await between them.
- All answers of a step, also those to other connections, leave at its end, with one system call per connection.
- A peer that does not read its answers, or whose requests take several steps, is served by a task until it has caught
  up, so that it delays no other peer.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol

import trio

from triomq.broker.config import ConnectionConfig
from triomq.broker.limits.peers import ConnectionLimits, MemoryBudget
from triomq.broker.limits.quotas import Quotas, leave
from triomq.broker.limits.refused import Refusals, remark_of
from triomq.broker.network.client_requests import ClientRequests
from triomq.broker.network.connection_reader import ConnectionReader
from triomq.broker.network.writing import JOIN_BYTES, Writer, WriterContext
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.work import STEP_S, Worker
from triomq.protocol.codes import CommandFlag, LanguageCode, ResponseCode
from triomq.protocol.errors import ProtocolError
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import Frame, FrameSplitter

LOGGER: Final = logging.getLogger("triomq.broker.network.connection")

_READ_BYTES: Final = 64 * 1024  # larger buffers are mapped and unmapped for each read, which costs 16 us
_MOST_READS: Final = 4
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)


class Port(Enum):
    """Kinds of listening ports: they differ in the requests that they serve, and for which peers."""

    BROKER = auto()
    VIP = auto()  # listen port - 2
    NAMESRV = auto()
    ADMIN = auto()


class Service(Protocol):
    """Serves the requests of all connections, without awaiting; see ``broker/pipeline.py``."""

    def commands(
        self, connection: "Connection", frames: Iterator[Frame], arrived_at: float
    ) -> Iterator[RemotingCommand]:
        """Yield the commands that must be served by themselves; may answer the others."""

    def serve(self, connection: "Connection", command: RemotingCommand, arrived_at: float) -> RemotingCommand | None:
        """Return the answer of a request; ``None``: no answer, or a later one."""


class ConnectionContext(WriterContext):
    """The parts of a server that all its connections share.

    Attributes:
        service: serves the requests; set before the first connection.
        forget: called with each closed connection, and whether its peer closed it.
        connections: those that are open.
    """

    service: Service

    def __init__(
        self,
        config: ConnectionConfig,
        statistics: BrokerStatistics,
        stopping: trio.Event,
        forget: "Callable[[Connection, bool], None]",
        *,
        region: str = "",
        quotas: Quotas | None = None,
        files_of_store: Callable[[], int] = lambda: 0,
    ) -> None:
        budget = MemoryBudget(config.memory_budget_bytes, config.unread_high_bytes, statistics)
        self.refusals: Final = Refusals(statistics, region)
        super().__init__(config, statistics, Worker(self.refusals, budget), budget)
        self.client_requests: Final = ClientRequests(stopping, budget)
        self.connection_limits: Final = ConnectionLimits(config, statistics, files_of_store, quotas)
        self.forget: Final = forget
        self.connections: Final[set[Connection]] = set()
        self.reader: Final = ConnectionReader(self.worker)
        self.worker.read_ready = self.reader.read_ready


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Connection(Writer[ConnectionContext]):
    """A peer, the requests it sent, and the answers it has yet to read.

    Attributes:
        peer_ip: the peer's address without the port.
        peer_host: the peer's address as a record's bornHost.
        advertised: the broker's address for this peer, as routes contain it.
        store_host: the same address as a record's storeHost.
        message_id_host: the same address as offset message ids begin with.
        language, version: of the peer's newest heartbeat; version 0 before the first one.
        port: the kind of port that the peer connected to.
        is_local: whether the peer is on this machine; never without ``local_peers``.
        late_since: time of the first late read, if all reads since were late, else 0; see ``limits/overload.py``.
        logins: accounts whose first request here is in the audit file.
    """

    peer_ip: str
    peer_host: bytes
    advertised: str
    store_host: bytes
    message_id_host: bytes = field(init=False)
    language: int = LanguageCode.OTHER
    version: int = 0
    port: Port
    is_local: bool = False
    late_since: float = 0.0
    logins: frozenset[str] = frozenset()
    _pause_s: float = 0.0  # before the next step
    _arrived_after: float = 0.0  # all that the socket held when the connection joined the reader's rounds
    _joined_at: float = 0.0
    _splitter: FrameSplitter = field(init=False)
    _commands: Callable[["Connection", Iterator[Frame], float], Iterator[RemotingCommand]] = field(init=False)
    _serve: Callable[["Connection", RemotingCommand, float], RemotingCommand | None] = field(init=False)

    def __post_init__(self) -> None:
        self.message_id_host = self.store_host.hex().upper().encode()
        self._splitter = FrameSplitter(self._context.config.max_frame_bytes)
        self._commands = self._context.service.commands
        self._serve = self._context.service.serve

    # --- reading ----------------------------------------------------------------------------------------

    def read(self) -> None:
        """Receive what the peer sent and answer it, in one step; every failure ends this connection only."""
        step_ends = self._context.worker.begin_step()
        try:
            try:
                data = self.socket.recv(_READ_BYTES)
                if len(data) == _READ_BYTES:
                    data = self._read_rest(data)
            except BlockingIOError:  # a spurious wake-up
                return
            if not data:
                if self._splitter.pending_bytes:
                    self._context.statistics.bad_frames += 1
                    LOGGER.warning(
                        "connection ended inside a frame peer=%s bytes=%d", self.peer, self._splitter.pending_bytes
                    )
                self._end("closed by peer", closed_by_peer=not self._was_reset)
                return
            self.idle_s = 0.0
            arrived_after = self._context.reader.arrived_after
            if arrived_after <= self._joined_at:  # the poll at that moment did not include this socket
                arrived_after = self._arrived_after
            frames, error = self._splitter.split(data)
            pending = self._splitter.pending_bytes
            if pending or self._received_bytes:
                self.count_held(pending)
            rest = iter(frames)
            if self._serve_frames(rest, error, step_ends, arrived_after):
                self._context.reader.remove(self)
                self._context.worker.nursery.start_soon(self._serve_slowly, rest, error, arrived_after)
        except Exception as exc:  # noqa: BLE001  # boundary: a bad connection must not harm the others
            self._fail(exc)

    def _read_rest(self, data: bytes) -> bytes:
        """Return ``data`` with the bytes still in the socket, so that the next round finds only later ones there."""
        parts = [data]
        try:
            while len(parts[-1]) == _READ_BYTES and len(parts) < _MOST_READS:
                parts.append(self.socket.recv(_READ_BYTES))
        except OSError as exc:  # nothing more, or the peer is gone: its requests are served all the same
            self._was_reset |= isinstance(exc, ConnectionResetError)
        return b"".join(parts)

    def _serve_frames(
        self, frames: Iterator[Frame], error: ProtocolError | None, step_ends: float, arrived_after: float
    ) -> bool:
        """Answer frames in a step that should be over when it ``step_ends``.

        Returns whether it stopped early: the peer does not read the answers, or a step was not enough.  A request that
        takes two steps makes its peer wait, unless honest peers send such requests all the time.

        Raises:
            ProtocolError: a frame cannot be read, or ``error`` followed them; those before it have been answered.
        """
        worker = self._context.worker
        clock = worker.clock
        try:
            for command in self._commands(self, frames, arrived_after):
                self.serve(command, arrived_after)
                if self._writes.pending_bytes > self._context.budget.unread_high_bytes:
                    worker.end_step()
                    if self._has_too_much_unread():
                        return True
                if (over_s := clock() - step_ends) > 0:
                    worker.end_step()
                    if over_s > STEP_S and not _is_frequent(command):
                        worker.charge(over_s)
                    self._pause_s = worker.wait_s
                    return True
        except ProtocolError as exc:
            error = exc
        worker.end_step()
        if error is not None:
            raise error
        return False

    async def _serve_slowly(self, frames: Iterator[Frame], error: ProtocolError | None, arrived_after: float) -> None:
        """Serve a peer by turns, and as fast as it reads its answers, until all is served; then read it again."""
        worker = self._context.worker
        rest = list(frames)
        frames = iter(rest)
        self.count_held(self._splitter.pending_bytes + sum(map(len, rest)))
        left_rounds_at = worker.clock()
        try:
            while True:
                is_held_up = bool(self._pause_s)  # through the peer's fault: no wait for the broker
                if is_held_up:
                    await trio.sleep(self._pause_s)
                    self._pause_s = 0.0
                if self._drain_wanted is not None and self._has_too_much_unread():
                    await self._drain_wanted.wait()
                    is_held_up = True
                if is_held_up:
                    arrived_after = left_rounds_at = worker.clock()
                async with worker.turn():
                    if self.closed:
                        return
                    if not self._has_too_much_unread() and not self._serve_frames(
                        frames, error, worker.begin_step(), arrived_after
                    ):
                        self.count_held(self._splitter.pending_bytes)
                        self._arrived_after, self._joined_at = left_rounds_at, worker.clock()
                        self._context.reader.add(self)
                        return
        except Exception as exc:  # noqa: BLE001  # boundary, as in read()
            self._fail(exc)

    def _has_too_much_unread(self) -> bool:
        return self._drain_wanted is not None and self.unread_bytes > self._context.budget.unread_high_bytes // 2

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
        self._context.worker.end_step()  # sends the notices to the remaining members

    def serve(self, command: RemotingCommand, arrived_at: float) -> None:
        """Answer one command, which has not arrived before ``arrived_at``, now or later; raises nothing."""
        if command.flag & _RESPONSE:
            if not self._context.client_requests.handle_answer(self, command):
                self._context.statistics.unmatched_responses += 1
            return
        try:
            response = self._serve(self, command, arrived_at)
        except Exception as exc:  # noqa: BLE001  # boundary: one bad request must not harm the others
            self.refuse(command, exc)
            return
        if response is not None and not command.flag & _ONEWAY:
            self.send(response)

    def refuse(self, command: RemotingCommand, error: Exception) -> None:
        """Answer a request with the error that it raised."""
        response = self._context.refusals.response_to(self.peer, command, error)
        if not command.flag & _ONEWAY:
            self.send(response)

    def send(self, command: RemotingCommand) -> None:
        """Queue a command; it is written at the end of this step (:meth:`Worker.end_step`).

        An answer too large for a frame, of a hundred thousand queues for example, is replaced by an error response.
        """
        body = command.body
        try:
            if len(body) > JOIN_BYTES:
                self.send_chunks(command.encode_prefix(len(body)), (body,), len(body))
                self.flush()  # at once, as in send_frame
                return
            frame = command.encode()
        except ProtocolError as exc:
            LOGGER.error("command cannot be sent code=%d peer=%s: %s", command.code, self.peer, exc)
            if not command.is_response:
                return
            self._context.statistics.failed_requests += 1
            remark = f"the answer cannot be sent: {remark_of(exc)}"
            frame = command.reply(ResponseCode.SYSTEM_ERROR, remark=remark).encode()
        self.send_frame(frame)

    def give_up(self) -> None:
        """Free the memory held for the peer at once; the connection is closed in a later step."""
        self._stop_writing(ConnectionError("memory budget is used up"))
        self._kept_bytes = 0
        self._splitter.clear()
        self._context.reader.remove(self)
        self._context.worker.nursery.start_soon(self._close_given_up)

    async def _close_given_up(self) -> None:
        self._end("memory budget is used up")

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
        self._splitter.clear()
        self.count_held(0)
        context = self._context
        context.reader.remove(self)
        trio.lowlevel.notify_closing(self.socket)
        self.socket.close()
        context.connections.discard(self)
        context.connection_limits.all.leave(self.peer_ip, kind=self.port is Port.NAMESRV)
        level = logging.INFO if self.version else logging.DEBUG  # a probe sends no heartbeat
        LOGGER.log(level, "connection closed peer=%s reason=%s", self.peer, reason or self._close_reason or "closed")
        leave(self)
        context.forget(self, closed_by_peer)
        context.client_requests.forget(self)


def _is_frequent(command: RemotingCommand) -> bool:
    """Whether honest peers send such requests all the time; a pull with a body, of subscriptions, is rare."""
    request = CATALOGUE.get(command.code)
    return request is not None and request.kind.is_frequent and not (request.kind.reads and command.body)
