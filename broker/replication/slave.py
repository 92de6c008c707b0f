"""Copies the commit log of a master: the slave's end of the HA protocol.

Rules: the slave appends only data that continue its log, and reports only data that it has; with durability ``sync``
they are on its disk, so that a master may rely on a report.  Whatever ends a connection, the next one begins with a
report of the true end of the log, and the master sends from there: no state of a connection outlives it.  The end of
the last whole record counts, as a master that has lost power may have another record there.  Records reach their queues
in steps, so that readers of the slave are served meanwhile; those of a few milliseconds together, because to begin and
end a step costs as much as ten of them.

Source: HAService.java, HAClient; store.md 9.1-9.3.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from triomq.broker.addresses import Address
from triomq.broker.network.sessions import CONNECT_S, Stream, connect, reason_of
from triomq.broker.replication.asking import UnreachableError
from triomq.broker.replication.comparison import Comparison, DivergedError, ForeignLogError
from triomq.broker.services.group_commit import GroupCommit
from triomq.broker.services.registration import Registration
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Signal
from triomq.protocol.errors import ConfigError, ProtocolError, RefusedError, StoreError, StoreLayoutError, leaves
from triomq.protocol.event_log import EventLog
from triomq.protocol.wire.ha import REPORT, Frames

LOGGER: Final = logging.getLogger("triomq.broker.replication.slave")

_REPORT_S: Final = 5.0  # haSendHeartbeatInterval
_SILENCE_S: Final = 20.0  # haHousekeepingInterval; a master sends a heartbeat every 5 s
_RECEIVE_BYTES: Final = 256 * 1024
_MAX_RECEIVE_BYTES: Final = 1024**2  # a slave that is behind takes as much as arrives during a step of other work
_GATHER_S: Final = 0.008  # between two runs of the dispatch
_LEAST_PAUSE_S: Final = 0.1  # before the next connection; it doubles with each one that brings nothing
_MAX_PAUSE_S: Final = 5.0


@dataclass(eq=False)
class Slave(BrokerPart):
    """Keeps a copy of the master's commit log.

    Attributes:
        registration: knows where the master listens for slaves.
        commit: flushes, with durability ``sync``.
        comparison: compares the log with that of the master.
        set_aside: ends the broker to open it again without the log from a physical offset on.
        master: where the master of the present or last connection listens for slaves; ``None``: none is known yet.
        is_following: whether the master has sent something on this connection, and so accepts this log as a copy.
        taken_bytes: of the log, from masters since the start.
    """

    registration: Registration
    commit: GroupCommit | None
    comparison: Comparison
    set_aside: Callable[[int], None]

    def __post_init__(self) -> None:
        self.master: str | None = None
        self.is_following = False
        self.taken_bytes = 0
        self._replica = self.store.replica
        self._received_at: float | None = None
        self._reported_at: float | None = None
        self._must_report = self._is_reporting = False
        self._arrived, self._secured = Signal(), Signal()
        if self.commit is not None:
            self.commit.on_flush = self._secured.set
        self._lost = EventLog(
            LOGGER, "master lost address=%s reason=%s", logging.WARNING, recovery="master found again address=%s"
        )
        self._misfits = EventLog(
            LOGGER, "log of the master does not fit address=%s reason=%s", recovery="log of the master fits address=%s"
        )
        self._refusals = EventLog(
            LOGGER, "log of the master is not stored for now: %s", recovery="log of the master is stored again"
        )
        self._foreign = EventLog(LOGGER, "log has nothing in common with that of the master address=%s reason=%s")
        self._delays = EventLog(LOGGER, "messages of the master are not shown for now: %s")

    @property
    def last_received_s(self) -> float | None:
        """How long ago data or a heartbeat came from a master; ``None``: never."""
        return None if self._received_at is None else trio.current_time() - self._received_at

    @property
    def last_reported_s(self) -> float | None:
        """How long ago the end of the log was reported to a master; ``None``: never."""
        return None if self._reported_at is None else trio.current_time() - self._reported_at

    @property
    def log_end(self) -> int:
        """Where the log ends; 0 without a log."""
        return self._replica.end

    @property
    def _safe_end(self) -> int:
        """Where the part of the log ends that may be reported."""
        return self._replica.end if self.commit is None else self._replica.durable_end

    async def run(self) -> None:
        """Copy until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dispatch)
            pause_s = _LEAST_PAUSE_S
            while True:
                received_at = self._received_at
                if master := self.registration.log_address:
                    self.master = master
                    await self._follow(master)
                    self.registration.register_soon()
                is_good = self._received_at != received_at  # neither a misfit nor a refusal alone
                pause_s = _LEAST_PAUSE_S if is_good else min(pause_s * 2, _MAX_PAUSE_S)
                with trio.move_on_after(pause_s):
                    await self._wait_moved(master)

    async def _leave_moved(self, master: str) -> None:
        await self._wait_moved(master)
        raise UnreachableError(f"the master is at {self.registration.log_address} now")

    async def _wait_moved(self, master: str | None) -> None:
        """Return when a name server knows another master."""
        while self.registration.log_address == master:
            await self.registration.master_changed.wait()

    async def _follow(self, master: str) -> None:
        """Copy from a master until the connection ends; log the reason."""
        common_end: int | None = None
        try:
            self._replica.drop_incomplete()  # the master may have lost it, and would send the rest of another one
            await self.comparison.begin()
            await self._copy(master)
        except* DivergedError as group:
            common_end = next(each.begin for each in leaves(group) if isinstance(each, DivergedError))
        except* ForeignLogError as group:
            self._foreign.occurred(master, _reason(group))
        except* (UnreachableError, ProtocolError, trio.BrokenResourceError) as group:
            self._lost.occurred(master, _reason(group), key=master)
        except* StoreLayoutError as group:
            self.statistics.copy_misfits += 1
            self._misfits.occurred(master, _reason(group))
        except* StoreError as group:
            self.statistics.copy_refusals += 1
            self._refusals.occurred(_reason(group))
        finally:
            self.is_following = False
        if common_end is not None:
            await self._give_up_end(master, common_end)

    async def _copy(self, master: str) -> None:
        """Copy from a master until the connection ends; always raises the reason."""
        try:
            with trio.fail_after(CONNECT_S):
                stream, _ = await connect(Address.parse(master), self.registration.log_tls)
        except (OSError, trio.TooSlowError, trio.BrokenResourceError, ConfigError) as exc:
            raise UnreachableError(reason_of(exc)) from exc
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._report, stream)
            nursery.start_soon(self._receive, stream, master)
            nursery.start_soon(self._leave_moved, master)
            nursery.start_soon(self.comparison.run)

    async def _give_up_end(self, master: str, begin: int) -> None:
        """Have the log from ``begin`` on set aside, as the master has another one; the broker ends meanwhile."""
        end = self._replica.end
        LOGGER.error("log differs from that of the master address=%s from=%d to=%d", master, begin, end)
        try:
            self.set_aside(begin)
        except RefusedError as exc:
            self._lost.occurred(master, str(exc), key=master)
        else:
            await trio.sleep_forever()

    async def _receive(self, stream: Stream, master: str) -> None:
        """Append what the master sends.

        Raises:
            UnreachableError: the master closed the connection, or sent nothing for 20 s.
            ProtocolError: a frame cannot be read.
            StoreLayoutError: a frame does not continue the log.
            StoreError: the disk refuses the data.
        """
        frames, size = Frames(), _RECEIVE_BYTES
        with trio.move_on_after(_SILENCE_S) as silence:
            while data := await _received(stream, size):
                size = min(size * 2, _MAX_RECEIVE_BYTES) if len(data) == size else _RECEIVE_BYTES
                end, silent_until = self._replica.end, trio.current_time() + _SILENCE_S
                if silent_until > silence.deadline + _SILENCE_S / 100:  # to set it costs more than to compare
                    silence.deadline = silent_until
                try:
                    for offset, piece in frames.feed(data):
                        if piece:  # otherwise a heartbeat
                            self._replica.append(offset, piece)
                            self.taken_bytes += len(piece)
                        self._received_at = trio.current_time()
                        if not self.is_following:
                            self.is_following = True
                            LOGGER.info("copying from the master address=%s log_end=%d", master, self._replica.end)
                            self._lost.ended(master, key=master)
                finally:
                    if self._replica.end != end:
                        self._show_growth(master)
                if self.commit is None and self._replica.end != end:  # at once: senders may wait for the report
                    await self._send_report(stream)
            raise UnreachableError("the master closed the connection")
        raise UnreachableError(f"nothing came for {_SILENCE_S:.0f} s")

    def _show_growth(self, master: str) -> None:
        """Have the new data dispatched: with durability ``sync`` they are reported after the flush that follows."""
        self._misfits.ended(master)
        self._refusals.ended()
        self._arrived.set()

    async def _report(self, stream: Stream) -> None:
        """Report the end of the log: at once, after a flush, and at least every 5 s.

        The first report fixes where the master begins, so it waits until all of the log may be reported.

        Raises:
            trio.BrokenResourceError: the connection is broken.
        """
        while self._safe_end < self._replica.end:
            self._secured.clear()
            await self._secured.wait()
        while True:
            self._secured.clear()
            await self._send_report(stream)
            with trio.move_on_after(_REPORT_S):
                await self._secured.wait()

    async def _send_report(self, stream: Stream) -> None:
        """Report the end of the log; while another task sends a report, that task also sends the next one."""
        self._must_report = True
        if self._is_reporting:
            return
        self._is_reporting = True
        try:
            while self._must_report:
                self._must_report = False
                await _send(stream, REPORT.pack(self._safe_end))
        finally:
            self._is_reporting = False
        self._reported_at = trio.current_time()

    async def _dispatch(self) -> None:
        """Bring whole records to their queues; also those that came before the last stop."""
        while True:
            self._arrived.clear()
            began = trio.current_time()
            try:
                self.statistics.copied_messages += await self.context.worker.run(
                    self._replica.dispatching(), urgent=True
                )
            except StoreError as exc:  # copying continues, and so do the reports
                self._delays.occurred(exc)
                await trio.sleep(_MAX_PAUSE_S)
                continue
            self._delays.ended()
            if self.commit is not None:
                self.commit.wake()
            await self._arrived.wait()
            if self.commit is None and (early_s := began + _GATHER_S - trio.current_time()) > 0:
                await trio.sleep(early_s)


async def _received(stream: Stream, most_bytes: int) -> bytes | bytearray:
    """Do what ``receive_some`` does, for TCP in half the time."""
    if not isinstance(stream, trio.SocketStream):
        return await stream.receive_some(most_bytes)
    while True:
        await trio.lowlevel.wait_readable(stream.socket)
        try:
            return os.read(stream.socket.fileno(), most_bytes)
        except BlockingIOError:
            continue
        except OSError as exc:
            raise trio.BrokenResourceError(f"connection lost: {exc}") from exc


async def _send(stream: Stream, data: bytes) -> None:
    """Do what ``send_all`` does, but wait only if the socket has no room."""
    if isinstance(stream, trio.SocketStream):
        with suppress(OSError):  # send_all meets it again
            data = data[os.write(stream.socket.fileno(), data) :]
    if data:
        await stream.send_all(data)


def _reason(group: BaseExceptionGroup[Exception]) -> str:
    """Return the text of the first error of a group."""
    error = next(leaves(group))
    return str(error) or type(error).__name__
