"""What two copies of a commit log are compared by: checksums of pieces, and places between records.

Pieces may be of any age, so all of it is read in worker threads.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final
from zlib import crc32

from triomq.protocol.errors import StoreError
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.log_scan import LogScan
from triomq.storage.files.file_system import DiskWork
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.reading.cold_read import Work

_STEP_BYTES: Final = 2 * 1024**2  # of one call, so that calls for others come between
_READ_BYTES: Final = 256 * 1024


def log_checksum(log: CommitLog, begin: int, end: int) -> Work[int]:
    """Return the CRC-32 of [begin, end) of a log.

    Raises:
        StoreError: the log does not have all of it, or it cannot be read.
    """
    crc = 0

    def add(file: MappedFile, start: int, stop: int) -> None:
        nonlocal crc
        for data in _read(file, start, stop):
            crc = crc32(data, crc)

    if end > log.max_offset:
        raise StoreError(f"the commit log ends at {log.max_offset}, not at {end}")
    while begin < end:
        file = _file_at(log, begin)
        start = begin - file.start
        stop = min(start + _STEP_BYTES, file.size, end - file.start)
        yield [DiskWork(partial(add, file, start, stop))]
        begin = file.start + stop
    return crc


def record_border(log: CommitLog, offset: int) -> Work[int]:
    """Return where the last record ends that lies before ``offset`` in its file; without one, the file's start.

    Raises:
        StoreError: the log does not have this place, or it cannot be read.
    """
    if offset % log.files.file_size == 0:
        return offset
    file = _file_at(log, offset)
    border = file.start

    def find() -> None:
        nonlocal border
        for _ in _read(file, 0, offset - file.start):  # a disk that fails would kill the process in the scan
            pass
        for start, record in LogScan(log, file.start, stop=offset, check_crc=False):
            if start + record.size <= offset:
                border = start + record.size

    yield [DiskWork(find)]
    return border


def _read(file: MappedFile, start: int, stop: int) -> Iterator[bytes]:
    for at in range(start, stop, _READ_BYTES):
        yield file.read(at, min(_READ_BYTES, stop - at))


def _file_at(log: CommitLog, offset: int) -> MappedFile:
    file = log.files.file_at(offset)
    if file is None:
        raise StoreError(f"the commit log begins at {log.min_offset}, offset {offset} is not in it")
    return file
