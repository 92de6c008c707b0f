"""Verify the index files of a stopped store: each unit names a record that has a key with its hash, at its time,
and is reached from its slot.

Sizes are not recorded: if they are not RocketMQ's defaults, they are derived from the position of the first unit.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from triomq.protocol.record.index_unit import HEADER, SLOT_SIZE, UNIT, UNIT_SIZE, IndexHeader, IndexUnit, key_hash
from triomq.protocol.record.properties import PropertyName, get_property
from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.log_scan import Progress
from triomq.storage.files.file_system import translated
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.index.index_file import MAX_DIFF_S, IndexLayout
from triomq.storage.tools.stopped_store import StoppedStore

_UNIQUE_KEY: Final = PropertyName.UNIQUE_KEY.encode()
_KEYS: Final = PropertyName.KEYS.encode()
_TAGS: Final = PropertyName.TAGS.encode()
_TAG_PREFIX: Final = b"T#"  # of the key that RocketMQ 5.5 adds for a tag
_MS: Final = 1000
_PROGRESS_STEP: Final = 10_000
_HASH_AND_OFFSET: Final = Struct(">iq")


class IndexEntry(NamedTuple):
    """A unit that was looked at.

    Attributes:
        path: of its file.
        number: in the file; 0 for a defect of the file itself.
        reason: the defect, "" without one.
    """

    path: Path
    number: int
    reason: str


class _Target(NamedTuple):
    """What a unit names.

    Attributes:
        record: the record at its physical offset.
        hashes: of its keys.
    """

    record: RecordCheck
    hashes: set[int]


def check_index(
    store: StoppedStore, log_end: int, fillers: Sequence[range], progress: Progress | None = None
) -> Iterator[IndexEntry]:
    """Look at each unit of a record that has not expired, and at the slots.

    Args:
        store: is open.
        log_end: end of the last good record; the next start of a broker clears the rest.
        fillers: parts of the log, in order, where lost messages were: their units stay.
        progress: called now and then, with units.

    Raises:
        StoreError: a file cannot be read.
    """
    files, short = _open_files(store)
    for path, size_bytes in short:
        yield IndexEntry(path, 0, f"{size_bytes} bytes are no index file")
    for file, header in files:
        if header.index_count < 0 or (store.is_clean and header.index_count <= 1 and header.hash_slot_count > 0):
            reason = f"its header says {header.index_count} units in {header.hash_slot_count} slots"
            yield IndexEntry(file.path, 0, reason)
    files = [(file, header) for file, header in files if header.index_count > 1]
    slots = _common_slots(store, files)
    total = sum(header.index_count for _, header in files)
    done = 0
    for file, header in files:
        if slots is None:
            yield IndexEntry(file.path, 0, "its first unit is not where its header says")
            continue
        units_at = HEADER.size + SLOT_SIZE * slots
        if header.index_count * UNIT_SIZE + units_at > file.size:
            yield IndexEntry(file.path, 0, f"its header says {header.index_count} units, but the file is too short")
            continue
        for entry in _check_file(store, file, header, slots, log_end, fillers):
            done += 1
            if progress is not None and done % _PROGRESS_STEP == 0:
                progress(done, total)
            yield entry


def _open_files(store: StoppedStore) -> tuple[list[tuple[MappedFile, IndexHeader]], list[tuple[Path, int]]]:
    """Return the index files with their headers, and path and length of those that are too short for one."""
    files, short = [], []
    for name in store.directory.index_names():
        path = store.directory.index / name
        with translated("open", path):
            size_bytes = path.stat().st_size
            if size_bytes < HEADER.size:
                short.append((path, size_bytes))
                continue
            file = MappedFile(store.file_system, store.file_system.open_file(path), 0, size_bytes)
        files.append((file, IndexHeader(*HEADER.unpack_from(file.view))))
    return files, short


def _common_slots(store: StoppedStore, files: Sequence[tuple[MappedFile, IndexHeader]]) -> int | None:
    found = (_slots(file, header, store) for file, header in files)
    return min((number for number in found if number is not None), default=None)  # a damaged file may say too many


def _check_file(
    store: StoppedStore, file: MappedFile, header: IndexHeader, slots: int, log_end: int, fillers: Sequence[range]
) -> Iterator[IndexEntry]:
    units_at = HEADER.size + SLOT_SIZE * slots
    newest = array("i", bytes(SLOT_SIZE * slots))  # unit of each slot
    offset = -1
    target = _Target(RecordCheck(RecordKind.END, 0, ""), set())
    for number in range(1, header.index_count):
        unit = IndexUnit(*UNIT.unpack_from(file.view, units_at + number * UNIT_SIZE))
        slot = unit.key_hash % slots
        if unit.physical_offset >= store.log.files.start:
            if unit.physical_offset != offset:  # the units of one record follow one another
                offset = unit.physical_offset
                record = store.log.check(offset, check_crc=False)
                target = _Target(record, _hashes(record) if record.kind is RecordKind.MESSAGE else set())
            reason = _reason(target, header, number, unit)
            if reason and _is_in(fillers, offset):
                reason = ""
            elif not reason and offset >= log_end:
                reason = f"its record, at {offset}, is in the damaged end of the log"
            if not reason and unit.previous_unit != newest[slot]:
                reason = f"its chain continues with unit {unit.previous_unit} instead of {newest[slot]}"
            yield IndexEntry(file.path, number, reason)
        newest[slot] = number
    if store.is_clean and (reason := _header_reason(header, offset, target.record)) and not _is_in(fillers, offset):
        yield IndexEntry(file.path, 0, reason)
    if reason := _slots_reason(file, newest, is_clean=store.is_clean):
        yield IndexEntry(file.path, 0, reason)


def _is_in(parts: Sequence[range], offset: int) -> bool:
    number = bisect_right(parts, offset, key=lambda part: part.start)
    return number > 0 and offset in parts[number - 1]


def _header_reason(header: IndexHeader, last_offset: int, last: RecordCheck) -> str:
    """Return the defect of the end that a header names, "" without one or if the record has expired."""
    if last_offset >= 0 and header.end_physical_offset != last_offset:
        return f"its header says that it ends at {header.end_physical_offset}, but its last record is at {last_offset}"
    if last.kind is RecordKind.MESSAGE and header.end_timestamp != last.store_timestamp:
        return f"its header says that it ends at {header.end_timestamp} ms, its last record at {last.store_timestamp}"
    return ""


def _slots_reason(file: MappedFile, newest: "array[int]", *, is_clean: bool) -> str:
    """Return which slot does not lead to its newest unit, "" if all do.

    A process that was killed may have left slots that lead to units past the end: these are no
    problem, because such a file is rebuilt.
    """
    found = array("i", bytes(file.view[HEADER.size : HEADER.size + SLOT_SIZE * len(newest)]))
    if sys.byteorder == "little":
        found.byteswap()
    if found == newest:
        return ""
    end = max(newest)
    for slot, (number, expected) in enumerate(zip(found, newest, strict=True)):
        if number != expected and (is_clean or number <= end):
            return f"slot {slot} leads to unit {number} instead of {expected}"
    return ""


def _slots(file: MappedFile, header: IndexHeader, store: StoppedStore) -> int | None:
    """Return the number of slots, from the position of the unit that matches the start given in the header.

    If that record has expired, and is that at 0, which zeros name too, the last unit decides.
    """
    defaults = IndexLayout(store.config.index_slots, store.config.index_units)
    if file.size == defaults.file_size:
        return defaults.slots
    found = (_slots_before(file, beginning) for beginning in _first_units(store.log, header))
    slots = min((slots for slots in found if slots is not None), default=None)  # further keys follow
    return slots if slots is not None else _slots_by_last_unit(file, header, store.log)


def _slots_by_last_unit(file: MappedFile, header: IndexHeader, log: CommitLog) -> int | None:
    offset = header.end_physical_offset
    hashes = _hashes(log.check(offset, check_crc=False))  # none if no message is there
    at = max((file.map.rfind(_HASH_AND_OFFSET.pack(hashed, offset)) for hashed in hashes), default=-1)
    slots, rest = divmod(at - HEADER.size - (header.index_count - 1) * UNIT_SIZE, SLOT_SIZE)
    return slots if rest == 0 and slots > 0 else None


def _slots_before(file: MappedFile, beginning: bytes) -> int | None:
    """Return the number of slots if unit 1 is the first one whose hash and offset end so."""
    at = file.map.find(beginning, HEADER.size + UNIT_SIZE)
    while at >= 0:
        slots, rest = divmod(at + len(beginning) - _HASH_AND_OFFSET.size - UNIT_SIZE - HEADER.size, SLOT_SIZE)
        if rest == 0 and slots > 0 and (file.size - HEADER.size - slots * SLOT_SIZE) % UNIT_SIZE == 0:
            return slots
        at = file.map.find(beginning, at + 1)
    return None


def _first_units(log: CommitLog, header: IndexHeader) -> list[bytes]:
    """Return possible starts of the first unit: hash and offset, or only the offset if its record has expired."""
    offset = header.begin_physical_offset
    record = log.check(offset, check_crc=False)
    if record.kind is RecordKind.MESSAGE:
        return [_HASH_AND_OFFSET.pack(hashed, offset) for hashed in _hashes(record)]
    return [_HASH_AND_OFFSET.pack(0, offset)[4:]] if offset > 0 else []


def _reason(target: _Target, header: IndexHeader, number: int, unit: IndexUnit) -> str:
    record, hashes = target
    if record.kind is not RecordKind.MESSAGE:
        return f"no record at {unit.physical_offset}: {record.reason}"
    if unit.key_hash not in hashes:
        return f"the record at {unit.physical_offset} has no key with hash {unit.key_hash}"
    seconds = int((record.store_timestamp - header.begin_timestamp) / _MS)
    if number > 1 and unit.time_diff_s != min(
        max(seconds, 0), MAX_DIFF_S
    ):  # the first one counts from the end of the file before
        return f"{unit.time_diff_s} s after the start of the file, but the record is {seconds} s"
    return ""


def _hashes(record: RecordCheck) -> set[int]:
    words = (get_property(record.properties, _KEYS) or b"").split(b" ")
    tag = get_property(record.properties, _TAGS)
    keys = [*words, get_property(record.properties, _UNIQUE_KEY) or b"", _TAG_PREFIX + tag if tag else b""]
    return {key_hash(record.topic, key.decode("utf-8", "replace")) for key in keys if key}
