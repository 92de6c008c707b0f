"""index_file: one file, byte for byte, and the chains in it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.storage.making import FaultyFileSystem, overwrite
from triomq.protocol.errors import IndexDamagedError, StoreFullError
from triomq.protocol.message_queue import PhysicalOffset
from triomq.protocol.record import layouts
from triomq.protocol.record.index_unit import HEADER, IndexHeader
from triomq.storage.files.file_system import FileSystem
from triomq.storage.index.index_file import NO_UNITS, IndexFile, IndexLayout, open_index_file

SMALL: Final = IndexLayout(slots=5, max_units=12)
FOREVER: Final = 2**63 - 1


class Entry(NamedTuple):
    key_hash: int
    offset: int
    timestamp: int


ENTRIES: Final = st.lists(
    st.builds(Entry, st.integers(0, 2**31 - 1), st.just(0), st.integers(0, 2**41)), min_size=1, max_size=11
).map(lambda entries: [entry._replace(offset=100 * number) for number, entry in enumerate(entries, 3)])


def make(folder: Path, header: IndexHeader = NO_UNITS, file_system: FileSystem | None = None) -> IndexFile:
    path = folder / "index" / f"{len(list(folder.rglob('index/*'))):017d}"
    file = IndexFile(file_system or FileSystem(), SMALL, path, header)
    file.create(folder / "scratch")
    return file


def append(file: IndexFile, entries: Iterable[Entry]) -> None:
    hashes, offsets, timestamps = zip(*entries, strict=True)
    file.append(hashes, offsets, timestamps)


def find(file: IndexFile, key_hash: int, begin: int = 0, end: int = FOREVER, most: int = 64) -> list[int]:
    found: list[int] = []
    for _ in file.select(key_hash, begin, end, most, found):
        pass
    return found


def as_rocketmq_writes(entries: Iterable[Entry], preset: int = 0) -> bytes:
    """The rules of store.md 4.5, one unit after the other."""
    header: dict[str, Any] = dict.fromkeys(IndexHeader._fields, 0)
    header |= {"begin_timestamp": preset, "end_timestamp": preset, "index_count": 1}
    slots = [0] * SMALL.slots
    units: list[dict[str, int]] = [dict.fromkeys(("key_hash", "physical_offset", "time_diff_s", "previous_unit"), 0)]
    for key_hash, offset, timestamp in entries:
        slot = key_hash % SMALL.slots
        diff_s = (timestamp - header["begin_timestamp"]) // 1000 if header["begin_timestamp"] > 0 else 0
        units.append(
            {
                "key_hash": key_hash,
                "physical_offset": offset,
                "time_diff_s": min(max(diff_s, 0), 2**31 - 1),
                "previous_unit": slots[slot],
            }
        )
        header["hash_slot_count"] += slots[slot] == 0
        slots[slot] = header["index_count"]
        if header["index_count"] == 1:
            header |= {"begin_timestamp": timestamp, "begin_physical_offset": offset}
        header["index_count"] += 1
        header |= {"end_timestamp": timestamp, "end_physical_offset": offset}
    units += [units[0]] * (SMALL.max_units - len(units))
    built: bytes = layouts.index_file(SMALL.slots, SMALL.max_units).build(
        {"header": header, "slots": slots, "units": units}
    )
    return built


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ENTRIES, st.integers(0, 11), st.sampled_from([0, 1000, 2**40]))
def test_file_equals_rocketmqs(tmp_path: Path, entries: list[Entry], cut: int, preset: int) -> None:
    file = make(tmp_path, NO_UNITS._replace(begin_timestamp=preset, end_timestamp=preset))
    for part in (entries[:cut], entries[cut:]):
        if part:
            append(file, part)
    assert file.path.read_bytes() == as_rocketmq_writes(entries, preset)
    found = open_index_file(FileSystem(), SMALL, file.path, SMALL.file_size)
    assert found.header == file.header
    assert found.room == 11 - len(entries)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.builds(Entry, st.integers(0, 12), st.just(0), st.integers(0, 50)), min_size=1, max_size=11),
    st.integers(0, 12),
    st.integers(-5, 60),
    st.integers(-5, 60),
    st.integers(1, 5),
)
def test_newest_units_of_hash_and_time_are_found(
    tmp_path: Path, entries: list[Entry], key_hash: int, begin_s: int, end_s: int, most: int
) -> None:
    times = sorted(entry.timestamp for entry in entries)
    entries = [
        Entry(entry.key_hash, 9 * n, 1000 * (7 + time))
        for n, (entry, time) in enumerate(zip(entries, times, strict=True))
    ]
    file = make(tmp_path)
    append(file, entries)
    begin, end = 1000 * (7 + begin_s), 1000 * (7 + end_s)
    wanted = [entry.offset for entry in entries if entry.key_hash == key_hash and begin <= entry.timestamp <= end]
    assert find(file, key_hash, begin, end, most) == wanted[::-1][:most]


def test_times_compared_in_whole_seconds_since_file_begin(tmp_path: Path) -> None:
    file = make(tmp_path)
    append(file, [Entry(1, 0, 10_500), Entry(1, 100, 11_400)])
    assert find(file, 1, begin=10_500) == [100, 0]
    assert find(file, 1, begin=10_501) == []
    assert find(file, 1, end=10_500) == [100, 0]
    assert find(file, 1, end=10_499) == []


def test_new_file_is_empty_and_header_repeats_arguments(tmp_path: Path) -> None:
    header = IndexHeader(4000, 4000, PhysicalOffset(50), PhysicalOffset(50), 0, 1)
    file = make(tmp_path, header)
    assert file.is_empty
    assert file.path.read_bytes() == HEADER.pack(*header[:5], 0).ljust(SMALL.file_size, b"\0")
    assert open_index_file(FileSystem(), SMALL, file.path, SMALL.file_size).header == header
    assert find(file, 1) == []
    assert not (tmp_path / "scratch").exists()


def test_long_chain_is_walked_in_steps(tmp_path: Path) -> None:
    file = IndexFile(FileSystem(), IndexLayout(1, 6000), tmp_path / "index" / "1", NO_UNITS)
    file.create(tmp_path / "scratch")
    append(file, [Entry(number % 2, number, 1) for number in range(5000)])
    found: list[int] = []
    assert sum(1 for _ in file.select(1, 0, 10, 10_000, found)) == 2
    assert found == list(range(4999, 0, -2))


def test_failed_creation_on_full_disk_leaves_no_file(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    faulty.fails = lambda number, name, path: name == "reserve"
    with pytest.raises(StoreFullError):
        make(tmp_path, file_system=faulty)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    "header",
    [
        IndexHeader(0, 0, PhysicalOffset(0), PhysicalOffset(0), 0, 13),
        IndexHeader(0, 0, PhysicalOffset(0), PhysicalOffset(0), 3, 3),
        IndexHeader(0, 0, PhysicalOffset(0), PhysicalOffset(0), -1, 3),
        IndexHeader(0, 0, PhysicalOffset(9), PhysicalOffset(8), 1, 3),
        IndexHeader(0, 0, PhysicalOffset(-1), PhysicalOffset(8), 1, 3),
        IndexHeader(-1, 0, PhysicalOffset(0), PhysicalOffset(8), 1, 3),
        IndexHeader(0, -1, PhysicalOffset(0), PhysicalOffset(8), 1, 3),
    ],
)
def test_impossible_header_is_damage(tmp_path: Path, header: IndexHeader) -> None:
    file = make(tmp_path)
    overwrite(file.path, 0, HEADER.pack(*header))
    with pytest.raises(IndexDamagedError, match="impossible header"):
        open_index_file(FileSystem(), SMALL, file.path, SMALL.file_size)


@pytest.mark.parametrize("number", [1, 3])
def test_units_that_contradict_header_are_damage(tmp_path: Path, number: int) -> None:
    file = make(tmp_path)
    append(file, [Entry(1, 10, 1), Entry(1, 20, 1), Entry(1, 30, 1)])
    file.check_ends()
    overwrite(file.path, SMALL.units_at + 20 * number + 11, b"\x77")
    with pytest.raises(IndexDamagedError, match="header"):
        file.check_ends()


@pytest.mark.parametrize(
    ("position", "content"),
    [
        (HEADER.size + 4, b"\0\0\0\7"),  # a slot that points behind the newest unit
        (HEADER.size + 4, b"\xff\0\0\0"),
        (SMALL.units_at + 20 * 3, b"\0\0\0\2"),  # a hash of another slot
        (SMALL.units_at + 20 * 3 + 4, b"\x7f"),  # an offset behind the end
        (SMALL.units_at + 20 * 3 + 12, b"\xff"),  # a negative time
        (SMALL.units_at + 20 * 3 + 16, b"\0\0\0\3"),  # a chain that leads to itself
    ],
)
def test_broken_chain_is_damage(tmp_path: Path, position: int, content: bytes) -> None:
    file = make(tmp_path)
    append(file, [Entry(1, 10, 1), Entry(1, 20, 1), Entry(1, 30, 1)])
    overwrite(file.path, position, content)
    with pytest.raises(IndexDamagedError):
        find(file, 1)


@pytest.mark.parametrize("content", [b"\0\0\0\2", b"\xff\xff\xff\xff"])
def test_slot_without_unit_is_damage_for_writer_too(tmp_path: Path, content: bytes) -> None:
    file = make(tmp_path)
    append(file, [Entry(2, 10, 1)])
    overwrite(file.path, HEADER.size + 4, content)
    with pytest.raises(IndexDamagedError, match="slot"):
        append(file, [Entry(1, 20, 1)])
