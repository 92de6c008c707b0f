"""Periodic work: rates, connections, silent or conflicting members, brokers, stalled queues, clock, index, old files.

The wall clock may be set: it is compared with a clock that is never set.

Files that are too old or too many are deleted one at a time with a pause in between, and the units of queues in
portions, so that requests are served meanwhile; worker threads wait for the disk.  If the disk refuses
to delete or to read a file, the run continues with everything else, and the next run tries again.

Source: store.md 5.10; DefaultMessageStore.java, addScheduleTask.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.network.connection import ConnectionContext
from triomq.broker.services.stalls import StallWatch
from triomq.broker.shared import BrokerPart
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.work import Signal, Worker
from triomq.protocol.errors import StoreError
from triomq.protocol.event_log import EventLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.index.message_index import MessageIndex
from triomq.storage.retention import Deletion, Retention

LOGGER: Final = logging.getLogger("triomq.broker.services.housekeeping")

_LEAST_JUMP_MS: Final = 1000  # a clock that is adjusted gradually moves by half a millisecond a second
_TRUSTED_AFTER_MS: Final = 3_600_000


def elapsed_ms() -> int:
    """Return a clock, in ms, that is never set; it also counts while the machine is suspended, if the system can."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


def steady_ms() -> int:
    """Return a clock, in ms, that is never set."""
    return time.monotonic_ns() // 1_000_000


class ClockWatch:
    """Compares both clocks whenever ``check`` is called.

    Attributes:
        clock_ms: the wall clock.
        jump_ms: how far it was set last, backwards if negative; 0: it was not set.
    """

    def __init__(self, clock_ms: Callable[[], int], elapsed_clock_ms: Callable[[], int] = elapsed_ms) -> None:
        self.clock_ms = clock_ms
        self._elapsed_ms = elapsed_clock_ms
        self._jumped_at = elapsed_clock_ms()
        self._difference_ms = self._start_ms = clock_ms() - self._jumped_at
        self.jump_ms = 0

    def even_ms(self) -> int:
        """Return the wall clock as it would be if it were not set since the start: for durations."""
        return self._start_ms + self._elapsed_ms()

    @property
    def jump_age_ms(self) -> int:
        """How long ago the wall clock was set last; the age of this object if it was not."""
        return self._elapsed_ms() - self._jumped_at

    @property
    def is_trusted(self) -> bool:
        """Whether the clock was not set forward within the last hour; deletion by age waits that long."""
        return self.jump_ms <= 0 or self.jump_age_ms >= _TRUSTED_AFTER_MS

    def begin(self, newest_ms: int) -> None:
        """Compare the clock with the store time of the newest message, when the broker starts."""
        if newest_ms - self.clock_ms() >= _LEAST_JUMP_MS:
            self._report(self.clock_ms() - newest_ms, "the newest message is of the future")

    def check(self) -> None:
        """Compare the clocks; call it once a second."""
        jump_ms = self.clock_ms() - self._elapsed_ms() - self._difference_ms
        self._difference_ms += jump_ms
        if abs(jump_ms) >= _LEAST_JUMP_MS:
            self._report(jump_ms, "it was set")

    def _report(self, jump_ms: int, reason: str) -> None:
        self.jump_ms, self._jumped_at = jump_ms, self._elapsed_ms()
        LOGGER.warning("wall clock jumped seconds=%+.1f reason=%s", jump_ms / 1000, reason)


_INTERVAL_S: Final = 1.0
_INDEX_INTERVAL_S: Final = 0.1
_BUSY_MESSAGES: Final = 1_000  # sent, copied and pulled in an interval
_MAX_LAG_BYTES: Final = 256 * 1024**2  # of the log: less than a second's work, and still in memory
_SCAN_INTERVAL_S: Final = 10.0
_EXPOSURE_INTERVAL_S: Final = 3600.0


@dataclass(slots=True, eq=False)
class Housekeeping(BrokerPart):
    """Runs once a second."""

    routes: RouteTable
    stalls: StallWatch
    clock_watch: ClockWatch

    async def run(self) -> None:
        """Work until cancelled."""
        context = self.context
        next_scan = trio.current_time() + _SCAN_INTERVAL_S
        while True:
            await trio.sleep(_INTERVAL_S)
            now = trio.current_time()
            context.statistics.sample(now)
            context.statistics.note_day(time.localtime(self.clock_watch.clock_ms() // 1000).tm_yday)
            close_idle(context, _INTERVAL_S)
            self.groups.consumers.check()
            context.client_requests.expire(now)
            self.stalls.scan(now)
            self.clock_watch.check()
            if now >= next_scan:
                next_scan = now + _SCAN_INTERVAL_S
                self.remove_silent_members()
                close_silent_brokers(self.routes)
            context.worker.end_step()

    def remove_silent_members(self) -> None:
        """Close the connections of consumers, and forget producers, without a heartbeat for too long."""
        timeout_s = self.config.client_timeout_s
        for connection in self.groups.consumers.expired(timeout_s):
            LOGGER.warning("connection closed peer=%s reason=no heartbeat", connection.peer)
            connection.close("no heartbeat")
        self.groups.producers.drop_silent(timeout_s)


async def log_exposure(exposure: str, may_misjudge_peers: bool = False, replayable_at: str = "") -> None:
    """Log now and every hour which requests the server accepts from any address, and where signed ones need no TLS.

    It ends when it is cancelled, or at once if there are none.
    """
    if may_misjudge_peers:
        LOGGER.warning("clients may look local: this is a container, and --no-local-peers is not given")
    while exposure or replayable_at:
        if exposure:
            LOGGER.warning("open to everybody who reaches it, without an account (--insecure): %s", exposure)
        if replayable_at:
            LOGGER.warning(
                "signed requests can be replayed, as TLS is not required (--tls enforcing): %s", replayable_at
            )
        await trio.sleep(_EXPOSURE_INTERVAL_S)


def close_idle(context: ConnectionContext, passed_s: float) -> None:
    """Close the connections on which nothing was read or written for too long; call it every ``passed_s``."""
    limit = context.config.idle_timeout_s
    for connection in list(context.connections):
        connection.idle_s += passed_s
        if connection.idle_s > limit:
            context.statistics.idle_closed += 1
            connection.close(f"idle for {limit:.0f} s")


def close_silent_brokers(routes: RouteTable) -> None:
    """Remove the brokers that did not register for too long, and close their connections."""
    for owner in routes.expire():
        owner.close("no registration")


class Indexing:
    """Indexes new messages of the commit log several times a second.

    Nothing depends on it, because a search first indexes the rest of the log.  So under load the index falls behind, up
    to a limit, and catches up later.
    """

    def __init__(self, index: MessageIndex, worker: Worker, statistics: BrokerStatistics) -> None:
        self._index = index
        self._worker = worker
        self._statistics = statistics
        self._log = EventLog(LOGGER, "messages are not indexed for now: %s")

    async def run(self) -> None:
        """Index until cancelled."""
        while True:
            before = self._messages()
            await trio.sleep(_INDEX_INTERVAL_S)
            is_busy = self._messages() - before > _BUSY_MESSAGES
            before = self._messages()
            while self._index.lag_bytes > (_MAX_LAG_BYTES if is_busy else 0) and await self._catch_up():
                await trio.lowlevel.checkpoint()
                if not is_busy and self._messages() - before > _BUSY_MESSAGES:
                    break

    def _messages(self) -> int:
        statistics = self._statistics
        return statistics.put_messages + statistics.copied_messages + statistics.get_messages

    async def _catch_up(self) -> bool:
        """Index a slice; return whether more is left."""
        try:
            is_more_left = await self._worker.run(self._index.follow(), urgent=True)
        except StoreError as exc:  # sending continues, and the next interval tries again
            self._log.occurred(exc)
            return False
        self._log.ended()
        return is_more_left


_FIRST_MEASUREMENT_S: Final = 1.0
_MAX_QUEUES: Final = 256


@dataclass(eq=False)
class RetentionService(BrokerPart):
    """Runs ``Retention`` at intervals.

    Attributes:
        clock_watch: knows whether to believe the clock.
        retention: what does the work.
    """

    clock_watch: ClockWatch

    def __post_init__(self) -> None:
        self.retention = Retention(self.store)
        self._log = EventLog(LOGGER, "old files are not deleted for now: %s", logging.WARNING)
        self._requested = Signal()

    def request(self) -> None:
        """Delete expired files now and in the next runs, whatever the hour."""
        self.retention.request()
        self._requested.set()

    async def run(self) -> None:
        """Work until cancelled."""
        first_run = trio.current_time() + self.config.retention_delay_s
        await self._sleep(_FIRST_MEASUREMENT_S)
        while True:
            try:
                if self._requested.is_set() or trio.current_time() >= first_run:
                    self._requested.clear()
                    await self.clean()
                    self._log.ended()
                else:
                    self.store.check_disk()
            except StoreError as exc:
                self._log.occurred(exc)
            await self._sleep(self.store.config.clean_interval_s)

    async def _sleep(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._requested.wait()

    async def clean(self) -> None:
        """Do one run; a refusal of the disk does not keep the rest from being done.

        Raises:
            StoreError: the first refusal; the next run tries everything again.
        """
        retention = self.retention
        refusals: list[StoreError] = []
        if retention.held:
            with _collected(refusals):
                await trio.to_thread.run_sync(retention.finish_held)
        with _collected(refusals):
            for number, reason in enumerate(retention.plan(is_clock_trusted=self.clock_watch.is_trusted)):
                if number:
                    await trio.sleep(self.store.config.delete_files_interval_s)
                await self._finish(retention.delete_log_file(reason))
        if retention.is_behind:
            refused: dict[ConsumeQueue, StoreError] = {}
            behind = retention.queues_behind
            for at in range(0, len(behind), _MAX_QUEUES):
                await self._follow_with(behind[at : at + _MAX_QUEUES], refused)
            refusals += refused.values()
            with _collected(refusals):
                retention.follow(refused)
        if refusals:
            raise refusals[0]

    async def _follow_with(self, queues: Sequence[ConsumeQueue], refused: dict[ConsumeQueue, StoreError]) -> None:
        """Delete the units of deleted messages; a queue that cannot be read or cut does not affect the others."""
        retention = self.retention
        try:
            await trio.to_thread.run_sync(retention.reading_for(queues))
            retention.correct_queues(queues)
            await trio.lowlevel.checkpoint()
            while deletion := retention.delete_queue_files(queues):
                await self._finish(deletion)
        except StoreError as exc:
            if len(queues) == 1:
                refused[queues[0]] = exc
                return
            for queue in queues:
                await self._follow_with((queue,), refused)

    async def _finish(self, deletion: Deletion) -> None:
        is_done = False
        try:
            is_done = await trio.to_thread.run_sync(deletion.finish)
        finally:
            if not is_done:
                self.retention.held.append(deletion)


@contextmanager
def _collected(refusals: list[StoreError]) -> Iterator[None]:
    try:
        yield
    except StoreError as exc:
        refusals.append(exc)
