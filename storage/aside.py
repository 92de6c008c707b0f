"""Set aside the tail of a log that the master of this store does not have: its messages stay readable.

Problem: two brokers have stored messages at the same places of the log, as when a former master starts after its slave
was promoted.  To follow the new master, the store must give up the tail of its log, but no message may vanish.

Rejected: to rename the whole store, as all of it would have to be copied again.  A file of bare bytes, which no tool
reads.

The tail becomes another store, ``aside/<from>-<to>``, with the same physical and queue offsets.  Its first file
begins with fillers, in the place of messages that the master has, too.  All later files are moved.

Invariant: ``aside/pending`` is the decision.  Before it is on the disk nothing else has changed.  From then on each
start does the rest before anything is read from the log, each time from the beginning, and at last deletes it.
"""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from triomq.protocol.errors import StoreLayoutError
from triomq.protocol.record.layout import HEAD
from triomq.protocol.record.record import check_record
from triomq.storage.commit_log.log_scan import LEAST_FILLER_BYTES, make_filler
from triomq.storage.config import StoreConfig
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.files.json_table import JsonTable
from triomq.storage.files.log_state import load_checkpoint
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.files.mapped_file_queue import file_name
from triomq.storage.store_directory import StoreDirectory

LOGGER: Final = logging.getLogger("triomq.storage.aside")

ASIDE: Final = "aside"
"""Directory in the root of a store for the tails of its log that were set aside."""

_PENDING: Final = "pending"
_SCRATCH: Final = "new-file.tmp"
_PIECE_BYTES: Final = 1024**2
_FILLER_TAIL_BYTES: Final = 4  # length and name of the topic, length of the properties


def tails_aside(root: Path) -> list[str]:
    """Return the names of the tails that were set aside in a store and not deleted since."""
    with suppress(OSError):
        return sorted(each.name for each in (root / ASIDE).iterdir() if each.is_dir())
    return []


def set_aside(config: StoreConfig, begin: int, end: int, file_system: FileSystem | None = None) -> None:
    """Decide that a closed store gives up its log from ``begin`` on: the next start does it.

    Args:
        config: of the store.
        begin: physical offset where a record begins, after the first one.
        end: where the log ends, for the name.
        file_system: access to files.

    Raises:
        StoreLockedError: the store is open.
        StoreFullError, StoreError: the disk reports an error; nothing has changed.
    """
    files = file_system or FileSystem()
    directory = StoreDirectory(config.root, files)
    directory.acquire()
    try:
        aside = config.root / ASIDE
        with translated("write", aside):
            if files.exists(aside / _PENDING):
                return
            files.make_directories(aside)
            files.unlink(aside / _SCRATCH)
            log_start = begin - begin % config.commit_log_file_size_bytes
            if begin > log_start:
                _copy_tail(directory.commit_log / file_name(log_start), begin, config, files)
            for path in _later_files(directory, begin, files):
                files.sync_file(files.open_file(path))
            name, copies = f"{begin}-{end}", 1
            while files.exists(aside / name):
                copies += 1
                name = f"{begin}-{end}-{copies}"
            files.sync_directory(aside)
            JsonTable(aside / _PENDING, files).save({"from": begin, "name": name})  # last: nothing undoes it
    finally:
        directory.release()


def finish_setting_aside(directory: StoreDirectory, config: StoreConfig, make_store: Callable[[Path], None]) -> bool:
    """Do what ``set_aside`` has decided, if anything; return whether the log was cut.

    Args:
        directory: of the store, which is locked and not open.
        config: of the store.
        make_store: writes the consume queues of a store that has only a commit log.

    Raises:
        StoreLayoutError: the decision cannot be read.
        StoreError: the disk reports an error; the next call repeats all of it.
    """
    files, aside = directory.file_system, config.root / ASIDE
    if not files.exists(aside / _PENDING):
        return False
    try:
        decision = json.loads(files.read_file(aside / _PENDING))
        begin, target = int(decision["from"]), aside / str(decision["name"])
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise StoreLayoutError(f"{aside / _PENDING} cannot be read ({exc!r}): see {aside} and restore it") from exc
    with translated("move the tail of the log to", target):
        _move(directory, begin, target, config)
    with translated("cut the log in", directory.commit_log):
        _cut(directory, begin, config)
    LOGGER.warning("tail of the log set aside directory=%s from=%d", target, begin)
    make_store(target)
    with translated("write", aside):
        files.unlink(aside / _PENDING)
        files.sync_directory(aside)  # before the log grows again, or a start would cut it again
    return True


def _move(directory: StoreDirectory, begin: int, target: Path, config: StoreConfig) -> None:
    """Move the copy of the first file and all later files to the new store."""
    files, log, aside = directory.file_system, target / "commitlog", config.root / ASIDE
    files.make_directories(log)
    for each in (target, aside, config.root):  # a file in a directory that vanishes is lost
        files.sync_directory(each)
    if files.exists(aside / _SCRATCH):
        files.rename(aside / _SCRATCH, log / file_name(begin - begin % config.commit_log_file_size_bytes))
    for path in _later_files(directory, begin, files):
        files.rename(path, log / path.name)
    for each in (log, aside, directory.commit_log):  # names appear before others vanish
        files.sync_directory(each)


def _cut(directory: StoreDirectory, begin: int, config: StoreConfig) -> None:
    """Clear the rest of the last file, and end the checkpoint there, too; recovery cuts queues and index."""
    files, size = directory.file_system, config.commit_log_file_size_bytes
    if begin % size:
        log_start = begin - begin % size
        file = MappedFile(files, files.open_file(directory.commit_log / file_name(log_start)), log_start, size)
        file.zero_from(begin % size)
        files.sync_file(file.file)
    known = load_checkpoint(files, directory.checkpoint)
    places = {name: min(getattr(known, name), begin) for name in ("log_end", "queues_end", "index_end")}
    known._replace(**places).save(files, directory.checkpoint)


def _later_files(directory: StoreDirectory, begin: int, files: FileSystem) -> list[Path]:
    """Return the files of the log that begin at ``begin`` or later."""
    names = [entry.name for entry in files.list_directory(directory.commit_log)]
    return [directory.commit_log / name for name in names if name.isdecimal() and int(name) >= begin]


def _copy_tail(path: Path, begin: int, config: StoreConfig, files: FileSystem) -> None:
    """Copy a file of the log from ``begin`` on; before that the copy has fillers, most of which take no space."""
    size = config.commit_log_file_size_bytes
    start, at = begin - begin % size, begin % size
    source = MappedFile(files, files.open_file(path), start, size)
    scratch = config.root / ASIDE / _SCRATCH
    copy = MappedFile(files, files.create_file(scratch, size, scratch), start, size, in_order=False)  # or holes fill up
    store_timestamp = check_record(source.map, at, size, check_crc=False).store_timestamp or 1  # 0: a file's end

    def write(position: int, content: bytes) -> None:
        files.reserve(copy.file, position, len(content))  # or a full disk would kill the process
        copy.map[position : position + len(content)] = content

    position = 0
    while position < at:
        length = min(_PIECE_BYTES, at - position)
        if 0 < at - position - length < LEAST_FILLER_BYTES:
            length -= LEAST_FILLER_BYTES
        filler = make_filler(start + position, bytes(length - LEAST_FILLER_BYTES), store_timestamp)
        write(position, filler[: HEAD.size])
        write(position + length - _FILLER_TAIL_BYTES, filler[-_FILLER_TAIL_BYTES:])
        position += length
    for data_start, data_end in files.data_ranges(source.file, at, size):
        for position in range(data_start, data_end, _PIECE_BYTES):
            write(position, source.map[position : min(position + _PIECE_BYTES, data_end)])
    files.sync_file(copy.file)
