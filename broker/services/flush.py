"""Writes the store to disk: now and then (``async``), or for every group of waiting senders (``sync``).

Rules: fdatasync runs in a worker thread, the event loop never waits for a disk; a failed flush ends the service and
with it the broker, because nothing after it could be acknowledged truthfully.  Where files could not even be opened,
for lack of permission or of open files, nothing is lost: the flush is tried again.

Source: store.md 5.9.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from triomq.broker.services.flush_thread import FlushThread
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import StoreError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter
from triomq.storage.files.file_system import is_unopened

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection
    from triomq.broker.server import Broker
    from triomq.storage.flush import FlushPlan

LOGGER: Final = logging.getLogger("triomq.broker.flush")

_TIMEOUT_CHECK_S: Final = 0.25
_RETRY_S: Final = 0.25
_PATIENCE: Final = 1 / 8  # of the time of a flush that the next one may wait for more senders
_BUSY_S: Final = 0.002  # as long it may wait while each turn of the event loop brings some


class FlushRuns:
    """Runs plans in another thread, and tells when none can be run."""

    def __init__(self, broker: "Broker", run_in_thread: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        self._broker = broker
        self._run_in_thread = run_in_thread
        self._is_refused = False

    async def run(self, plan: "FlushPlan") -> bool:
        """Run a plan and take over what it did; ``False``: files could not be opened, try again later.

        Raises:
            StoreError: the disk has failed.
        """
        try:
            await self._run_in_thread(plan.run)
        except StoreError as exc:
            if not is_unopened(exc):
                raise
            if not self._is_refused:
                LOGGER.error("messages are not flushed for now: %s", exc)
            self._is_refused = True
            return False
        self._is_refused = False
        self._broker.store.flush_done(plan)
        return True


class PeriodicFlush:
    """RocketMQ's asynchronous flush: what has enough dirty pages at every interval, everything now and then."""

    def __init__(
        self,
        broker: "Broker",
        plan: "Callable[[int], FlushPlan | None]",
        *,
        interval_s: float,
        least_pages: int,
        thorough_interval_s: float,
    ) -> None:
        """Flush what ``plan`` says for a least number of dirty pages; 0 pages is the thorough flush."""
        self._broker = broker
        self._plan = plan
        self._interval_s = interval_s
        self._least_pages = least_pages
        self._thorough_interval_s = thorough_interval_s

    async def run(self) -> None:
        """Flush until cancelled."""
        last_thorough = trio.current_time()
        runs = FlushRuns(self._broker, trio.to_thread.run_sync)
        while True:
            await trio.sleep(self._interval_s)
            now = trio.current_time()
            thorough = now - last_thorough >= self._thorough_interval_s
            if thorough:
                last_thorough = now
            plan = self._plan(0 if thorough else self._least_pages)
            if plan is not None:
                await runs.run(plan)


def commit_log_flush(broker: "Broker") -> PeriodicFlush:
    """Make the flush of the commit log for durability ``async``: 16 KiB or more every 500 ms, all every 10 s."""
    config = broker.config.store
    return PeriodicFlush(
        broker,
        broker.store.flush_plan,
        interval_s=config.flush_interval_s,
        least_pages=config.flush_least_pages,
        thorough_interval_s=config.flush_thorough_interval_s,
    )


def consume_queue_flush(broker: "Broker") -> PeriodicFlush:
    """Make the flush of the consume queues; they can be rebuilt, so nobody waits for them."""
    config = broker.config.store
    return PeriodicFlush(
        broker,
        broker.store.flush_consume_queues_plan,
        interval_s=config.flush_consume_queue_interval_s,
        least_pages=config.flush_consume_queue_least_pages,
        thorough_interval_s=config.flush_consume_queue_thorough_interval_s,
    )


class _Waiting(NamedTuple):
    end_offset: int  # durable when the log is flushed up to here
    deadline: float
    connection: "Connection"
    answers: bytes  # whole frames


class GroupCommit:
    """Senders that wait for the disk: one fdatasync answers all that came before it."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._waiting: deque[_Waiting] = deque()
        self._wanted = trio.Event()
        self._expected = 0  # answers that waited at the end of the last flush
        self._flush_s = 0.0  # how long it took

    @property
    def waiting(self) -> int:
        """Answers that wait for the disk."""
        return len(self._waiting)

    def defer(self, connection: "Connection", answers: bytes) -> None:
        """Send whole frames when everything stored so far is on disk."""
        deadline = trio.current_time() + self._broker.config.sync_flush_timeout_s
        end_offset = self._broker.store.commit_log.max_offset
        self._waiting.append(_Waiting(end_offset, deadline, connection, answers))
        self._wanted.set()

    def wake(self) -> None:
        """Flush soon what nobody waits for: consumers see it only then."""
        self._wanted.set()

    async def run(self) -> None:
        """Flush whenever somebody waits, until cancelled."""
        with FlushThread() as thread:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_deadlines)
                await self._flush_groups(thread)

    async def _flush_groups(self, thread: FlushThread) -> None:
        runs = FlushRuns(self._broker, thread.run)
        while True:
            await self._wanted.wait()
            await self._gather()
            self._wanted = trio.Event()  # before the flush: who comes during it waits for the next one
            plan = self._broker.store.flush_plan()
            if plan is not None:
                begin = trio.current_time()
                if not await runs.run(plan):
                    await trio.sleep(_RETRY_S)
                    self._wanted.set()
                    continue
                self._flush_s = trio.current_time() - begin
                self._broker.store.dispatch_flushed()
            self._expected = len(self._waiting)
            self._answer(self._broker.store.commit_log.flushed_offset)
            self._broker.end_step()

    async def _gather(self) -> None:
        """Let as many senders join as waited when the flush before ended, if they come soon.

        Those whom it answered send again at once, as a rule.  Without them there would be two groups, each of which
        waits for the flush of the other too; and a flush costs the processor as much as several sends.
        """
        begin = trio.current_time()
        patient_until = begin + self._flush_s * _PATIENCE
        deadline = max(begin + _BUSY_S, patient_until)
        while (waiting := len(self._waiting)) < self._expected and trio.current_time() < deadline:
            await trio.lowlevel.checkpoint()
            if len(self._waiting) == waiting:  # the event loop has nothing else to do
                if trio.current_time() >= patient_until:
                    return
                self._wanted = trio.Event()
                with trio.move_on_at(patient_until):
                    await self._wanted.wait()

    def _answer(self, flushed_offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= flushed_offset:
            entry = waiting.popleft()
            entry.connection.send_frame(entry.answers)

    async def _watch_deadlines(self) -> None:
        """Answer FLUSH_DISK_TIMEOUT (stored, but not known to be durable) to who waited too long."""
        while True:
            await trio.sleep(_TIMEOUT_CHECK_S)
            now = trio.current_time()
            while self._waiting and self._waiting[0].deadline < now:
                entry = self._waiting.popleft()
                LOGGER.warning("flush is late peer=%s", entry.connection.peer)
                for response in _late(entry.answers):
                    entry.connection.send(response)
            self._broker.end_step()


def _late(answers: bytes) -> Iterator[RemotingCommand]:
    """Yield what senders are told whose answers have waited too long."""
    frames, _ = FrameSplitter().split(answers)
    for frame in frames:
        response = RemotingCommand.decode(frame)
        response.code = ResponseCode.FLUSH_DISK_TIMEOUT
        response.remark = "the message is stored, but the disk did not confirm it in time"
        yield response
