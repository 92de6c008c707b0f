from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, UNIT, ConsumeQueueUnit
from triomq.storage.consume_queue.consume_queue import CheckedUnits, ConsumeQueue, lost_units
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


def test_destroyed_queue_begins_again_at_zero(tmp_path: Path) -> None:
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


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda r: (r[0], sum(r))), max_size=30)


@given(RANGES)
def test_nothing_is_covered_that_was_not_added(ranges: list[tuple[int, int]]) -> None:
    checked = CheckedUnits()
    added: set[int] = set()
    for begin, end in ranges:
        checked.add(begin, end)
        added.update(range(begin, end))
        assert checked.covers(begin, end)
    assert all(unit in added for unit in range(80) if checked.covers(unit, unit + 1))


def test_consecutive_readers_make_one_range() -> None:
    checked = CheckedUnits()
    for begin in range(0, 320, 32):
        checked.add(begin, begin + 32)
    checked.add(352, 384)
    assert checked.covers(0, 320)
    assert not checked.covers(0, 321)
    checked.add(320, 352)
    assert checked.covers(0, 384)


def test_of_too_many_ranges_shortest_old_one_goes() -> None:
    checked = CheckedUnits()
    for begin, count in ((0, 10), (100, 3), (200, 20), (300, 5), (400, 1)):
        checked.add(begin, begin + count)
    assert [checked.covers(begin, begin + 1) for begin in (0, 100, 200, 300, 400)] == [True, False, True, True, True]


FILE_SIZE = 10_000


def units(content: bytes) -> list[ConsumeQueueUnit]:
    return [ConsumeQueueUnit._make(unit) for unit in UNIT.iter_unpack(content)]


def test_lost_unit_in_first_file_names_next_record() -> None:
    found = units(lost_units(3, "T", FILE_SIZE, 9_999, 150))
    assert [unit[:2] for unit in found] == [(9_999, 150)] * 3
    assert all(unit.is_lost for unit in found)
    assert {unit.tags_code & 0xFFFF_FFFF for unit in found} == {0}, "who asks for tags is asked to take none of them"


def test_before_message_of_later_file_they_are_blank() -> None:
    assert lost_units(3, "T", FILE_SIZE, 10_000, 150) == BLANK_UNIT * 3


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TIMER_TOPIC])
def test_messages_that_wait_are_not_named_twice(topic: str) -> None:
    assert lost_units(3, topic, FILE_SIZE, 500, 150) == BLANK_UNIT * 3


def test_units_of_one_read_name_next_record() -> None:
    found = units(lost_units(5_000, "T", FILE_SIZE, 500, 150))
    assert len(found) == 5_000
    assert all(unit.is_lost for unit in found)
    assert [unit.physical_offset for unit in found[-1024:]] == [500] * 1024
    assert {unit.physical_offset for unit in found[:-1024]} == {0}
