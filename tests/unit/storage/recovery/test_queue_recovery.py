from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.storage.making import StoreMaker, put
from triomq.protocol.message_queue import PhysicalOffset
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, REPEATED_CODE, UNIT
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.unit_search import correct_min_offset, newest_unit, oldest_unit, parts_with_units
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.mapped_file import MappedFile, MappingPool
from triomq.storage.files.mapped_file_queue import MappedFileQueue, check_directory
from triomq.storage.recovery.queue_recovery import (
    ends_intact,
    find_good_units,
    find_last_unit,
    lose_units,
    recover_queue,
    resume_queue,
    truncate_queue,
)

PER_FILE = 5
LOG_FILE_SIZE = 1000  # records of these tests lie behind the first file, if nothing else is said


def make(
    root: Path,
    file_system: FileSystem | None = None,
    log_file_size: int = LOG_FILE_SIZE,
    pool: MappingPool | None = None,
) -> ConsumeQueue:
    files = MappedFileQueue(
        file_system or FileSystem(),
        root / "q",
        PER_FILE * 20,
        reserve_step_bytes=100,
        scratch=root / "scratch",
        pool=pool,
    )
    return ConsumeQueue("T", 0, files, log_file_size)


def fill(queue: ConsumeQueue, count: int) -> ConsumeQueue:
    for _ in range(count):
        queue.append_visible(1000 + queue.next_offset * 100, 100, 7)
    return queue


def loaded(root: Path, pool: MappingPool | None = None) -> ConsumeQueue:
    queue = make(root, pool=pool)
    queue.files.load(check_directory(root / "q", FileSystem().list_directory(root / "q"), 100))
    return queue


def overwrite(queue: ConsumeQueue, queue_offset: int, content: bytes) -> None:
    file = queue.files.file_at(queue_offset * 20)
    assert file is not None
    at = queue_offset * 20 - file.start
    file.map[at : at + len(content)] = content


@pytest.mark.parametrize("unit", [bytes(20), UNIT.pack(-1, 100, 0), UNIT.pack(5000, 0, 0), UNIT.pack(5000, -100, 0)])
def test_queue_ends_before_first_bad_unit(tmp_path: Path, unit: bytes) -> None:
    overwrite(fill(make(tmp_path), 14), 8, unit)
    queue = loaded(tmp_path)
    recover_queue(queue, FileSystem(), 2**62)
    assert queue.next_offset == 8
    assert [file.start for file in queue.files.files] == [0, 100]
    assert not any(queue.files.files[1].view[60:])


@pytest.mark.parametrize(
    ("count", "bad", "log_start", "end"),
    [
        pytest.param(22, 3, 2**62, 22, id="only the last three files are checked"),
        pytest.param(42, 13, 1000 + 11 * 100, 13, id="all files beyond the start are checked"),
        pytest.param(43, 3, 0, 3, id="all files are checked"),
        pytest.param(14, 11, None, 14, id="a clean start loses no unit after a damaged one"),
    ],
)
def test_queue_ends_at_bad_unit_of_checked_files(
    tmp_path: Path, count: int, bad: int, log_start: int | None, end: int
) -> None:
    overwrite(fill(make(tmp_path), count), bad, bytes(20))
    queue = loaded(tmp_path)
    if log_start is None:
        resume_queue(queue, FileSystem())
    else:
        recover_queue(queue, FileSystem(), log_start)
    assert queue.next_offset == end


def test_blank_units_are_units_without_messages(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.start_at(8, 1800, 100)
    queue = loaded(tmp_path)
    recover_queue(queue, FileSystem(), 2**62)
    assert (queue.next_offset, queue.max_physical_offset) == (8, 0)
    assert newest_unit(queue) is oldest_unit(queue) is None
    assert truncate_queue(queue, 0) == 0
    fill(queue, 1)
    assert newest_unit(queue) == oldest_unit(queue) == (1800, 100, 7)


def test_truncating_keeps_what_ends_before_end_of_log(tmp_path: Path) -> None:
    queue = fill(make(tmp_path), 12)
    assert truncate_queue(queue, 1700) == 5
    assert (queue.next_offset, queue.max_physical_offset) == (7, 1700)
    assert truncate_queue(queue, 1699) == 1
    assert truncate_queue(queue, 10_000) == 0
    assert truncate_queue(queue, 0) == 6
    assert queue.files.files == []


def test_min_offset_is_first_message_log_still_has(tmp_path: Path) -> None:
    queue = fill(make(tmp_path), 12)
    for log_start, wanted in ((-1, 0), (0, 0), (1000, 0), (1001, 1), (1850, 9), (2100, 11), (2101, 12), (10**6, 12)):
        correct_min_offset(queue, log_start)
        assert queue.min_offset == wanted, log_start


@pytest.mark.parametrize("unit", [bytes(20), UNIT.pack(-1, 100, 0), UNIT.pack(5000, 0, 0), UNIT.pack(5000, -100, 0)])
@pytest.mark.parametrize("first_bad", [0, 3, 5, 9, 10, 11, 12])
def test_clean_start_clears_non_units_at_queue_end(tmp_path: Path, unit: bytes, first_bad: int) -> None:
    queue = fill(make(tmp_path), 13)
    for number in range(first_bad, 13):
        overwrite(queue, number, unit)
    queue = loaded(tmp_path)
    resume_queue(queue, FileSystem())
    assert queue.next_offset == first_bad
    assert len(queue.files.files) == -(-first_bad // PER_FILE)
    assert not any(queue.files.files[-1].view[first_bad % PER_FILE * 20 :] if first_bad % PER_FILE else b"")


@pytest.mark.parametrize("count", [1, 4, 5, 6, 14, 15, 16, 40])
@pytest.mark.parametrize("is_clean", [True, False])
def test_start_returns_queue_ends_without_mapping(tmp_path: Path, count: int, is_clean: bool) -> None:
    fill(make(tmp_path), count)
    queue = loaded(tmp_path, MappingPool(1000))
    found = resume_queue(queue, FileSystem()) if is_clean else recover_queue(queue, FileSystem(), 0)
    assert found == (((1000, 100, 7), (900 + count * 100, 100, 7)), False)
    assert (queue.next_offset, queue.max_offset, queue.max_physical_offset) == (count, count, 1000 + count * 100)
    assert not any(file.is_mapped for file in queue.files.files)
    fill(queue, 7)
    assert [unit and unit.physical_offset for unit in map(queue.unit, range(count + 8))] == [
        *range(1000, 1700 + count * 100, 100),
        None,
    ]


@pytest.mark.parametrize("number", [0, 10])
@pytest.mark.parametrize("unit", [BLANK_UNIT, bytes(20), UNIT.pack(-1, 100, 0)])
def test_queue_not_bounded_by_messages_returns_no_ends(tmp_path: Path, number: int, unit: bytes) -> None:
    overwrite(fill(make(tmp_path), 11), number, unit)
    was_cut = number == 10 and unit != BLANK_UNIT
    assert resume_queue(loaded(tmp_path, MappingPool(1000)), FileSystem()) == (None, was_cut)


@pytest.mark.parametrize("hurt", ["magic", "body", "topic", "nothing"])
def test_queue_ends_intact_if_its_last_record_does(maker: StoreMaker, hurt: str) -> None:
    store = maker()
    at = {"magic": 4, "body": 90, "topic": 93, "nothing": 1000}[hurt]  # the body is "body"
    put(store)
    put(store, "U")
    unit = store.queue("T", 0).unit(0)
    assert unit is not None
    store.commit_log.files.files[0].map[at] ^= 1
    assert ends_intact(store.queue("T", 0), store.commit_log, unit) == (hurt == "nothing")
    for other in (
        unit._replace(size=unit.size - 1),
        unit._replace(size=70_000),
        unit._replace(physical_offset=PhysicalOffset(65_536)),
    ):
        assert not ends_intact(store.queue("T", 0), store.commit_log, other)


@pytest.mark.parametrize("good", [0, 1, 511, 512, 513, 1024, 1025])
@pytest.mark.parametrize("more", [1, 511, 512, 2000])
def test_last_unit_found_before_any_number_of_zeros(tmp_path: Path, good: int, more: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(UNIT.pack(5000, 100, 0) * good + bytes(more * 20))
    files = FileSystem()
    file = MappedFile(files, path, 0, path.stat().st_size)
    found = find_last_unit(file, files)
    assert (found.number if found else 0) == good


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 255, 2**31, 2**40, 2**63 - 1, -1, -(2**63)]),
            st.sampled_from([1, 255, 256, 2**16, 2**24, 2**31 - 1, 0, -1, -(2**31)]),
            st.sampled_from([0, -1, 5]),
        ),
        max_size=20,
    ),
    st.integers(0, 3),
    st.sampled_from([0, 0, 0, 500, 511, 512, 513, 1024, 1030]),
)
def test_bulk_unit_search_matches_one_by_one_search(last: list[tuple[int, int, int]], more: int, good: int) -> None:
    units = [(7, 100, 5)] * good + last
    content = b"".join(UNIT.pack(*unit) for unit in units).ljust((len(units) + more) * 20, b"\0")

    class InMemory:
        path = Path("file")
        size = len(content)
        file = None

    class Everything(FileSystem):
        def data_ranges(self, file: object, start: int, end: int) -> list[tuple[int, int]]:  # type: ignore[override]
            return [(start, end)]

        def read(self, file: object, start: int, length: int) -> bytes:
            return content[start : start + length]

    wanted = next((n for n, (offset, size, _) in enumerate(units) if offset < 0 or size <= 0), len(units))
    found = find_good_units(InMemory(), Everything())  # type: ignore[arg-type]  # all it looks at
    if found is None:
        assert wanted == 0
    else:
        assert found == (wanted, units[0], units[wanted - 1], not any(content[wanted * 20 :]))


def test_unit_of_expired_record_is_no_dangling_one(maker: StoreMaker) -> None:
    store = maker()
    put(store, "T")
    for _ in range(5):
        put(store, "U", body=bytes(20_000))
    store.close()
    (store.config.root / "commitlog" / f"{0:020d}").unlink()
    again = maker()
    assert (again.reader.min_offset_in_queue("T", 0), again.reader.max_offset_in_queue("T", 0)) == (1, 1)


@pytest.mark.parametrize("log_start", [0, 1, 1000, 1150, 1200, 1250, 5000])
@pytest.mark.parametrize("log_file_size", [LOG_FILE_SIZE, 10**6])
def test_lost_messages_in_middle_hide_no_other(tmp_path: Path, log_start: int, log_file_size: int) -> None:
    queue = fill(make(tmp_path, log_file_size=log_file_size), 3)
    queue.append_lost(1500, 151_300, 100)
    fill(queue, 2)
    real = [0, 1, 2, 1503, 1504]
    correct_min_offset(queue, log_start)
    kept = [number for number in real if 1000 + number * 100 >= log_start]
    assert queue.min_offset == (kept[0] if kept else 1505)


@pytest.mark.parametrize("log_file_size", [LOG_FILE_SIZE, 10**6])
def test_lost_messages_at_begin_and_end_are_hidden(tmp_path: Path, log_file_size: int) -> None:
    queue = make(tmp_path, log_file_size=log_file_size)
    queue.start_at(4, 1400, 100)
    fill(queue, 1)
    queue.append_lost(3, 1800, 100)
    correct_min_offset(queue, 0)
    assert queue.min_offset == 4
    correct_min_offset(queue, 10_000)
    assert queue.min_offset == 8


@pytest.mark.parametrize("log_file_size", [LOG_FILE_SIZE, 10**6])
def test_messages_lost_with_those_that_stand_for_them(tmp_path: Path, log_file_size: int) -> None:
    queue = fill(make(tmp_path, log_file_size=log_file_size), 12)
    assert lose_units(queue, 1300, 1500) == 2
    assert lose_units(queue, 1500, 1600) == 1
    assert lose_units(queue, 1300, 1600) == 0
    units = [queue.unit(number) for number in range(12)]
    assert [number for number, unit in enumerate(units) if unit is not None and unit.is_lost] == [3, 4, 5]
    assert len(set(units[3:6])) == 1
    assert units[6] == (1600, 100, 7)


@pytest.mark.parametrize("log_file_size", [LOG_FILE_SIZE, 10**6])
def test_cut_queue_never_ends_with_lost_messages(tmp_path: Path, log_file_size: int) -> None:
    queue = fill(make(tmp_path, log_file_size=log_file_size), 8)
    lose_units(queue, 1500, 1700)
    assert truncate_queue(queue, 1750) == 1
    assert queue.next_offset == 5
    lose_units(queue, 1000, 1400)
    assert truncate_queue(queue, 1450) == 1
    assert queue.files.files == []


def test_damaged_ranges_of_queue_match_exhaustive_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.storage.consume_queue.unit_search._COMPARED_AT_ONCE", 3)
    for seed in range(300):
        random = Random(seed)
        queue = make(tmp_path / str(seed))
        at = 1000
        for _ in range(random.randrange(1, 25)):
            at += random.choice((100, 100, 300, 2000))
            if random.random() < 0.2:
                queue.append_lost(random.randint(1, 4), at, 100)
            queue.append_visible(at, 100, 7)
        borders = sorted(random.sample(range(1000, at + 2000, 50), 2 * random.randint(1, 10)))
        begins, ends = borders[::2], borders[1::2]
        units = [unit for number in range(queue.next_offset) if (unit := queue.unit(number)) and not unit.is_lost]
        wanted = [
            number
            for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
            if any(begin <= unit.physical_offset < end for unit in units)
        ]
        assert parts_with_units(queue, begins, ends) == wanted, f"seed {seed}"


def test_lost_units_of_interrupted_start_hide_nothing(tmp_path: Path) -> None:
    queue = fill(make(tmp_path), 12)
    for number in range(1, PER_FILE):  # the disk has the first file, but not yet the second one
        overwrite(queue, number, UNIT.pack(1900, 100, REPEATED_CODE))
    assert parts_with_units(queue, [1100], [1900]) == [0]
    assert lose_units(queue, 1100, 1900) == 9 - PER_FILE
    assert [number for number in range(12) if (unit := queue.unit(number)) and unit.is_lost] == [*range(1, 9)]
