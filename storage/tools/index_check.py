"""Verify the index files of a stopped store: each unit names a record that has a key with its hash, at its time,
and is reached from its slot.

Sizes are not recorded: if they are not RocketMQ's defaults, the positions of first and last units show them.
"""

import sys
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, TypeAlias

from triomq.protocol.record.index_unit import HEADER, SLOT_SIZE, UNIT, UNIT_SIZE, IndexHeader, IndexUnit, key_hash
from triomq.protocol.record.properties import PropertyName, get_property
from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.storage.commit_log.log_scan import Progress
from triomq.storage.files.file_system import translated
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.index.index_file import MAX_DIFF_S, IndexLayout, list_index_files
from triomq.storage.tools.stopped_store import StoppedStore

_UNIQUE_KEY: Final = PropertyName.UNIQUE_KEY.encode()
_KEYS: Final = PropertyName.KEYS.encode()
_TAGS: Final = PropertyName.TAGS.encode()
_TAG_PREFIX: Final = b"T#"  # of the key that RocketMQ 5.5 adds for a tag
_PROGRESS_STEP: Final = 10_000
_HASH_AND_OFFSET: Final = Struct(">iq")

IndexEntry: TypeAlias = tuple[Path, int, str]
"""A unit that was looked at: path of its file, number, 0 for the file itself, and the defect, "" without one."""


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
    files: list[tuple[MappedFile, IndexHeader]] = []
    yield from _open_files(store, files)
    slots = _slots(store, files)
    total = sum(header.index_count for _, header in files)
    done = 0
    for file, header in files:
        if slots is None:
            if header.end_physical_offset >= store.log.files.start:  # else all of it has expired
                yield (file.path, 0, "neither its first unit nor its last is where its header says")
        elif header.index_count * UNIT_SIZE + HEADER.size + SLOT_SIZE * slots > file.size:
            yield (file.path, 0, f"its header says {header.index_count} units, but the file is too short")
        else:
            for entry in _check_file(store, file, header, slots, log_end, fillers):
                done += 1
                if progress is not None and done % _PROGRESS_STEP == 0:
                    progress(done, total)
                yield entry


def _open_files(store: StoppedStore, files: list[tuple[MappedFile, IndexHeader]]) -> Iterator[IndexEntry]:
    """Add the files that have units, and yield the defects of headers."""
    for name, _, _, size_bytes in list_index_files(store.file_system, store.directory.index):
        path = store.directory.index / name
        if size_bytes < HEADER.size:
            yield (path, 0, f"{size_bytes} bytes are no index file")
            continue
        with translated("open", path):
            file = MappedFile(store.file_system, store.file_system.open_file(path), 0, size_bytes)
        header = IndexHeader(*HEADER.unpack_from(file.view))
        count, used_slots = header.index_count, header.hash_slot_count
        if count < 0 or (store.is_clean and count <= 1 and used_slots > 0):
            yield (path, 0, f"its header says {count} units in {used_slots} slots")
        if count > 1:
            files.append((file, header))


def _slots(store: StoppedStore, files: Sequence[tuple[MappedFile, IndexHeader]]) -> int | None:
    """Return the number of slots that most units agree with which the headers name as first or last."""
    defaults = IndexLayout(store.config.index_slots, store.config.index_units)
    if any(file.size == defaults.file_size for file, _ in files):
        return defaults.slots
    found: Counter[int] = Counter()
    for file, header in files:
        for offset, number, find, choose in (
            (header.begin_physical_offset, 1, file.map.find, min),
            (header.end_physical_offset, header.index_count - 1, file.map.rfind, max),
        ):
            hashes = _hashes(store.log.check(offset, check_crc=False))  # none if its record has expired
            places = [find(_HASH_AND_OFFSET.pack(hashed, offset), HEADER.size) for hashed in hashes]
            at = choose((place for place in places if place >= 0), default=0)
            slots, rest = divmod(at - HEADER.size - number * UNIT_SIZE, SLOT_SIZE)
            if slots > 0 and rest == 0:
                found[slots] += 1
    return found.most_common(1)[0][0] if found else None


def _check_file(
    store: StoppedStore, file: MappedFile, header: IndexHeader, slots: int, log_end: int, fillers: Sequence[range]
) -> Iterator[IndexEntry]:
    units_at = HEADER.size + SLOT_SIZE * slots
    newest = array("i", bytes(SLOT_SIZE * slots))  # unit of each slot
    offset = -1
    record, hashes = RecordCheck(RecordKind.END, 0, ""), frozenset[int]()
    for number in range(1, header.index_count):
        unit = IndexUnit(*UNIT.unpack_from(file.view, units_at + number * UNIT_SIZE))
        slot = unit.key_hash % slots
        if unit.physical_offset >= store.log.files.start:
            if unit.physical_offset != offset:  # the units of one record follow one another
                offset = unit.physical_offset
                record = store.log.check(offset, check_crc=False)
                hashes = _hashes(record)
            reason = _reason(record, hashes, header, number, unit)
            if reason and _is_in(fillers, offset):
                reason = ""
            elif not reason and offset >= log_end:
                reason = f"its record, at {offset}, is in the damaged end of the log"
            if not reason and unit.previous_unit != newest[slot]:
                reason = f"its chain continues with unit {unit.previous_unit} instead of {newest[slot]}"
            yield (file.path, number, reason)
        newest[slot] = number
    reasons = [_slots_reason(file, newest, is_clean=store.is_clean)]
    if store.is_clean and not _is_in(fillers, offset):
        reasons.append(_end_reason(header, offset, record))
    for reason in filter(None, reasons):
        yield (file.path, 0, reason)


def _is_in(parts: Sequence[range], offset: int) -> bool:
    number = bisect_right(parts, offset, key=lambda part: part.start)
    return number > 0 and offset in parts[number - 1]


def _end_reason(header: IndexHeader, last_offset: int, last: RecordCheck) -> str:
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


def _reason(record: RecordCheck, hashes: frozenset[int], header: IndexHeader, number: int, unit: IndexUnit) -> str:
    if record.kind is not RecordKind.MESSAGE:
        return f"no record at {unit.physical_offset}: {record.reason}"
    if unit.key_hash not in hashes:
        return f"the record at {unit.physical_offset} has no key with hash {unit.key_hash}"
    seconds = int((record.store_timestamp - header.begin_timestamp) / 1000)
    # The first unit counts from the end of the file before.
    if number > 1 and unit.time_diff_s != min(max(seconds, 0), MAX_DIFF_S):
        return f"{unit.time_diff_s} s after the start of the file, but the record is {seconds} s"
    return ""


def _hashes(record: RecordCheck) -> frozenset[int]:
    """Return the hashes of a message's keys, none for anything else."""
    words = (get_property(record.properties, _KEYS) or b"").split(b" ")
    tag = get_property(record.properties, _TAGS)
    keys = [*words, get_property(record.properties, _UNIQUE_KEY) or b"", _TAG_PREFIX + tag if tag else b""]
    return frozenset(key_hash(record.topic, key.decode("utf-8", "replace")) for key in keys if key)
