"""Walking over the whole commit log, also where it is damaged.

Recovery ends at the first place without a good record (``log_scan``); this goes on with the next one behind it.
"""

from collections.abc import Iterator
from struct import pack
from typing import Final, NamedTuple

from triomq.protocol.record import BLANK_MAGIC, MESSAGE_MAGIC, RecordCheck, RecordKind
from triomq.storage.commit_log import CommitLog
from triomq.storage.file_system import FileSystem, translated
from triomq.storage.log_scan import Progress
from triomq.storage.mapped_file import MappedFile

_MAGICS: Final = tuple(pack(">i", magic) for magic in (MESSAGE_MAGIC, BLANK_MAGIC))
_MAGIC_AT: Final = 4  # in a record
_PROGRESS_STEP_BYTES: Final = 16 * 1024**2
_COMPARED_AT_ONCE: Final = 256 * 1024


class Damage(NamedTuple):
    """A part of the log in which there is no good record.

    Attributes:
        offset, end: where it lies, as physical offsets.
        reason: what is wrong at its begin.
        is_tail: no good record lies behind it; a start of the store cuts it off.
    """

    offset: int
    end: int
    reason: str
    is_tail: bool


def walk(
    log: CommitLog, file_system: FileSystem, *, check_crc: bool = True, progress: Progress | None = None
) -> Iterator[tuple[int, RecordCheck] | Damage]:
    """Give each message with its physical offset, and what is damaged, in the order of the log.

    Args:
        log: its files are loaded; where it ends need not be known.
        file_system: tells where files have holes.
        check_crc: also compare bodies with their CRC.
        progress: called now and then.

    Raises:
        StoreError: a file cannot be read.
    """
    files = log.files
    begin, stop = files.start, files.files[-1].end if files.files else 0
    offset, report_at = begin, begin + _PROGRESS_STEP_BYTES
    while offset < stop:
        record = log.check(offset, check_crc=check_crc)
        if record.kind is RecordKind.MESSAGE:
            yield offset, record
            offset += record.size
        elif record.kind is RecordKind.BLANK:
            offset += record.size
        else:
            following = _next_record(log, file_system, offset + 1, check_crc=check_crc)
            if following is None:
                if (end := _data_end(log, file_system, offset)) > offset:
                    yield Damage(offset, end, record.reason, is_tail=True)
                return
            yield Damage(offset, following, record.reason, is_tail=False)
            offset = following
        if progress is not None and offset >= report_at:
            progress(offset - begin, stop - begin)
            report_at = offset + _PROGRESS_STEP_BYTES


def _next_record(log: CommitLog, file_system: FileSystem, position: int, *, check_crc: bool) -> int | None:
    """Return where the next good record begins, at ``position`` or behind it."""
    for file in log.files.files:
        at = max(position - file.start, 0)
        for start, end in _data_ranges(file, file_system, at) if at < file.size else ():
            for candidate in sorted(_candidates(file, max(start, at), end)):
                record = log.check(file.start + candidate, check_crc=check_crc)
                is_whole_blank = record.kind is RecordKind.BLANK and candidate + record.size == file.size
                if record.kind is RecordKind.MESSAGE or is_whole_blank:
                    return file.start + candidate
    return None


def _candidates(file: MappedFile, start: int, end: int) -> Iterator[int]:
    for magic in _MAGICS:
        at = file.map.find(magic, start + _MAGIC_AT, end)
        while at >= 0:
            yield at - _MAGIC_AT
            at = file.map.find(magic, at + 1, end)


def _data_end(log: CommitLog, file_system: FileSystem, offset: int) -> int:
    """Return the end of what is not zero behind ``offset``; ``offset`` if all of it is."""
    found = offset
    for file in log.files.files:
        if file.end > offset:
            for start, end in _data_ranges(file, file_system, max(offset - file.start, 0)):
                for at in range(start, end, _COMPARED_AT_ONCE):
                    if data := bytes(file.view[at : min(at + _COMPARED_AT_ONCE, end)]).rstrip(b"\0"):
                        found = file.start + at + len(data)
    return found


def _data_ranges(file: MappedFile, file_system: FileSystem, at: int) -> list[tuple[int, int]]:
    with translated("read", file.path):
        return list(file_system.data_ranges(file.file, at, file.size))
