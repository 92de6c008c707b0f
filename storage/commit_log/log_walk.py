"""Walk over the whole commit log of a stopped store: its messages, and what is damaged between and after them.

``log_scan`` decides what is damage and where the log continues, as at startup.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.log_scan import LogScan, Progress
from triomq.storage.files.file_system import FileSystem, translated

_COMPARED_AT_ONCE: Final = 256 * 1024


class Damage(NamedTuple):
    """A part of the log in which there is no good record.

    Attributes:
        offset, end: where it is, as physical offsets.
        reason: what is wrong at its start.
        is_tail: no good record lies after it; a start of the store cuts it off.
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
        file_system: reports where files have holes.
        check_crc: also compare bodies with their CRC; those after damage are compared anyway.
        progress: called now and then.

    Raises:
        StoreError: a file cannot be read.
    """
    scan = LogScan(log, log.files.start, check_crc=check_crc, progress=progress)
    for offset, record in scan:
        for part in scan.damage:
            yield Damage(part.start, part.end, part.reason, is_tail=False)
        scan.damage.clear()
        yield offset, record
    if scan.stopped_by and (end := _data_end(log, file_system, scan.end)) > scan.end:
        yield Damage(scan.end, end, scan.stopped_by, is_tail=True)


def find_ends(
    log: CommitLog, known: int, progress: Progress | None = None
) -> tuple[tuple[int, RecordCheck], tuple[int, RecordCheck]] | None:
    """Return the first and the last message, each with its physical offset; ``None`` if there is none.

    Args:
        log: its files are loaded; where it ends need not be known.
        known: where a record near the end begins, such as the last one that has a unit; any number.
        progress: called now and then.
    """
    first = next(iter(LogScan(log, log.files.start, check_crc=False)), None)
    if first is None:
        return None

    def is_message(offset: int) -> bool:
        return log.check(offset, check_crc=False).kind is RecordKind.MESSAGE

    starts = [file.start for file in reversed(log.files.files)]  # a record begins at each, if the log is so long
    start = max(next(filter(is_message, starts), 0), known if is_message(known) else 0, first[0])
    last = deque(LogScan(log, start, check_crc=False, progress=progress), maxlen=1)
    return first, last[0] if last else first


def _data_end(log: CommitLog, file_system: FileSystem, offset: int) -> int:
    """Return the end of what is not zero after ``offset``; ``offset`` if all of it is."""
    found = offset
    for file in log.files.files:
        if file.end > offset:
            with translated("read", file.path):
                ranges = list(file_system.data_ranges(file.file, max(offset - file.start, 0), file.size))
            for start, end in ranges:
                for at in range(start, end, _COMPARED_AT_ONCE):
                    if data := bytes(file.view[at : min(at + _COMPARED_AT_ONCE, end)]).rstrip(b"\0"):
                        found = file.start + at + len(data)
    return found
