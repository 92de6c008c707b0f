"""Verifying the index files of a stopped store: each unit names a record that has a key with its hash, at its time.

Sizes are not recorded: if they are not RocketMQ's defaults, they are found out from where the first unit stands.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from triomq.protocol.index_unit import HEADER, SLOT_SIZE, UNIT, UNIT_SIZE, IndexHeader, IndexUnit, key_hash
from triomq.protocol.properties import PropertyName, get_property
from triomq.protocol.record import RecordCheck, RecordKind
from triomq.storage.commit_log import CommitLog
from triomq.storage.file_system import translated
from triomq.storage.index_file import IndexLayout
from triomq.storage.mapped_file import MappedFile
from triomq.storage.stopped_store import StoppedStore

_UNIQUE_KEY: Final = PropertyName.UNIQUE_KEY.encode()
_KEYS: Final = PropertyName.KEYS.encode()
_MS: Final = 1000
_HASH_AND_OFFSET: Final = Struct(">iq")


class IndexEntry(NamedTuple):
    """A unit that was looked at.

    Attributes:
        path: of its file.
        number: in the file; 0 for what is wrong with the file itself.
        reason: what is wrong, "" if nothing is.
    """

    path: Path
    number: int
    reason: str


def check_index(store: StoppedStore) -> Iterator[IndexEntry]:
    """Look at each unit of a record that has not expired.

    Raises:
        StoreError: a file cannot be read.
    """
    files = []
    for name in store.index_names():
        path = store.root / "index" / name
        with translated("open", path):
            size_bytes = path.stat().st_size
            if size_bytes < HEADER.size:
                yield IndexEntry(path, 0, f"{size_bytes} bytes are no index file")
                continue
            file = MappedFile(store.file_system, store.file_system.open_file(path), 0, size_bytes)
        files.append((file, IndexHeader(*HEADER.unpack_from(file.view))))
    files = [(file, header) for file, header in files if header.index_count > 1]
    found = (_slots(file, header, store) for file, header in files)
    slots = min((number for number in found if number is not None), default=None)  # a damaged file may say too many
    for file, header in files:
        if slots is None:
            yield IndexEntry(file.path, 0, "its first unit is not where the file says that it begins")
            continue
        units_at = HEADER.size + SLOT_SIZE * slots
        if header.index_count * UNIT_SIZE + units_at > file.size:
            yield IndexEntry(file.path, 0, f"it says {header.index_count} units, for which it is too short")
            continue
        for number in range(1, header.index_count):
            unit = IndexUnit(*UNIT.unpack_from(file.view, units_at + number * UNIT_SIZE))
            if unit.physical_offset >= store.log.files.start:
                yield IndexEntry(file.path, number, _reason(store.log, header, number, unit))


def _slots(file: MappedFile, header: IndexHeader, store: StoppedStore) -> int | None:
    """Return how many slots a file has: as many as let its first unit begin where the header says the file does.

    If that record has expired, and is that at 0, which zeros name too, the last unit decides.
    """
    defaults = IndexLayout(store.config.index_slots, store.config.index_units)
    if file.size == defaults.file_size:
        return defaults.slots
    found = (_slots_before(file, beginning) for beginning in _first_units(store.log, header))
    slots = min((slots for slots in found if slots is not None), default=None)  # further keys stand behind
    return slots if slots is not None else _slots_by_last_unit(file, header, store.log)


def _slots_by_last_unit(file: MappedFile, header: IndexHeader, log: CommitLog) -> int | None:
    offset = header.end_physical_offset
    hashes = _hashes(log.check(offset, check_crc=False))  # none if no message is there
    at = max((file.map.rfind(_HASH_AND_OFFSET.pack(hashed, offset)) for hashed in hashes), default=-1)
    slots, rest = divmod(at - HEADER.size - (header.index_count - 1) * UNIT_SIZE, SLOT_SIZE)
    return slots if rest == 0 and slots > 0 else None


def _slots_before(file: MappedFile, beginning: bytes) -> int | None:
    """Return how many slots there are if unit 1 is the first one whose hash and offset end so."""
    at = file.map.find(beginning, HEADER.size + UNIT_SIZE)
    while at >= 0:
        slots, rest = divmod(at + len(beginning) - _HASH_AND_OFFSET.size - UNIT_SIZE - HEADER.size, SLOT_SIZE)
        if rest == 0 and slots > 0 and (file.size - HEADER.size - slots * SLOT_SIZE) % UNIT_SIZE == 0:
            return slots
        at = file.map.find(beginning, at + 1)
    return None


def _first_units(log: CommitLog, header: IndexHeader) -> list[bytes]:
    """Return how the first unit may look: hash and offset, or the offset only if its record has expired."""
    offset = header.begin_physical_offset
    record = log.check(offset, check_crc=False)
    if record.kind is RecordKind.MESSAGE:
        return [_HASH_AND_OFFSET.pack(hashed, offset) for hashed in _hashes(record)]
    return [_HASH_AND_OFFSET.pack(0, offset)[4:]] if offset > 0 else []


def _reason(log: CommitLog, header: IndexHeader, number: int, unit: IndexUnit) -> str:
    record = log.check(unit.physical_offset, check_crc=False)
    if record.kind is not RecordKind.MESSAGE:
        return f"no record at {unit.physical_offset}: {record.reason}"
    if unit.key_hash not in _hashes(record):
        return f"the record at {unit.physical_offset} has no key with hash {unit.key_hash}"
    seconds = int((record.store_timestamp - header.begin_timestamp) / _MS)
    if number > 1 and unit.time_diff_s != max(seconds, 0):  # the first one counts from the end of the file before
        return f"{unit.time_diff_s} s after the begin of the file, but the record is {seconds} s"
    if unit.previous_unit >= number:
        return f"its chain leads on to unit {unit.previous_unit}"
    return ""


def _hashes(record: RecordCheck) -> set[int]:
    words = (get_property(record.properties, _KEYS) or b"").split(b" ")
    keys = [*words, get_property(record.properties, _UNIQUE_KEY) or b""]
    return {key_hash(record.topic, key.decode("utf-8", "replace")) for key in keys if key}
