"""Compares the log of a slave with its master's: all of it before the slave copies, and every 10 s the part since then.

Problem: two logs go different ways when both brokers have stored messages at the same offsets.  The HA protocol has no
word for that: the slave would append to records that its master does not have.

The master answers with checksums of pieces (a request of ours).  Records contain their own offset, their time and their
origin, so two pieces of the same place that hold whole records are equal only before the logs part.  So the last piece
that both have is compared.  If it differs, earlier ones follow, at growing distances from the end, and then by halves,
until the place is found.  The cut is at the end of the last whole record before it.

A master of RocketMQ does not know the request.  Of its log only the record is compared that is the last one here, and a
slave with another one is refused: RocketMQ's would wait until the master's log is as long, and continue in a record.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import trio

from triomq.broker.network.sessions import Session
from triomq.broker.replication.asking import MasterPort, UnreachableError, converse
from triomq.broker.work import Worker
from triomq.protocol.bodies.route import KVTable
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ProtocolError, StoreError
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import PhysicalOffset
from triomq.protocol.requests.messages import ViewMessageRequestHeader
from triomq.protocol.requests.offsets import LogChecksum, LogChecksumRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.consume_queue.unit_search import newest_unit
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.log_compare import log_checksum, record_border

LOGGER: Final = logging.getLogger("triomq.broker.replication.comparison")

PIECE_BYTES: Final = 16 * 1024**2
"""Of one comparison: longer than the blank end of a file and a record of the usual greatest length."""
_MOST_BYTES: Final = 256 * 1024**2  # compared in each interval
_INTERVAL_S: Final = 10.0
_UNKNOWN_S: Final = 1.0
_GROWTH: Final = 4

Differs: TypeAlias = Callable[[int, int], Awaitable[bool]]
"""Whether [begin, end) of the two logs differs."""


class DivergedError(Exception):
    """The logs differ from ``begin`` on, where a record begins."""

    def __init__(self, begin: int) -> None:
        super().__init__(f"the logs differ from {begin} on")
        self.begin = begin


class ForeignLogError(Exception):
    """The logs have no message in common."""


class Comparison:
    """Compares the log of an open store with that of the master whose port is known."""

    def __init__(self, store: MessageStore, worker: Worker, port: MasterPort) -> None:
        self._store = store
        self._log = store.commit_log
        self._worker = worker
        self._port = port
        self._equal_to: int | None = None  # up to here the logs are equal
        self._is_possible = True
        self._refusals = EventLog(
            LOGGER, "log is not compared with that of the master address=%s reason=%s", logging.WARNING
        )

    async def begin(self) -> None:
        """Compare all that both logs have, unless the port of the master is unknown or it is one of RocketMQ.

        The slave of a slave may copy without its master meanwhile.

        Raises:
            UnreachableError: the master does not answer.
            DivergedError, ForeignLogError: it has another log.
        """
        self._equal_to, self._is_possible = None, True
        registration = self._port.registration
        if registration.config.register:
            await registration.wait_tried()
        if registration.master is not None:
            try:
                await self._compare()
            except UnreachableError:
                if registration.log_address == registration.master.ha_address:
                    raise

    async def run(self) -> None:
        """Compare regularly the part since :meth:`begin`; raises as that, but not ``UnreachableError``."""
        while self._is_possible:
            await trio.sleep(_UNKNOWN_S if self._equal_to is None else _INTERVAL_S)
            if self._port.registration.master is not None:
                try:
                    await self._compare()
                except UnreachableError:  # the copying of tables logs it
                    continue

    async def _compare(self) -> None:
        master = self._port.registration.master
        assert master is not None, "the callers look"
        errors: list[DivergedError | ForeignLogError] = []

        async def work(session: Session) -> None:
            async with session.lock:
                try:
                    await self._examine(session, master.address)
                except (DivergedError, ForeignLogError) as exc:
                    errors.append(exc)
                except (ProtocolError, StoreError) as exc:
                    session.end(str(exc))
            session.end("")

        reason = await converse(await self._port.connect(master), work)
        if errors:
            raise errors[0]
        if reason:
            raise UnreachableError(reason)

    async def _examine(self, session: Session, address: str) -> None:
        log, end = self._log, self._log.max_offset
        first = await self._port.ask(session, RequestCode.GET_LOG_CHECKSUM, LogChecksumRequestHeader(0, 0).encode())
        if first.code != ResponseCode.SUCCESS and first.code != ResponseCode.SYSTEM_BUSY:
            self._is_possible = False
            if first.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                await self._compare_last_record(session, end)
            else:
                self._refusals.occurred(address, f"{first.remark} ({first.code})", cause=str(first.code))
            return
        master = _decoded(first)
        low, high = max(log.min_offset, master.min_offset, 0), min(end, master.max_offset)
        if end <= low:  # nothing is here, or nothing that the master still has
            self._equal_to = end
            return
        if high <= low:
            raise ForeignLogError(f"this one begins at {log.min_offset}, the master's ends at {master.max_offset}")
        found = await self._find(partial(self._differs, session), low, high)
        if found is None and end > high:
            found = high
        if found is not None:
            border = await self._worker.run(record_border(log, found))
            if border <= low:
                raise ForeignLogError(f"they differ at {found}, and no message before that is in both")
            raise DivergedError(border)

    async def _compare_last_record(self, session: Session, end: int) -> None:
        """Compare with a master of RocketMQ, unless it does not say where its log begins and ends."""
        queues = sorted(self._store.queues, key=lambda queue: queue.max_physical_offset)
        unit = newest_unit(queues[-1]) if queues else None
        answer = await self._port.ask(session, RequestCode.GET_BROKER_RUNTIME_INFO)
        if unit is None or answer.code != ResponseCode.SUCCESS:
            return
        table = KVTable.decode(answer.body).table
        low, high = (table.get(f"commitLog{name}Offset", "") for name in ("Min", "Max"))
        if not (low.isdecimal() and high.isdecimal()) or unit.physical_offset < int(low):
            return
        fields = ViewMessageRequestHeader(PhysicalOffset(unit.physical_offset)).encode()
        theirs = await self._port.ask(session, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        (ours,) = await self._worker.run(self._store.reader.look_up((unit.physical_offset,)))
        if int(high) < end or (ours is not None and bytes(theirs.body) != bytes(ours)):
            raise ForeignLogError(f"the last record here, at {unit.physical_offset}, is another one there")

    async def _find(self, differs: Differs, low: int, high: int) -> int | None:
        """Compare all at first, later the next pieces; return the first place that differs."""
        piece = high - low if self._equal_to is None else PIECE_BYTES
        begin = max(low, self._equal_to or 0)
        for start in range(begin, min(high, begin + _MOST_BYTES), piece):
            stop = min(start + piece, high)
            if (found := await first_difference(differs, start, stop)) is not None:
                return found
            self._equal_to = stop
        return None

    async def _differs(self, session: Session, begin: int, end: int) -> bool:
        fields = LogChecksumRequestHeader(begin, end).encode()
        theirs = _decoded(await self._port.ask(session, RequestCode.GET_LOG_CHECKSUM, fields))
        return theirs.crc32 != await self._worker.run(log_checksum(self._log, begin, end))


async def first_difference(differs: Differs, low: int, high: int, piece: int = PIECE_BYTES) -> int | None:
    """Return the first place from which on two logs differ, ``None`` if they are equal.

    Args:
        differs: compares a piece of both.
        low, high: both logs have [low, high).
        piece: the length of a piece that differs wherever the logs do.
    """
    if not await differs(max(low, high - piece), high):
        return None
    equal_to, differ_before, distance = low, high, piece
    while differ_before - equal_to > 1:
        distance *= _GROWTH
        middle = max((equal_to + differ_before) // 2, high - distance)
        if await differs(max(equal_to, middle - piece), middle):
            differ_before = middle
        else:
            equal_to = middle
    return equal_to


def _decoded(response: RemotingCommand) -> LogChecksum:
    """Return the answer of the master.

    Raises:
        ProtocolError: it refuses, or its answer cannot be read.
    """
    if response.code != ResponseCode.SUCCESS:
        raise ProtocolError(f"checksum refused: {response.remark} ({response.code})")
    return LogChecksum.decode(response.ext_fields)
