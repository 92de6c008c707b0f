"""Answers that leave when their messages are safe: on the disk, at a slave, or both.

Durability ``sync`` waits for the disk, the role ``sync-master`` for a slave.  One fdatasync, or one report of a slave,
answers all senders before it.  An answer waits for the disk first; a slave copies meanwhile.

Source: store.md 5.9, 9.4.
"""

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Final, NamedTuple, Self

import trio

from triomq.broker.network.connection import Connection
from triomq.broker.services.flush import FlushRuns
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Signal
from triomq.protocol.codes import ResponseCode
from triomq.protocol.event_log import EventLog
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter
from triomq.storage.config import Durability

LOGGER: Final = logging.getLogger("triomq.broker.services.group_commit")

_TIMEOUT_CHECK_S: Final = 0.25
_RETRY_S: Final = 0.25
_MAX_WAIT: Final = 1 / 8  # of the duration of a flush that the next one may wait for more senders
_BUSY_S: Final = 0.002  # it may also wait this long while each turn of the event loop brings some
_GO: Final = 1
#: A slave that lacks this much of the log is none to wait for.  Source: store.md 9.4, haSlaveFallbehindMax.
MAX_LAG_BYTES: Final = 256 * 1024**2
_NOT_ON_DISK: Final = "the message is stored, but the disk did not confirm it in time"
_NO_SLAVE: Final = "the message is stored, but no slave is there to copy it"
_NOT_COPIED: Final = "the message is stored, but no slave confirmed its copy in time"


class FlushThread:
    """A thread that waits for the disk, alive in a ``with`` block; only one task may use it.

    Each call of ``trio.to_thread.run_sync`` passes a limiter, a lock and two wake-ups of the run loop: 60 to 100 us, on
    a disk that syncs in 150 us.  Here the two sides wake each other by one ``eventfd`` each.
    """

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._thread = Thread(target=self._work, name="triomq-flush", daemon=True)

    def __enter__(self) -> Self:
        self._wanted = os.eventfd(0, os.EFD_CLOEXEC)
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._action = None
        os.eventfd_write(self._wanted, _GO)
        self._thread.join()  # returns at once: the thread is idle outside of run()
        os.close(self._wanted)
        os.close(self._done)

    async def run(self, action: Callable[[], None]) -> None:
        """Call ``action`` in the thread and wait for its end, even if cancelled.  Its exception is raised here."""
        self._action = action
        os.eventfd_write(self._wanted, _GO)
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._done)
        os.eventfd_read(self._done)
        error, self._error = self._error, None
        if error is not None:
            raise error
        await trio.lowlevel.checkpoint_if_cancelled()

    def _work(self) -> None:
        while os.eventfd_read(self._wanted) and (action := self._action) is not None:
            try:
                action()
            except Exception as exc:  # noqa: BLE001  # boundary: it is raised again in run()
                self._error = exc
            finally:
                os.eventfd_write(self._done, _GO)


class _Waiting(NamedTuple):
    end_offset: int  # the answers may leave when the log is safe up to here
    began: float
    connection: Connection
    answers: bytes  # whole frames
    has_slave: bool  # was there one to wait for


@dataclass(eq=False)
class GroupCommit(BrokerPart):
    """Holds the answers of senders until their messages are safe.

    Attributes:
        on_flush: called when the disk has what was in the log.
    """

    def __post_init__(self) -> None:
        self.on_flush: Callable[[], None] = lambda: None
        self._disk_timeout_s = self.config.sync_flush_timeout_s
        self._needs_disk = self.store.config.durability is Durability.SYNC
        self._needs_slave = self.config.role == "sync-master"
        self._for_disk: deque[_Waiting] = deque()
        self._for_slave: deque[_Waiting] = deque()
        self._slave_end: int | None = None  # of the log of the slave that has most of it
        self._wanted = Signal()
        self._expected = 0  # answers that waited at the end of the last flush
        self._flush_s = 0.0  # how long it took
        self._log = EventLog(
            LOGGER, "messages are not copied for now: %s", logging.WARNING, recovery="messages are copied again"
        )

    @property
    def waiting(self) -> int:
        """Number of answers that wait."""
        return len(self._for_disk) + len(self._for_slave)

    def defer(self, connection: Connection, answers: bytes) -> None:
        """Send whole frames when everything stored so far is safe."""
        end_offset, slave_end = self.store.commit_log.max_offset, self._slave_end
        has_slave = slave_end is not None and end_offset - slave_end < MAX_LAG_BYTES
        entry = _Waiting(end_offset, trio.current_time(), connection, answers, has_slave)
        if self._needs_disk:
            self._for_disk.append(entry)
            self._wanted.set()
        else:
            self._await_slave(entry)

    def wake(self) -> None:
        """Flush soon although no sender waits: consumers see messages only after the flush."""
        self._wanted.set()

    def acknowledged(self, slave_end: int | None) -> None:
        """Answer the senders whose messages a slave has.

        Args:
            slave_end: the largest offset that a slave has reported; ``None``: no slave is connected.
        """
        self._slave_end = slave_end
        waiting = self._for_slave
        if slave_end is not None and waiting and waiting[0].end_offset <= slave_end:
            now = trio.current_time()
            while waiting and waiting[0].end_offset <= slave_end:
                self._succeed(waiting.popleft(), now)
            self._log.ended()

    async def run(self) -> None:
        """Flush whenever a sender waits for the disk, and watch all deadlines, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_deadlines)
            if self._needs_disk:
                with FlushThread() as thread:
                    await self._flush_groups(thread)

    async def _flush_groups(self, thread: FlushThread) -> None:
        runs = FlushRuns(self.store, thread.run, self.statistics.flushes)
        while True:
            await self._wanted.wait()
            await self._gather()
            self._wanted.clear()  # before the flush: senders that arrive during it wait for the next one
            plan = self.store.flush_plan()
            if plan is not None:
                begin = trio.current_time()
                if not await runs.run(plan):
                    await trio.sleep(_RETRY_S)
                    self._wanted.set()
                    continue
                self._flush_s = trio.current_time() - begin
                self.store.dispatch_flushed()
            self._expected = len(self._for_disk)
            self._answer(self.store.commit_log.flushed_offset)
            self.on_flush()
            self.context.worker.end_step()

    async def _gather(self) -> None:
        """Wait shortly until as many senders have joined as the previous flush answered.

        These usually send again at once.  Without waiting there would be two groups, each of which also waits for the
        flush of the other; and a flush costs as much CPU as several sends.
        """
        begin = trio.current_time()
        wait_until = begin + self._flush_s * _MAX_WAIT
        deadline = max(begin + _BUSY_S, wait_until)
        while (waiting := len(self._for_disk)) < self._expected and trio.current_time() < deadline:
            await trio.lowlevel.checkpoint()
            if len(self._for_disk) == waiting:  # the event loop is idle
                if trio.current_time() >= wait_until:
                    return
                self._wanted.clear()
                with trio.move_on_at(wait_until):
                    await self._wanted.wait()

    def _answer(self, flushed_offset: int) -> None:
        waiting, observe, now = self._for_disk, self.statistics.sends.observe, trio.current_time()
        while waiting and waiting[0].end_offset <= flushed_offset:
            entry = waiting.popleft()
            if self._needs_slave:
                self._await_slave(entry)
            else:
                observe(now - entry.began)
                entry.connection.send_frame(entry.answers)

    def _await_slave(self, entry: _Waiting) -> None:
        """Answer a sender whose message needs a slave only, or keep the answer until a slave has the message."""
        if not entry.has_slave:
            self.statistics.without_slave += self._fail(entry, ResponseCode.SLAVE_NOT_AVAILABLE, _NO_SLAVE)
        elif self._slave_end is not None and entry.end_offset <= self._slave_end:
            self._succeed(entry, trio.current_time())
        else:
            self._for_slave.append(entry)

    def _succeed(self, entry: _Waiting, now: float) -> None:
        self.statistics.sends.observe(now - entry.began)
        entry.connection.send_frame(entry.answers)

    async def _watch_deadlines(self) -> None:
        """Report to senders that waited too long that their messages are stored, but not known to be safe."""
        while True:
            await trio.sleep(_TIMEOUT_CHECK_S)
            now = trio.current_time()
            while self._for_disk and self._for_disk[0].began + self._disk_timeout_s < now:
                entry = self._for_disk.popleft()
                LOGGER.warning("flush timed out peer=%s", entry.connection.peer)
                self.statistics.disk_timeouts += self._fail(entry, ResponseCode.FLUSH_DISK_TIMEOUT, _NOT_ON_DISK)
            while self._for_slave and self._for_slave[0].began + self.config.slave_timeout_s < now:
                entry = self._for_slave.popleft()
                self.statistics.slave_timeouts += self._fail(entry, ResponseCode.FLUSH_SLAVE_TIMEOUT, _NOT_COPIED)
            self.context.worker.end_step()

    def _fail(self, entry: _Waiting, code: ResponseCode, remark: str) -> int:
        """Send answers with a status that is no success; return their number.

        For want of a slave that concerns only sends, whose answers have a queue offset.  As in RocketMQ, the decision
        of a transaction counts all the same.  A consumer that sent a message back would store a second copy.
        """
        is_disk = code == ResponseCode.FLUSH_DISK_TIMEOUT
        if not is_disk:
            self._log.occurred(remark, cause=remark)
        frames, _ = FrameSplitter().split(entry.answers)
        for frame in frames:
            response = RemotingCommand.decode(frame)
            if is_disk or "queueOffset" in response.ext_fields:
                response.code, response.remark = code, remark
            entry.connection.send(response)
        return len(frames)
