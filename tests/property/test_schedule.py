"""Delayed messages through random times, steps of the clock, restarts and kills: in order, never early, never lost.

Messages with a delivery time are like a level, but for their order.

After an orderly restart nothing is repeated; after a kill only the messages delivered since the offsets were saved.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from triomq.broker.config import BrokerConfig
from triomq.broker.delayed.delivery import Delivery
from triomq.broker.delayed.levels import Schedule
from triomq.broker.delayed.timer import Timer
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.work import Signal
from triomq.protocol.host import encode_host
from triomq.protocol.record.record import decode_records
from triomq.storage.append import HELD_STEP_MS, entry
from triomq.storage.config import StoreConfig
from triomq.storage.delays import DelayLevels
from triomq.storage.files.file_system import FileSystem, OpenFile
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import MessageStore

HOST: Final = encode_host("127.0.0.1", 10911)
LEVELS: Final = DelayLevels("1s 5s 10s")
TIMED: Final = 0  # means a level


class UnsyncedFileSystem(FileSystem):
    """Does not wait for the disk: only the process is killed, not the machine."""

    def sync_file(self, file: OpenFile) -> None:
        """Nothing is lost without."""

    def sync_directory(self, path: Path) -> None:
        """Nothing is lost without."""

    def write_file(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)

    overwrite_file = write_file


class ScheduleMachine(RuleBasedStateMachine):
    """One store with its schedule, opened, used, closed and killed."""

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp(prefix="schedule-machine-"))
        self.copies = 0
        self.root = self.parent / "0"
        self.now_ms = 1_800_000_000_000
        self.passed_ms = 0  # all steps and durations forwards
        self.due: dict[int, tuple[int, int]] = {}  # number of a message to its level and time
        self.put_at: dict[int, int] = {}  # and to when it was put, by ``passed_ms``
        self.waiting: dict[int, list[int]] = {0: [], 1: [], 2: [], 3: []}  # what shall come, in this order
        self.unsaved: dict[int, list[int]] = {0: [], 1: [], 2: [], 3: []}  # delivered, but a kill repeats it
        self.seen = 0

    @initialize()
    def open(self) -> None:
        config = StoreConfig(
            root=self.root,
            commit_log_file_size_bytes=4096,
            consume_queue_file_size_bytes=100,
            index_slots=10,
            index_units=100,
            delay_levels=LEVELS,
        )
        files = UnsyncedFileSystem()
        self.store = MessageStore(config, file_system=files, clock_ms=lambda: self.now_ms)
        self.store.open()
        table = JsonTable(self.root / "config" / "delayOffset.json", files)
        delivery = Delivery(self.store, BrokerStatistics(0))
        self.schedule = Schedule(delivery, table, Signal())
        self.schedule.load()
        table = JsonTable(self.root / "config" / "timerProgress.json", files)
        settings = BrokerConfig(store=config, timer_max_delay_s=1000)
        self.timer = Timer(delivery, table, Signal(), settings)
        self.timer.load()

    @rule(level=st.integers(1, 4), count=st.integers(1, 8))
    def put(self, level: int, count: int) -> None:
        for _ in range(count):
            number, level = len(self.due), min(level, 3)
            queue, properties = self.store.queue("T", 0), b"DELAY\x01%d" % level
            self.schedule.put(level, entry(queue, b"%d" % number, properties, born_host=HOST, store_host=HOST))
            self.due[number] = level, self.now_ms + LEVELS.delays_ms[level - 1]
            self.put_at[number] = self.passed_ms
            self.waiting[level].append(number)

    @rule(delay_ms=st.integers(1, 12_000), count=st.integers(1, 4))
    def put_timed(self, delay_ms: int, count: int) -> None:
        for _ in range(count):
            number, due = len(self.due), self.now_ms + delay_ms
            if self.timer._taken_ms - self.now_ms <= HELD_STEP_MS:
                due = max(due, self.timer._taken_ms)
            self.put_at[number] = self.passed_ms
            queue = self.store.queue("T", 0)
            self.timer.put(due, entry(queue, b"%d" % number, b"", born_host=HOST, store_host=HOST))
            self.due[number] = TIMED, due
            self.waiting[TIMED].append(number)
        self.sort_timed()

    def sort_timed(self) -> None:
        self.waiting[TIMED].sort(key=lambda number: (self.due[number][1], number))

    @rule(milliseconds=st.integers(0, 12_000))
    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.passed_ms += milliseconds

    @rule(step_ms=st.sampled_from([-86_400_000, -8000, -4000, -2000, 2000, 86_400_000]), is_put_right=st.booleans())
    def set_clock(self, step_ms: int, is_put_right: bool) -> None:
        steps_ms = (step_ms, -step_ms) if is_put_right else (step_ms,)
        for each_ms in steps_ms:
            self.now_ms += each_ms
            self.passed_ms += max(each_ms, 0)  # a broker cannot know better
            self.deliver()

    @rule()
    def deliver(self) -> None:
        found: list[int | None] = [self.now_ms]
        while self.now_ms in found:
            found = [self.schedule.deliver(self.now_ms), self.timer.deliver(self.now_ms)]
        self.check_delivered()
        times = [self.latest(numbers[0]) for numbers in self.waiting.values() if numbers]
        next_ms = min((time for time in found if time is not None), default=None)
        assert (next_ms is None) == (not times)
        assert next_ms is None or self.now_ms < next_ms <= min(times)

    def latest(self, number: int) -> int:
        """Return when a message is due at the latest if the clock is not set again."""
        level, due = self.due[number]
        return due if level == TIMED else min(due, self.now_ms + LEVELS.delays_ms[level - 1])

    def check_delivered(self) -> None:
        while (found := self.store.reader.get_message(("T", 0), self.seen, 32)).buffers:
            for message in (message for view in found.buffers for message in decode_records(view)):
                number = int(message.stored_body)
                level, due = self.due[number]
                assert self.waiting[level].pop(0) == number
                assert self.now_ms <= message.store_timestamp <= self.now_ms + HELD_STEP_MS
                has_waited = level != TIMED and self.passed_ms - self.put_at[number] >= LEVELS.delays_ms[level - 1]
                assert due <= self.now_ms or has_waited
                self.unsaved[level].append(number)
                self.seen += 1

    @rule()
    def save(self) -> None:
        for table in (self.schedule.offsets, self.timer.progress):
            table.write(list(table.pieces()))
        self.unsaved = {0: [], 1: [], 2: [], 3: []}

    @rule()
    def close_and_open(self) -> None:
        self.save()
        self.store.close()
        self.open()

    @rule()
    def kill_and_open(self) -> None:
        self.copies += 1
        copy = self.parent / str(self.copies)
        shutil.copytree(self.root, copy)
        self.store.close()
        shutil.rmtree(self.root)
        self.root = copy
        self.open()
        for level, numbers in self.unsaved.items():
            self.waiting[level][:0] = numbers
        self.sort_timed()
        self.unsaved = {0: [], 1: [], 2: [], 3: []}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.pass_time(12_000)
            self.deliver()
            self.now_ms = max([self.now_ms + 12_000, *(due for _, due in self.due.values())])
            self.deliver()
            assert not any(self.waiting.values())
            self.store.close()
        shutil.rmtree(self.parent)


TestScheduleMachine = ScheduleMachine.TestCase
TestScheduleMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
