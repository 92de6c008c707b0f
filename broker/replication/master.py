"""The master's end of replication: sends the commit log to slaves, and answers senders by the reports of slaves.

Rules: a slave is sent views of the mapped files, several frames in one system call: in the step that stored a message
if it has all earlier ones, else by a task.  If it does not read, it costs the buffer of its socket, delays no other
peer, and is closed after 20 s without a report.  Reports are read with the requests of all other peers, so a waiting
sender is answered in the step that reads the report.  Worker threads read the parts of the log that are not in memory.

No slave may acknowledge more than it was sent, so no answer relies on such a report.  Two kinds of slaves are refused:
those with a longer log, because theirs is not a copy of this one, and those whose next messages retention has deleted,
be it while they are connected.  RocketMQ sends both of them heartbeats without end.

A slave may have slaves, too.  It sends whole records only, and with durability ``sync`` only those on its disk, so none
of them is ahead of the log that a power cut would leave it.  Its own master does not know them.  While its log is
empty, it leaves reports alone: its master decides in which file the log begins.

Source: HAService.java, HAConnection.java; store.md 9.1-9.4.
"""

import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

import trio

from triomq.broker.addresses import Address, is_in
from triomq.broker.network.listeners import accept_loop, ends_of, listen
from triomq.broker.network.tls import ServerTls
from triomq.broker.network.writing import Wire
from triomq.broker.replication.lag import Growth, SlaveState
from triomq.broker.services.group_commit import GroupCommit
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Signal
from triomq.protocol.errors import StoreError
from triomq.protocol.event_log import EventLog
from triomq.protocol.wire.ha import HEAD, TRANSFER_BYTES, Reports, start_of
from triomq.protocol.wire.write_queue import WriteQueue
from triomq.storage.commit_log.commit_log import NOT_NEEDED
from triomq.storage.config import Durability

LOGGER: Final = logging.getLogger("triomq.broker.replication.master")

MAX_SLAVES: Final = 16
HEARTBEAT_S: Final = 5.0  # haSendHeartbeatInterval
SILENCE_S: Final = 20.0  # haHousekeepingInterval
_STOPPED: Final = "broker stopped"
_WATCH_S: Final = 1.0
_REPORT_BYTES: Final = 4096  # of one read: the last 8 bytes count
_TURN_BYTES: Final = 256 * 1024  # sent before others have their turn
_GATHER_S: Final = 0.008  # the longest time for which messages are gathered


class Slave:
    """The connection of one slave.

    Attributes:
        acknowledged_offset, sent_offset: as in ``SlaveState``.
        joined_offset: the log is sent from here on; -1 before the first report.
        reported_at: when it reported last, or connected, by trio's clock.
        wanted: set when the log has grown, or the connection was closed.
        is_gathering: whether its task sends new messages in a moment, so that nothing else needs to.
        socket: plain, or with TLS.
        peer, peer_ip, is_local: who it is, for TLS, too.
    """

    def __init__(self, master: "Master", sock: socket.socket, peer: Address, *, is_local: bool) -> None:
        self.peer, self.peer_ip, self.is_local = str(peer), peer.host, is_local
        self.acknowledged_offset = self.sent_offset = self.joined_offset = -1
        self.reported_at = trio.current_time()
        self.wanted: Final = Signal()
        self._master = master
        self.socket: Wire = sock
        self._reports = Reports()
        self._writes = WriteQueue()
        self._scope = trio.CancelScope()
        self._had_all_at = self._sent_at = -inf  # an idle slave gets a heartbeat as it joins: it is in touch at once
        self.is_gathering = False

    @property
    def has_joined(self) -> bool:
        """Whether it has reported."""
        return self.sent_offset >= 0

    @property
    def needed_from(self) -> int:
        """Where the part of the log begins that it has yet to copy."""
        return max(self.acknowledged_offset, self.joined_offset)

    def count_held(self, received_bytes: int) -> None:
        """Count nothing: handshakes of slaves are few."""

    def fileno(self) -> int:
        """Return the file descriptor of the socket; -1 after it was closed."""
        return self.socket.fileno()

    def read(self) -> None:
        """Receive reports; raises nothing."""
        try:
            data = self.socket.recv(_REPORT_BYTES)
        except BlockingIOError:
            return
        except OSError as exc:
            self.close(f"connection lost: {exc}")
            return
        if not data:
            self.close("closed by the slave")
        elif (offset := self._reports.feed(data)) is not None:
            self.reported_at = trio.current_time()
            self._master.reported(self, offset)

    def close(self, reason: str) -> None:
        """Close the connection.  Idempotent."""
        if self.socket.fileno() < 0:
            return
        self._master.left(self, reason)
        self._scope.cancel()
        self._writes.clear()
        trio.lowlevel.notify_closing(self.socket)
        self.socket.close()

    async def run(self) -> None:
        """Send the log, and heartbeats, until the connection is closed."""
        with self._scope:
            try:
                while True:
                    await self._fill()
                    await self._write()
            except (OSError, trio.ClosedResourceError) as exc:
                self.close(f"connection lost: {exc}")
            except StoreError as exc:
                self.close(f"the log cannot be read: {exc}")

    def push(self) -> None:
        """Send new messages in this step if nothing is in the way; else its task sends them."""
        if self.sent_offset == (end := self._master.end):
            return
        if self.has_joined and not self._writes and self.sent_offset >= self._master.hot_from() and not self._hold_s():
            self._put_frames(end)
            with suppress(OSError):  # the task meets it again
                self._write_some()
            if not self._writes and self.sent_offset == end:
                return
        self.wanted.set()

    def _hold_s(self) -> float:
        """Return the time for which new messages are still gathered: a frame costs the CPU time of several messages.

        Where senders wait for the slave, those that arrive before its report of the earlier ones go together; elsewhere
        those of a few milliseconds.
        """
        sent, master = self.sent_offset, self._master
        if master.end - sent >= _TURN_BYTES or (sent == self.acknowledged_offset and not master.gathers):
            return 0.0
        return max(self._had_all_at + _GATHER_S - trio.current_time(), 0.0)

    async def _fill(self) -> None:
        """Wait until there is something to send, and queue it: some frames, or a heartbeat."""
        while not self._writes:
            self.wanted.clear()
            if self.has_joined and self.sent_offset < self._master.end:
                if hold_s := self._hold_s():
                    self.is_gathering = self._master.gathers
                    await trio.sleep(hold_s)
                    self.is_gathering = False
                else:
                    self._put_frames(await self._master.load(self.sent_offset))
                continue
            with trio.move_on_at(self._sent_at + HEARTBEAT_S if self.has_joined else inf) as silence:
                await self.wanted.wait()
            if silence.cancelled_caught and trio.current_time() >= self._sent_at + HEARTBEAT_S:
                self._writes.put(HEAD.pack(self.sent_offset, 0))

    def _put_frames(self, loaded_to: int) -> None:
        log, begin = self._master.log, self.sent_offset
        end = min(loaded_to, begin + _TURN_BYTES)
        while self.sent_offset < end:
            piece = log.piece(self.sent_offset, min(TRANSFER_BYTES, end - self.sent_offset))
            self._writes.put(HEAD.pack(self.sent_offset, len(piece)))
            self._writes.put(piece)
            self.sent_offset += len(piece)
        self._master.sent_bytes += self.sent_offset - begin
        if self.sent_offset == self._master.end:
            self._had_all_at = trio.current_time()

    def _write_some(self) -> None:
        self._writes.written(self.socket.sendmsg(self._writes.chunks()))
        self._sent_at = trio.current_time()

    async def _write(self) -> None:
        """Write the queue, as fast as the slave reads; then others have their turn."""
        while self._writes:
            try:
                self._write_some()
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.socket)
        await trio.lowlevel.checkpoint()


@dataclass(eq=False)
class Master(BrokerPart):
    """Accepts slaves, and takes their reports.

    Attributes:
        commit: holds the answers that wait for slaves, if any do.
        address: where it listens, with the port really used.
        log: the commit log, which it sends.
        hot_from: returns the offset from which on the log is in memory.
        gathers: whether no sender waits for slaves, so that they may get messages a moment later.
        sent_bytes: of the log, to all slaves since the start.
    """

    commit: GroupCommit | None

    def __post_init__(self) -> None:
        assert self.config.ha_listen is not None
        self.address = self.config.ha_listen
        self.log = self.store.commit_log
        self.gathers = self.commit is None
        self._is_cautious = self.config.is_slave and self.store.config.durability is Durability.SYNC
        self.hot_from = self.store.cold_reads.hot_from
        self._slaves: list[Slave] = []
        self.sent_bytes, self._fed_to = 0, -1
        self._growth = Growth()
        self._socket: socket.socket | None = None
        self._tls: ServerTls | None = None
        self._nursery: trio.Nursery
        self._refused = EventLog(LOGGER, "slave refused peer=%s reason=%s", logging.WARNING)

    def open(self, tls: ServerTls | None = None) -> Address:
        """Open the port for slaves, who must use ``tls`` if that is given; return its address.

        Raises:
            ConfigError: the address cannot be bound.
        """
        self._tls = tls
        self._socket = listen(self.address)
        self.address = Address(self.address.host, self._socket.getsockname()[1])
        return self.address

    async def run(self) -> None:
        """Serve slaves until cancelled."""
        assert self._socket is not None, "open() was called"
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._watch)
            try:
                await accept_loop(self._socket, self._accepted)
            finally:
                for slave in list(self._slaves):
                    slave.close(_STOPPED)

    @property
    def end(self) -> int:
        """Up to here slaves get the log."""
        return self.log.flushed_offset if self._is_cautious else self.log.max_offset

    @property
    def slaves(self) -> list[SlaveState]:
        """All slaves that are connected, also those that have not reported yet."""
        now, end = trio.current_time(), self.end
        return [
            SlaveState(
                each.peer,
                each.acknowledged_offset,
                end - max(each.acknowledged_offset, 0),
                self._growth.age(each.acknowledged_offset, end, now) if each.has_joined else None,
                now - each.reported_at,
                each.sent_offset,
                each.sent_offset - each.joined_offset,
            )
            for each in self._slaves
        ]

    @property
    def has_unfinished(self) -> bool:
        """Whether a slave has yet to acknowledge a part of the log."""
        return any(each.acknowledged_offset < self.end for each in self._joined())

    def feed(self) -> None:
        """Send slaves the records that were appended in this step."""
        end = self.end
        if end != self._fed_to:
            self._fed_to = end
            self._growth.note(end, trio.current_time())
            for slave in self._slaves:
                if not slave.is_gathering:
                    slave.push()

    async def load(self, offset: int) -> int:
        """Load some of the log from an offset on; return up to where it is in memory.

        Raises:
            StoreError: the disk cannot read it.
        """
        if offset >= self.hot_from():
            return self.end
        return min(await self.context.worker.run(self.store.cold_reads.load_log(offset), urgent=True), self.end)

    def reported(self, slave: Slave, offset: int) -> None:
        """Take the report of a slave, which names the end of its log; the first one is where sending begins."""
        if self.config.is_slave and self.end <= max(self.log.min_offset, 0):
            return
        if not 0 <= offset <= (slave.sent_offset if slave.has_joined else self.end):
            self._refuse(slave, f"its log ends at {offset}, this one at {self.end}")
            return
        if not slave.has_joined and not self._join(slave, offset):
            return
        slave.acknowledged_offset = offset
        slave.push()
        self._acknowledge()

    def _join(self, slave: Slave, offset: int) -> bool:
        start = start_of(offset, self.end, self.log.files.file_size)
        if self._is_deleted(slave, start):
            return False
        slave.sent_offset = slave.joined_offset = start
        slave.wanted.set()
        LOGGER.info("slave joined peer=%s from=%d", slave.peer, start)
        return True

    def _is_deleted(self, slave: Slave, start: int) -> bool:
        """Whether messages from ``start`` on are deleted, which a slave has yet to copy: then it is refused."""
        begin = self.log.min_offset
        if start < begin:
            self._refuse(slave, f"its log ends at {start}, this one begins at {begin}")
        return start < begin

    def left(self, slave: Slave, reason: str) -> None:
        """Forget a slave."""
        self._slaves.remove(slave)
        self.context.reader.remove(slave)
        if not self._slaves:
            self.context.worker.feed_slaves = None
        if slave.has_joined:
            level = logging.INFO if reason is _STOPPED else logging.WARNING
            LOGGER.log(
                level, "slave left peer=%s acknowledged=%d reason=%s", slave.peer, slave.acknowledged_offset, reason
            )
            self._acknowledge()

    def _joined(self) -> list[Slave]:
        return [each for each in self._slaves if each.has_joined]

    def _acknowledge(self) -> None:
        """Answer senders whose messages a slave has now; keep the files that a slave still needs."""
        joined = self._joined()
        self.log.needed_from = min((each.needed_from for each in joined), default=NOT_NEEDED)
        if self.commit is not None:
            self.commit.acknowledged(max((each.acknowledged_offset for each in joined), default=None))
            self.context.worker.end_step()

    def _refuse(self, slave: Slave, reason: str) -> None:
        self._refused.occurred(slave.peer, reason, key=slave.peer.rpartition(":")[0])
        slave.close(reason)

    def _accepted(self, sock: socket.socket) -> None:
        try:
            peer, _, is_local = ends_of(sock, self.config)
        except OSError:
            sock.close()
            return
        networks, reason = self.config.brokers_from, ""
        is_full = len(self._slaves) >= MAX_SLAVES
        silent = next((each for each in self._slaves if not each.has_joined), None)
        if networks and not is_local and not is_in(peer.host, networks):
            reason = "its address is not in --brokers-from"
        elif is_full and silent is None:
            reason = f"{MAX_SLAVES} are connected already"
        elif is_full and silent is not None:
            silent.close("a newer connection takes its place")
        if reason:
            self._refused.occurred(peer, reason, key=peer.host)
            sock.close()
            return
        slave = Slave(self, sock, peer, is_local=is_local)
        if self._tls is not None:
            self._tls.guard(slave, sock, is_enforced=True)
        self._slaves.append(slave)
        self.context.worker.feed_slaves = self.feed
        self.feed()
        self.context.reader.add(slave)
        self._nursery.start_soon(slave.run)

    async def _watch(self) -> None:
        """Close the connections of slaves that are silent for too long, or too slow for a disk that is nearly full."""
        while True:
            await trio.sleep(_WATCH_S)
            for slave in list(self._slaves):
                if trio.current_time() - slave.reported_at > SILENCE_S:
                    slave.close(f"no report for {SILENCE_S:.0f} s")
                elif slave.has_joined:
                    self._is_deleted(slave, slave.needed_from)
