"""Pages that are not in memory are found before they are touched."""

import errno
import mmap
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage.making import StoreMaker, body, filled, put
from triomq.protocol.errors import StoreError
from triomq.protocol.record.consume_queue_unit import UNIT_SIZE, ConsumeQueueUnit
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.files.file_system import FileSystem, OpenFile
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import ColdRange, ColdReads, finish, read_ranges
from triomq.storage.retention import Retention


class Memory(FileSystem):
    """A file system whose files are in memory only where they were read."""

    def __init__(self) -> None:
        self.asked = 0
        self.pages: set[tuple[int, int]] = set()  # file and page
        self._names: dict[int, int] = {}

    def is_resident(self, map_: mmap.mmap, start: int, end: int) -> bool:
        self.asked += 1
        return all((id(map_), page) in self.pages for page in range(start // 4096, -(-end // 4096)))

    def load(self, ranges: Sequence[Any]) -> None:
        for file, start, end, _ in ranges:
            self.pages |= {(id(file.map), page) for page in range(start // 4096, -(-end // 4096))}


def reads(store: MessageStore, memory: Memory, clock_s: Callable[[], float] = time.monotonic) -> ColdReads:
    return ColdReads(store.commit_log, store.config, memory, clock_s)


def old(maker: StoreMaker, count: int = 100, **settings: Any) -> tuple[MessageStore, ConsumeQueue]:
    store = maker(**settings)
    for number in range(count):
        put(store, body=body(number))
    store.close()
    store = maker(**settings)
    return store, store.queue("T", 0)


def test_first_units_then_records_are_asked_for(maker: StoreMaker) -> None:
    store, queue = old(maker)
    memory = Memory()
    cold = reads(store, memory)
    units = cold.find(queue, 10, 32, None)
    assert [(each.file.start, each.start, each.end) for each in units] == [(0, 200, 840)]
    assert units[0].file is queue.files.files[0]
    memory.load(units)
    records = cold.find(queue, 10, 32, None)
    first, last = queue.unit(10), queue.unit(41)
    assert first is not None
    assert last is not None
    assert [(each.start, each.end) for each in records] == [(first.physical_offset, last.physical_offset + last.size)]
    memory.load(records)
    assert cold.find(queue, 10, 32, None) == []


def in_windows(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> tuple[MessageStore, ConsumeQueue, int]:
    """Messages of 1 KB with one record in each window, beside those of another queue."""
    monkeypatch.setattr("triomq.storage.reading.cold_read._WINDOW_BYTES", 16384)
    monkeypatch.setattr("triomq.storage.reading.cold_read._MAX_WINDOWS", 1)
    monkeypatch.setattr("triomq.storage.reading.cold_read._GAP_BYTES", 100)
    monkeypatch.setattr("triomq.storage.reading.cold_read._REMEMBERED_S", 1000)
    store = maker()
    for number in range(200):
        put(store, "T" if number % 20 == 0 else "U", body=body(number))
    store.close()
    store = maker()
    queue = store.queue("T", 0)
    return store, queue, queue.max_offset


def test_record_in_unknown_window_is_checked(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    store, queue, count = in_windows(maker, monkeypatch)
    memory = Memory()
    cold = reads(store, memory)
    for file in [*queue.files.files, *store.commit_log.files.files]:
        memory.load([ColdRange(file, 0, file.size)])
    for _ in range(3):
        assert cold.find(queue, 0, count - 1, None) == []
    unit = queue.unit(count - 1)
    assert unit is not None
    last = store.commit_log.files.file_at(unit.physical_offset)
    assert last is not None
    page = (unit.physical_offset - last.start) // 4096
    memory.pages.remove((id(last.map), page))
    assert [part.file for part in cold.find(queue, 0, count, None)] == [last]


def test_recent_records_are_not_asked_for(maker: StoreMaker) -> None:
    store = maker()
    memory = Memory()
    cold = reads(store, memory)
    for number in range(100):
        put(store, body=body(number))
        assert cold.find(store.queue("T", 0), number, 32, None) == []
    assert memory.asked == 0


def test_records_far_from_end_are_asked_for(maker: StoreMaker) -> None:
    store = maker(hot_bytes=5000)
    cold = reads(store, memory := Memory())
    for number in range(20):
        put(store, body=body(number))
    queue = store.queue("T", 0)
    assert cold.find(queue, 17, 32, None) == []
    assert memory.asked == 0
    assert cold.find(queue, 10, 32, None) != []


@pytest.mark.parametrize("queue_offset", [4, 100, 101])
def test_offset_outside_queue_asks_for_nothing(maker: StoreMaker, queue_offset: int) -> None:
    store, queue = old(maker)
    queue.min_offset = 5
    assert reads(store, Memory()).find(queue, queue_offset, 32, None) == []


@pytest.mark.parametrize(("wanted", "max_bytes"), [(60, 2**20), (100, 20_000), (100, 1), (5, 2**20), (100, 2**31 - 1)])
def test_large_read_requests_exactly_what_it_returns(maker: StoreMaker, wanted: int, max_bytes: int) -> None:
    """The consume queue's files have 50 units."""
    settings: dict[str, Any] = {"max_transfer_bytes_asked": 40_000, "consume_queue_file_size_bytes": 2000}
    store, queue = old(maker, **settings)
    memory = Memory()
    cold = reads(store, memory)
    memory.load(cold.find(queue, 0, wanted, None, max_bytes))
    records = cold.find(queue, 0, wanted, None, max_bytes)
    found = store.reader.get_message(queue, 0, wanted, None, max_bytes)
    assert sum(each.end - each.start for each in records) == found.size_bytes
    assert found.size_bytes <= 40_000


def test_distant_records_are_requested_singly_without_filtered(maker: StoreMaker) -> None:
    store = maker(commit_log_file_size_bytes=1024 * 1024)
    for number in range(3):
        put(store, tags="A", body=b"wanted %d" % number)
        put(store, tags="B", body=bytes(100_000))
    store.close()
    store = maker(commit_log_file_size_bytes=1024 * 1024)
    queue = store.queue("T", 0)
    memory = Memory()
    cold = reads(store, memory)
    codes = frozenset({65})
    memory.load(cold.find(queue, 0, 32, codes))
    records = cold.find(queue, 0, 32, codes)
    assert len(records) == 3
    assert sum(each.end - each.start for each in records) < 1000


def test_filter_scans_as_many_units_as_messages_wanted(maker: StoreMaker) -> None:
    settings: dict[str, Any] = {"consume_queue_file_size_bytes": 20 * 2000, "commit_log_file_size_bytes": 1024 * 1024}
    store = maker(**settings)
    for number in range(1000):
        put(store, tags="B" if number < 900 else "A")
    store.close()
    store = maker(**settings)
    queue, codes = store.queue("T", 0), frozenset({65})
    assert store.reader.get_message(queue, 0, 1000, codes).next_begin_offset > 900
    cold = reads(store, memory := Memory())
    asked: list[ColdRange] = []
    while ranges := cold.find(queue, 0, 1000, codes):
        asked += ranges
        memory.load(ranges)
    unit = queue.unit(900)
    assert unit is not None
    assert (asked[0].end, asked[-1].start) == (20_000, unit.physical_offset)


def test_records_on_both_sides_of_file_border_load(maker: StoreMaker) -> None:
    store, queue = old(maker, 100)
    second = store.commit_log.files.files[1]
    numbers = range(queue.max_offset)
    border = next(n for n in numbers if (unit := queue.unit(n)) is not None and unit.physical_offset >= second.start)
    cold = reads(store, memory := Memory())
    asked = []
    while ranges := cold.find(queue, border - 2, 4, None):
        asked += ranges
        memory.load(ranges)
    last = queue.unit(border + 1)
    assert last is not None
    assert [(each.file, each.start) for each in asked if each.file is second] == [(second, 0)]
    assert asked[-1].end == last.physical_offset + last.size - second.start


def test_resident_window_is_not_rechecked_at_once(maker: StoreMaker) -> None:
    now = 100.0
    store, queue = old(maker)
    cold = reads(store, memory := Memory(), lambda: now)
    files = [*queue.files.files, *store.commit_log.files.files]
    memory.load([ColdRange(file, 0, file.size) for file in files])
    assert cold.find(queue, 0, 16, None) == []
    assert memory.asked == 2
    for queue_offset in range(1, 9):
        assert cold.find(queue, queue_offset, 4, None) == []
    assert memory.asked == 2
    now += 0.3
    memory.pages.clear()
    assert cold.find(queue, 1, 4, None) != []


def test_log_asked_for_from_place_on_until_end(maker: StoreMaker) -> None:
    store, _ = old(maker)
    log = store.commit_log
    cold = reads(store, memory := Memory())
    (ranges,) = cold.load_log(100)
    assert [(each.file.start, each.start, each.end) for each in ranges if isinstance(each, ColdRange)] == [
        (0, 100, min(log.files.file_size, log.max_offset))
    ]
    memory.load(ranges)
    memory.pages.add((id(log.files.files[0].map), 0))
    assert list(cold.load_log(100)) == []
    assert finish(cold.load_log(100)) == min(log.files.file_size, log.max_offset)
    assert list(cold.load_log(log.max_offset)) == []
    assert put(store).physical_offset == log.own_from
    assert list(cold.load_log(log.own_from)) == []
    assert finish(cold.load_log(log.own_from)) == log.max_offset


def test_deleted_and_damaged_places_are_left_to_read(maker: StoreMaker) -> None:
    store, queue = old(maker)
    memory = Memory()
    cold = reads(store, memory)
    memory.load(cold.find(queue, 0, 1, None))
    store.commit_log.files.remove_oldest()
    assert cold.find(queue, 0, 1, None) == []
    file = queue.files.files[0]
    file.map[0:8] = (2**40).to_bytes(8)
    assert cold.find(queue, 0, 1, None) == []


def test_kernel_reports_pages_in_memory(tmp_path: Path) -> None:
    files = FileSystem()
    file = files.create_file(tmp_path / "scratch", 1024 * 1024, tmp_path / "scratch")
    os.pwrite(file.fileno(), b"x" * 1024 * 1024, 0)
    files.sync_file(file)
    map_ = files.map_file(file, 1024 * 1024)
    assert files.is_resident(map_, 0, 1024 * 1024)
    assert files.is_resident(map_, 5, 5)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if files.is_resident(map_, 0, 4096):
        pytest.skip("this file system keeps all its files in memory")
    files.read_into_memory(file, 8192, 8292)
    assert files.is_resident(map_, 8192, 8292)
    files.read_into_memory(file, 0, 1024 * 1024)
    assert files.is_resident(map_, 1, 1024 * 1024)
    files.read_ahead(file, 0, 4096)


def test_unknown_page_counts_as_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.storage.files.file_system._mincore", lambda *_: -1)
    assert FileSystem().is_resident(mmap.mmap(-1, 4096), 0, 4096)


def test_truncated_file_raises_error_without_killing_process(maker: StoreMaker) -> None:
    store, queue = old(maker, index=False)
    file, units = store.commit_log.files.files[1], queue.files.files[0]
    os.truncate(file.path, 4096)
    border = next(n for n in range(100) if (unit := queue.unit(n)) is not None and unit.physical_offset >= file.start)
    ranges = store.cold_reads.find(queue, border + 10, 1, None)
    assert ranges
    with pytest.raises(StoreError, match=r"cannot read .*no data at \d+, the file was truncated"):
        read_ranges(ranges)
    os.truncate(units.path, 10)
    with pytest.raises(StoreError, match=r"cannot read .*no data at 0, the file was truncated"):
        units.read(0, UNIT_SIZE)


def test_file_deleted_before_its_read_is_skipped(maker: StoreMaker) -> None:
    read: list[Path] = []

    class Reading(FileSystem):
        def read_into_memory(self, file: OpenFile, start: int, end: int) -> None:
            read.append(file.path)

    store, queue = old(maker)
    cold = reads(store, memory := Memory())
    units = cold.find(queue, 0, 1, None)
    memory.load(units)
    records = cold.find(queue, 0, 1, None)
    queue.files.files[0].unmap()
    queue.files.files[0].path.unlink()
    read_ranges([*units, *records], Reading())
    assert read == [store.commit_log.files.files[0].path]


def test_consecutive_messages_are_not_checked_one_by_one(maker: StoreMaker) -> None:
    store, queue = old(maker, commit_log_file_size_bytes=4 * 1024**2)
    cold = reads(store, memory := Memory())
    memory.load([(file, 0, file.size, 0) for file in [*queue.files.files, *store.commit_log.files.files]])
    assert list(cold.load_messages(queue, range(5, 45), 10**6)) == []
    assert memory.asked < 20
    assert list(cold.load_messages(queue, [30, 10, 20], 10**6)) == []
    cold = reads(store, Memory())
    assert list(cold.load_messages(queue, range(5, 45), 10**6)) != []
    assert list(cold.load_messages(queue, [30, 10, 20], 10**6)) != []


def behind_its_log(maker: StoreMaker) -> tuple[MessageStore, Retention]:
    """A store of an earlier process of which the oldest files of the log were deleted, but no queue has followed."""
    filled(maker, 400).close()
    store = maker()
    for _ in range(3):
        store.commit_log.files.remove_oldest()
    return store, Retention(store)


def test_begin_of_idle_queue_is_preloaded_for_retention(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looked_at = set(), set()
    store, retention = behind_its_log(maker)

    def note_read(self: FileSystem, file: OpenFile, start: int, length: int) -> bytes:
        assert length == UNIT_SIZE
        read.add((file.path.parent.parent.name, int(file.path.name) + start))
        return real_read(self, file, start, length)

    def note_look(self: ConsumeQueue, queue_offset: int) -> ConsumeQueueUnit | None:
        looked_at.add((self.topic, queue_offset * UNIT_SIZE))
        return real_look(self, queue_offset)

    real_read, real_look = FileSystem.read, ConsumeQueue.unit
    monkeypatch.setattr(FileSystem, "read", note_read)
    monkeypatch.setattr(ConsumeQueue, "unit", note_look)
    retention.reading_for(store.queues)()
    retention.correct_queues(store.queues)
    assert {topic for topic, _ in looked_at} == {"T", "U"}
    assert len(looked_at) > 6
    assert looked_at <= read
    assert all(queue.min_offset > 0 for queue in store.queues)


def test_unreadable_queue_error_and_deleted_queue_not(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store, retention = behind_its_log(maker)
    reading = retention.reading_for(store.queues)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "read", fail)
        with pytest.raises(StoreError, match=r"cannot read .*consumequeue/T/0/0+: Input/output error"):
            reading()
    store.delete_topic("T")
    reading()
    retention.correct_queues(store.queues)
