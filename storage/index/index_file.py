"""One index file: which records of the commit log have a key with a certain hash.

A slot holds the number of the newest unit whose hash belongs to it, and each unit the number of the one before it in
the same slot.  Units are in the order of the log.
Source: IndexFile.java, IndexHeader.java; store.md 4.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from operator import lt
from pathlib import Path
from typing import Final, NamedTuple

from triomq.protocol.errors import IndexDamagedError
from triomq.protocol.message_queue import PhysicalOffset
from triomq.protocol.record.index_unit import HEADER, SLOT_SIZE, UNIT, UNIT_SIZE, IndexHeader, IndexUnit
from triomq.storage.files.file_system import DirectoryEntry, FileSystem, list_store_directory, translated
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.reading.cold_read import PAUSE, ColdRange, Work

NO_UNITS: Final = IndexHeader(0, 0, PhysicalOffset(0), PhysicalOffset(0), 0, 1)
"""Header of the first file of a store."""

MAX_DIFF_S: Final = 2**31 - 1
NO_OFFSET: Final = 2**63 - 1
"""Physical offset above those of all records."""

_WORDS: Final = UNIT_SIZE // 4  # of a unit: hash, offset (two of them), time, previous unit
_RESERVE_STEP_BYTES: Final = 1024**2
_WINDOW_BYTES: Final = 16 * 1024  # read together: the units of one key are usually far apart
_CHAIN_STEPS_AT_ONCE: Final = 2048  # 1 ms


class IndexLayout(NamedTuple):
    """Sizes of all index files of a store; they are not recorded on disk.

    Attributes:
        slots: maxHashSlotNum.
        max_units: maxIndexNum, with the unit that is never used.
    """

    slots: int
    max_units: int

    @property
    def units_at(self) -> int:
        """Position of unit 0 in a file."""
        return HEADER.size + SLOT_SIZE * self.slots

    @property
    def file_size(self) -> int:
        """Bytes of a file."""
        return self.units_at + UNIT_SIZE * self.max_units


class IndexFile:
    """An index file; it is mapped when it is needed first.

    Attributes:
        path: where it is; its name is the local time at which it was made.
        header: its fields, as in the file.
        mapped: while it uses a descriptor and address space.
    """

    def __init__(self, file_system: FileSystem, layout: IndexLayout, path: Path, header: IndexHeader) -> None:
        """Describe a file that ``create`` makes, or that ``open_index_file`` has found."""
        self._file_system = file_system
        self._layout = layout
        self.mapped: MappedFile | None = None
        self._are_slots_loaded = False
        self.path = path
        self.header = header

    @property
    def is_empty(self) -> bool:
        """Whether it has no unit."""
        return self.header.index_count <= 1

    @property
    def room(self) -> int:
        """How many units it still takes."""
        return max(self._layout.max_units - self.header.index_count, 0)

    @property
    def to_flush(self) -> MappedFile:
        """The file, for a flush, which opens it if it is not mapped."""
        return self.mapped or MappedFile(self._file_system, self.path, 0, self._layout.file_size)

    def create(self, scratch: Path) -> None:
        """Make the file, with all disk space for its slots; ``scratch`` is its path until it is complete.

        Raises:
            StoreFullError, StoreError: it cannot be made; nothing is left of it.
        """
        layout = self._layout
        with translated("create", self.path):
            self._file_system.make_directories(self.path.parent)
            file = self._file_system.create_file(scratch, layout.file_size, self.path)
            try:
                mapped = MappedFile(self._file_system, file, 0, layout.file_size, in_order=False)
                mapped.reserve(layout.units_at, _RESERVE_STEP_BYTES)
                HEADER.pack_into(mapped.map, 0, *self.header._replace(index_count=0))  # RocketMQ writes it with a unit
                self._file_system.rename(scratch, self.path)
            except BaseException:  # it has what room there was, which messages and tables need
                self._file_system.unlink(scratch)
                raise
        self.mapped = mapped
        self._are_slots_loaded = True

    def unmap(self) -> None:
        """Unmap the file; it is mapped again when it is needed."""
        self.mapped = None
        self._are_slots_loaded = False

    def delete(self) -> None:
        """Remove the file.

        Raises:
            StoreError: the disk reports an error.
        """
        with translated("delete", self.path):
            self._file_system.unlink(self.path)
        self.mapped = None

    def unit(self, number: int) -> IndexUnit:
        """Return a unit, 1 to ``header.index_count - 1``.

        Raises:
            StoreError: the file cannot be mapped, or is damaged.
        """
        return IndexUnit(*UNIT.unpack_from(self._map().view, self._layout.units_at + UNIT_SIZE * number))

    def load_slots(self) -> Work[None]:
        """Load the slots unless that was done before: appending units touches any of them.

        Raises:
            StoreError: the file cannot be mapped.
        """
        if not self._are_slots_loaded:
            mapped, end = self._map(), self._layout.units_at
            if not self._file_system.is_resident(mapped.map, 0, end):
                yield (ColdRange(mapped, 0, end),)
            self._are_slots_loaded = True

    def append(self, hashes: Sequence[int], offsets: Sequence[int], timestamps: Sequence[int]) -> None:
        """Add units, at least one and at most ``room``: hash, physical offset and store time (ms) of each.

        Raises:
            StoreFullError, StoreError: the disk reports an error, or the file is damaged; nothing of it was added.
        """
        layout, header = self._layout, self.header
        mapped = self._map()
        first = header.index_count
        end = first + len(hashes)
        mapped.reserve(layout.units_at + UNIT_SIZE * end, _RESERVE_STEP_BYTES)
        begin_timestamp, begin_offset = header.begin_timestamp, header.begin_physical_offset
        diffs = []
        if self.is_empty:  # only its time is counted from the end of the file before
            diffs = _seconds_since(begin_timestamp, timestamps[:1])
            begin_timestamp, begin_offset = timestamps[0], PhysicalOffset(offsets[0])
        diffs += _seconds_since(begin_timestamp, timestamps[len(diffs) :])
        previous = self._take_slots(mapped, hashes, first)
        start = layout.units_at + UNIT_SIZE * first
        mapped.map[start : start + UNIT_SIZE * len(hashes)] = _units(hashes, offsets, diffs, previous)
        used_slots = header.hash_slot_count + previous.count(0)
        self.header = IndexHeader(
            begin_timestamp, timestamps[-1], begin_offset, PhysicalOffset(offsets[-1]), used_slots, end
        )
        HEADER.pack_into(mapped.map, 0, *self.header)

    def _take_slots(self, mapped: MappedFile, hashes: Sequence[int], first: int) -> "array[int]":
        """Point the slots of ``hashes`` at the units from ``first`` on; return the units that they pointed at.

        The value is as in the file, most significant byte first.
        """
        slots = memoryview(mapped.map)[HEADER.size : self._layout.units_at].cast("i")
        slot_count = self._layout.slots
        previous: list[int] = []
        remember = previous.append
        for hashed, number in zip(hashes, _swapped(array("i", range(first, first + len(hashes)))), strict=True):
            slot = hashed % slot_count
            remember(slots[slot])
            slots[slot] = number
        raw = array("i", previous)
        numbers = _swapped(array("i", raw))
        if min(numbers) < 0 or not all(map(lt, numbers, range(first, first + len(numbers)))):
            raise IndexDamagedError(f"{self.path}: a slot points at a unit that is not there")
        return raw

    def select(
        self,
        key_hash: int,
        begin_timestamp: int,
        end_timestamp: int,
        max_found: int,
        found: list[int],
        time_of: Callable[[int], Work[int]] | None = None,
        before: int = NO_OFFSET,
    ) -> Work[None]:
        """Append physical offsets below ``before`` of units with a hash and a time, from the newest on.

        There are up to ``max_found`` in all.

        ``time_of`` returns the store time of a record, for a file whose own times do not ascend.

        Raises:
            StoreError: the file cannot be mapped, or is damaged.
        """
        layout, mapped = self._layout, self._map()
        view, slot = mapped.view, key_hash % layout.slots
        yield from self._load(mapped, HEADER.size + SLOT_SIZE * slot)
        header = self.header  # units may have come meanwhile
        number = int.from_bytes(view[HEADER.size + SLOT_SIZE * slot :][:SLOT_SIZE], "big", signed=True)
        limit, steps, loaded = header.index_count, 0, range(0)
        while number and len(found) < max_found:
            if not 0 < number < limit:
                raise IndexDamagedError(f"{self.path}: slot {slot} leads to unit {number}, where only {limit} may be")
            limit = number
            at = layout.units_at + UNIT_SIZE * number
            if at not in loaded:
                loaded = yield from self._load(mapped, at)
            hashed, offset, diff_s, number = UNIT.unpack_from(view, at)
            if (
                hashed % layout.slots != slot
                or diff_s < 0
                or not header.begin_physical_offset <= offset <= header.end_physical_offset
            ):
                raise IndexDamagedError(f"{self.path}: unit {limit} belongs neither to its slot nor to this file")
            time = header.begin_timestamp + (1000 * diff_s if limit > 1 else 0)  # the first one's is the file's own
            if time_of is not None:
                time = (yield from time_of(offset)) if hashed == key_hash else end_timestamp
            elif time < begin_timestamp:
                number = 0
            if hashed == key_hash and offset < before and begin_timestamp <= time <= end_timestamp:
                found.append(offset)
            steps += 1
            if steps % _CHAIN_STEPS_AT_ONCE == 0:
                yield PAUSE

    def _load(self, mapped: MappedFile, at: int) -> Work[range]:
        """Bring the surroundings of a slot or a unit into memory; return where units may begin there."""
        begin = at // _WINDOW_BYTES * _WINDOW_BYTES
        written_to = self._layout.units_at + UNIT_SIZE * self.header.index_count
        end = min(begin + _WINDOW_BYTES + UNIT_SIZE, written_to)
        if not self._file_system.is_resident(mapped.map, begin, end):
            yield (ColdRange(mapped, begin, end),)
        return range(begin, begin + _WINDOW_BYTES)

    def check_ends(self) -> None:
        """Compare the first and the last unit with the header.

        Raises:
            IndexDamagedError: they contradict each other.
            StoreError: the file cannot be mapped.
        """
        header = self.header
        if self.is_empty:
            return
        ends = self.unit(1).physical_offset, self.unit(header.index_count - 1).physical_offset
        if ends != (header.begin_physical_offset, header.end_physical_offset):
            raise IndexDamagedError(
                f"{self.path}: its units reach from {ends[0]} to {ends[1]}, which contradicts its header"
            )

    def _map(self) -> MappedFile:
        if self.mapped is None:
            with translated("open", self.path):
                file = self._file_system.open_file(self.path)
            # slots, and the units of a slot, lie anywhere
            self.mapped = MappedFile(self._file_system, file, 0, self._layout.file_size, in_order=False)
        return self.mapped


def list_index_files(file_system: FileSystem, directory: Path) -> list[DirectoryEntry]:
    """Return the entries with names of index files, oldest first; others are ignored, as in RocketMQ.

    Raises:
        StoreLayoutError: the directory cannot be read.
    """
    entries = list_store_directory(file_system, directory)
    return [entry for entry in entries if entry.is_file and entry.name.isascii() and entry.name.isdecimal()]


def open_index_file(file_system: FileSystem, layout: IndexLayout, path: Path, size_bytes: int) -> IndexFile:
    """Read the header of a file with this length.

    Raises:
        IndexDamagedError: it has not the length or the header of an index file.
        StoreError: it cannot be read.
    """
    if size_bytes != layout.file_size:
        raise IndexDamagedError(
            f"{path}: {size_bytes} bytes, but {layout.slots} slots (index_slots) and {layout.max_units} units"
            f" (index_units) make {layout.file_size}"
        )
    with translated("read", path):
        header = IndexHeader(*HEADER.unpack(file_system.read(file_system.open_file(path), 0, HEADER.size)))
    header = header._replace(index_count=max(header.index_count, 1))
    used = header.index_count - 1
    if (
        used >= layout.max_units
        or not 0 <= header.hash_slot_count <= min(used, layout.slots)
        or not 0 <= header.begin_physical_offset <= header.end_physical_offset
        or header.begin_timestamp < 0
        or header.end_timestamp < 0
    ):
        raise IndexDamagedError(f"{path}: impossible header {header}")
    return IndexFile(file_system, layout, path, header)


def _seconds_since(begin_timestamp: int, timestamps: Sequence[int]) -> list[int]:
    if begin_timestamp <= 0:
        return [0] * len(timestamps)
    seconds = [(time - begin_timestamp) // 1000 for time in timestamps]
    if seconds and min(seconds) >= 0 and max(seconds) <= MAX_DIFF_S:
        return seconds
    return [min(max(second, 0), MAX_DIFF_S) for second in seconds]  # the clock was set


def _units(hashes: Sequence[int], offsets: Sequence[int], diffs: Sequence[int], previous: "array[int]") -> bytes:
    """Return packed units; column by column, which takes a third of the time of packing one after the other."""
    words = array("i", bytes(UNIT_SIZE * len(hashes)))
    halves = array("i", _swapped(array("q", offsets)).tobytes())
    words[0::_WORDS] = _swapped(array("i", hashes))
    words[1::_WORDS] = halves[0::2]
    words[2::_WORDS] = halves[1::2]
    words[3::_WORDS] = _swapped(array("i", diffs))
    words[4::_WORDS] = previous
    return words.tobytes()


def _swapped(numbers: "array[int]") -> "array[int]":
    """Change between this machine's order of bytes and that of the file, most significant first."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
