"""Damaged places of the commit log, and the repair that leaves no hole in it.

A torn or corrupt record costs only itself.  The scan continues at the next record that proves itself:
magic, own position, lengths that add up, CRC.  Nothing false can pass, because whatever lies past the end of the log
is cleared before it grows again, so a record that proves itself was written there and belongs there.  Only after the
last such record is the torn tail, which is cut.

The bytes in between become one record of the topic ``-`` with the flag of a rolled back transaction, which no queue
gets a unit for; up to the end of a file they become a blank record.  So the log has no hole for later readers,
of which RocketMQ would end it there.  The damaged bytes go to ``quarantine/`` first.  A unit of a lost
message becomes one of those that readers pass by (``consume_queue.lost_units``), at the end of a queue it is cut.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.host import IPV4_HOST_LENGTH
from triomq.protocol.record.layout import BLANK_HEAD, BLANK_MAGIC, record_size
from triomq.protocol.record.record import encode_record
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.files.mapped_file_queue import MappedFileQueue

LOGGER: Final = logging.getLogger("triomq.storage.commit_log.damage")

FILLER_TOPIC: Final = "-"
_FILLER_BYTES: Final = record_size(0, len(FILLER_TOPIC), 0)
QUARANTINE: Final = "quarantine"
"""Directory in the root of a store for what could not stay in its place."""

_MAX_SAVED_BYTES: Final = 64 * 1024**2
_MAX_REMEMBERED: Final = 1000
_SCRATCH: Final = "new-copy.tmp"
_NO_HOST: Final = bytes(IPV4_HOST_LENGTH)


class DamagedPart(NamedTuple):
    """A part of the commit log that holds no record.

    Attributes:
        path: the file it begins in.
        start, end: physical offsets; ``end`` is where the next intact record begins.
        reason: the defect at ``start``.
        store_timestamp: of the next intact record, ms.
    """

    path: Path
    start: int
    end: int
    reason: str
    store_timestamp: int


class DamageLog:
    """Damaged records that were met while reading: each is logged once, and its message is skipped.

    Attributes:
        count: how many different ones; after the first thousand one may be counted again.
    """

    __slots__ = ("_seen", "count")

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.count = 0

    def note(self, path: Path | None, physical_offset: int, reason: str) -> None:
        """Count and log a record that cannot be delivered."""
        if physical_offset in self._seen:
            return
        if len(self._seen) < _MAX_REMEMBERED:
            self._seen.add(physical_offset)
        self.count += 1
        LOGGER.warning(
            "message skipped, its record is damaged file=%s offset=%d reason=%s", path, physical_offset, reason
        )


def fill(files: MappedFileQueue, parts: Sequence[DamagedPart], file_system: FileSystem, quarantine: Path) -> None:
    """Replace damaged parts by records that everybody can read over, after copies were made.

    Raises:
        StoreFullError, StoreError: the disk reports an error; each part that was replaced has its copy.
    """
    pieces: list[_Piece] = []
    for part in parts:
        LOGGER.warning(
            "commit log damaged file=%s offset=%d bytes=%d reason=%s",
            part.path,
            part.start,
            part.end - part.start,
            part.reason,
        )
        pieces += _pieces(files, part)
    if sum(_is_saved(piece, quarantine, file_system) for piece in pieces):
        for directory in (quarantine, quarantine.parent):
            with translated("sync", directory):
                file_system.sync_directory(directory)
    for piece in pieces:
        _fill(files, piece)


class _Piece(NamedTuple):
    """What of a damaged part lies in one file, as positions there, and the store time of the next intact record."""

    file: MappedFile
    at: int
    stop: int
    store_timestamp: int


def _pieces(files: MappedFileQueue, part: DamagedPart) -> Iterator[_Piece]:
    start = part.start
    while start < part.end:
        file = files.file_at(start)
        assert file is not None, "the scan has read there"
        end = min(part.end, file.end)
        yield _Piece(file, start - file.start, end - file.start, part.store_timestamp)
        start = end


def _fill(files: MappedFileQueue, piece: _Piece) -> None:
    file, at, stop, store_timestamp = piece
    files.reserve(file, stop)
    if stop == file.size and stop - at >= BLANK_HEAD.size:
        BLANK_HEAD.pack_into(file.map, at, stop - at, BLANK_MAGIC)
        return
    if stop - at < _FILLER_BYTES:  # a body held what proves itself as a record: the hole stays
        return
    file.map[at:stop] = encode_record(
        queue_id=0,
        queue_offset=0,
        physical_offset=file.start + at,
        sys_flag=MessageSysFlag.TRANSACTION_ROLLBACK,
        born_timestamp=store_timestamp,
        born_host=_NO_HOST,
        store_timestamp=store_timestamp,
        store_host=_NO_HOST,
        body=bytes(file.view[at + _FILLER_BYTES : stop]),
        topic=FILLER_TOPIC.encode(),
        properties=b"",
    )


def _is_saved(piece: _Piece, quarantine: Path, file_system: FileSystem) -> bool:
    """Save the bytes of a piece, but never over another copy; ``False`` if there are zeros only.

    A start that was interrupted may have replaced some of it: the copy that it has made is the better one.
    """
    file, at, stop, _ = piece
    content = bytes(file.view[at : min(stop, at + _MAX_SAVED_BYTES)])
    if not content.strip(b"\0"):
        return False
    first = quarantine / f"damaged-{file.start + at:020d}"
    with translated("write", first):
        file_system.make_directories(quarantine)
        path, copies = first, 1
        while file_system.exists(path):
            if file_system.read_file(path) == content:
                return True
            copies += 1
            path = first.with_name(f"{first.name}-{copies}")
        scratch = quarantine / _SCRATCH
        file_system.write_file(scratch, content)
        file_system.rename(scratch, path)  # last: a copy in its place is a whole one
    return True
