from pathlib import Path

import pytest

from tests.unit.storage.making import FaultyFileSystem
from triomq.protocol.errors import StoreFullError
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, UNIT
from triomq.storage.consume_queue.consume_queue import ConsumeQueue, lost_units
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.mapped_file_queue import MappedFileQueue

PER_FILE = 5
LOG_FILE_SIZE = 1000  # records of these tests lie behind the first file


def make(root: Path, file_system: FileSystem | None = None) -> ConsumeQueue:
    files = MappedFileQueue(
        file_system or FileSystem(), root / "T" / "3", PER_FILE * 20, reserve_step_bytes=40, scratch=root / "scratch"
    )
    return ConsumeQueue("T", 3, files, LOG_FILE_SIZE)


def fill(queue: ConsumeQueue, count: int) -> None:
    for _ in range(count):
        number = queue.next_offset
        queue.append_visible(1000 + number * 100, 100, number)


def test_a_new_queue_has_nothing_on_disk(tmp_path: Path) -> None:
    queue = make(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.next_offset, queue.max_physical_offset) == (0, 0, 0, 0)
    assert queue.unit(0) is None
    assert queue.units_from(0, 10) is None
    assert not (tmp_path / "T").exists()


def test_units_lie_behind_one_another_across_files(tmp_path: Path) -> None:
    queue = make(tmp_path)
    fill(queue, 12)
    assert [file.start for file in queue.files.files] == [0, 100, 200]
    assert [queue.unit(number) for number in range(12)] == [(1000 + n * 100, 100, n) for n in range(12)]
    assert queue.unit(12) is None
    assert queue.unit(-1) is None
    assert queue.max_physical_offset == 2200
    assert bytes(queue.files.files[1].view) == b"".join(UNIT.pack(1000 + n * 100, 100, n) for n in range(5, 10))


@pytest.mark.parametrize(
    "queue_offsets",
    [[], [3], [0, 1, 2], [1, 2, 3, 4, 5, 6], [5, 4, 6], [4, 6, 5, 7], [2, 2], [10, 11, 12], [-1, 0, 20]],
)
def test_many_units_are_those_of_each_message(tmp_path: Path, queue_offsets: list[int]) -> None:
    queue = make(tmp_path)
    fill(queue, 12)
    queue.max_offset = 11
    assert queue.units_at(queue_offsets) == [queue.unit(number) or (0, 0, 0) for number in queue_offsets]


def test_reserve_covers_all_files_of_many_units(tmp_path: Path) -> None:
    queue = make(tmp_path)
    fill(queue, 3)
    queue.reserve(12)
    assert [file.reserved for file in queue.files.files] == [100, 100, 100]
    assert queue.next_offset == 3
    fill(queue, 12)
    assert queue.unit(14) == (2400, 100, 14)


def test_a_full_disk_changes_nothing_that_readers_see(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    queue = make(tmp_path, faulty)
    fill(queue, 4)
    faulty.fails = lambda number, name, path: name == "create_file"
    with pytest.raises(StoreFullError):
        queue.reserve(2)
    assert queue.next_offset == 4
    fill(queue, 1)
    with pytest.raises(StoreFullError):
        queue.reserve(1)
    faulty.fails = lambda number, name, path: False
    fill(queue, 1)
    assert queue.unit(5) == (1500, 100, 5)


def test_file_made_for_failed_reservation_is_used_later(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    queue = make(tmp_path, faulty)
    faulty.fails = lambda number, name, path: name == "reserve"
    for _ in range(2):
        with pytest.raises(StoreFullError):
            queue.reserve(1)
    faulty.fails = lambda number, name, path: False
    fill(queue, 6)
    assert len(queue.files.files) == 2


def test_read_stops_at_file_end_and_limit(tmp_path: Path) -> None:
    queue = make(tmp_path)
    fill(queue, 8)

    def count(queue_offset: int, most: int) -> int:
        units = queue.units_from(queue_offset, most)
        return len(units) // 20 if units is not None else 0

    assert count(0, 100) == 5
    assert count(3, 100) == 2
    assert count(5, 100) == 3
    assert count(5, 2) == 2
    assert count(8, 100) == 0
    assert count(-1, 100) == 0
    queue.max_offset = 6
    assert count(5, 100) == 1
    assert count(6, 100) == 0


def test_queue_starting_midway_is_padded_with_blank_units(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.start_at(13, 2300, 100)
    assert queue.files.start == 200
    assert bytes(queue.files.files[0].view) == BLANK_UNIT * 3 + bytes(40)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (13, 13, 13)
    fill(queue, 3)
    assert queue.unit(15) == (2500, 100, 15)
    assert [file.start for file in queue.files.files] == [200, 300]


def test_queue_beginning_with_file_has_no_blank_unit(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.start_at(10, 2000, 100)
    assert queue.files.start == 200
    assert not any(queue.files.files[0].view)


def test_lost_messages_keep_their_numbers(tmp_path: Path) -> None:
    queue = make(tmp_path)
    fill(queue, 4)
    queue.append_lost(3, 1700, 100)
    assert (queue.next_offset, queue.max_offset, queue.max_physical_offset) == (7, 7, 1400)
    assert queue.unit(6) == UNIT.unpack(BLANK_UNIT)


@pytest.mark.parametrize("count", [1, 1023, 1025, 2047, 2049, 3500])
def test_many_lost_messages_share_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("triomq.storage.consume_queue.consume_queue._LOST_AT_ONCE", 1024)
    files = MappedFileQueue(
        FileSystem(), tmp_path / "q", 100_000, reserve_step_bytes=4096, scratch=tmp_path / "scratch"
    )
    queue = ConsumeQueue("T", 3, files, log_file_size=10**9)
    queue.append_lost(count, 1700, 100)
    units = queue.units_from(0, count)
    assert units is not None
    assert bytes(units) == lost_units(count, "T", 10**9, 1700, 100)


def test_a_destroyed_queue_begins_again_at_zero(tmp_path: Path) -> None:
    queue = make(tmp_path)
    fill(queue, 7)
    queue.flushed_position = 140
    generation = queue.generation
    queue.destroy()
    assert not (tmp_path / "T" / "3").exists()
    assert (queue.min_offset, queue.max_offset, queue.next_offset, queue.flushed_position) == (0, 0, 0, 0)
    assert queue.generation != generation
    fill(queue, 1)
    assert queue.unit(0) == (1000, 100, 0)


def test_a_queue_says_what_it_is(tmp_path: Path) -> None:
    queue = make(tmp_path)
    assert queue.topic_field == b"\x01T"
    assert repr(queue) == "<ConsumeQueue T:3 0..0>"
