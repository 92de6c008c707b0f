"""A store that no broker runs on, ours or Apache's, opened as it is: nothing is recovered.

File sizes are derived from the files.  Reading changes nothing but the file ``lock``, and not even that on a
read-only file system.
"""

import mmap
import os
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

from triomq.protocol.errors import ConfigError, StoreLayoutError
from triomq.protocol.record.consume_queue_unit import UNIT_SIZE
from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.log_scan import DamagedPart, LogScan, Progress
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.consume_queue.unit_search import correct_min_offset, newest_unit
from triomq.storage.files.file_system import FileSystem, OpenFile, translated
from triomq.storage.files.json_table import JsonTable
from triomq.storage.files.log_state import ClockSteps, DeletedTopics
from triomq.storage.files.mapped_file_queue import FoundFiles, file_name
from triomq.storage.recovery.queue_recovery import find_good_units
from triomq.storage.store_directory import StoreDirectory

_OFFSETS_TABLE: Final = "consumerOffset.json"
_TOPICS_TABLE: Final = "topics.json"
_COMPARED_AT_ONCE: Final = 256 * 1024
_FILES_OF_SIZE: Final = {
    "commit_log_file_size_bytes": "commitlog/*",
    "consume_queue_file_size_bytes": "consumequeue/*/*/*",
}


class ReadOnlyFileSystem(FileSystem):
    """Opens and maps files for reading; a write through such a mapping is a ``TypeError``."""

    def open_file(self, path: Path) -> OpenFile:
        """Open an existing file."""
        return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def map_file(self, file: OpenFile, size_bytes: int) -> mmap.mmap:
        """Map a whole file."""
        return mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)


class StoppedStore:
    """Files of a store; use it in a ``with`` block.

    Attributes:
        config: with the sizes of the files on disk.
        log: the commit log; its end is unknown, so ``max_offset`` is the end of the last file.
        queues: all consume queues with the units that are on disk; damaged ones may be among them.
        deleted: topics of which older records no longer count.
        directory: its paths.
        is_clean: the last shutdown was clean.
        strays: files that are empty, or follow a missing one; the next start of a broker removes them.
    """

    def __init__(self, root: Path) -> None:
        """Name the store by its directory; nothing is opened."""
        self.root = root
        self.file_system = ReadOnlyFileSystem()
        self.directory = StoreDirectory(root, self.file_system)
        self.is_clean = True
        self.strays: list[Path] = []

    def __enter__(self) -> Self:
        """Open it.

        Raises:
            StoreLockedError: a broker runs on it.
            StoreLayoutError: this is no store, or a file does not belong to one.
            StoreError: it cannot be locked or read.
        """
        if not self.directory.commit_log.is_dir():
            raise StoreLayoutError(f"{self.root} is no store: it has no directory {self.directory.commit_log.name}")
        self.directory.acquire(to_read=True)
        try:
            self._load()
        except BaseException:
            self.directory.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.directory.release()

    def walk(self, progress: Progress | None = None) -> Iterator[tuple[int, RecordCheck] | DamagedPart]:
        """Yield each message with its physical offset, and each damaged part, in the order of the log.

        Raises:
            StoreError: a file cannot be read.
        """
        scan = LogScan(self.log, self.log.files.start, progress=progress)
        for offset, record in scan:
            yield from scan.damage
            scan.damage.clear()
            yield offset, record
        if scan.stopped_by and (end := self._data_end(scan.end)) > scan.end:
            yield DamagedPart(scan.end, end, scan.stopped_by, 0)

    def _data_end(self, offset: int) -> int:
        """Return the end of the last bytes of the log after ``offset`` that are not zero, else ``offset``."""
        found = offset
        for file in self.log.files.files:
            if file.end > offset:
                with translated("read", file.path):
                    ranges = list(self.file_system.data_ranges(file.file, max(offset - file.start, 0), file.size))
                for start, end in ranges:
                    for at in range(start, end, _COMPARED_AT_ONCE):
                        if data := bytes(file.view[at : min(at + _COMPARED_AT_ONCE, end)]).rstrip(b"\0"):
                            found = file.start + at + len(data)
        return found

    def ends(self, progress: Progress | None = None) -> tuple[tuple[int, RecordCheck], tuple[int, RecordCheck]] | None:
        """Return the first and the last message, each with its physical offset; ``None`` without messages."""
        log = self.log
        first = next(iter(LogScan(log, log.files.start, check_crc=False)), None)
        if first is None:
            return None
        units = map(newest_unit, self.queues)
        newest = max((unit.physical_offset for unit in units if unit is not None), default=0)
        starts = [file.start for file in reversed(log.files.files)]  # a record begins at each, if the log is so long
        start = first[0]
        for offset in (newest, *starts):
            if offset > start and log.check(offset, check_crc=False).kind is RecordKind.MESSAGE:
                start = offset
        last = deque(LogScan(log, start, check_crc=False, progress=progress), maxlen=1)
        return first, last[0] if last else first

    def stored_offsets(self) -> list[tuple[str, str, int, int]]:
        """Return the stored offsets of all consumer groups: group, topic, queue id and offset.

        Raises:
            StoreLayoutError: the table is damaged.
        """
        table = JsonTable(self.directory.config / _OFFSETS_TABLE, self.file_system)
        content = table.load()
        offsets = content.get("offsetTable") if isinstance(content, dict) else {}
        found = []
        try:
            for name, queues in (offsets or {}).items():
                topic, _, group = str(name).partition("@")
                found += [(group, topic, int(queue_id), int(n)) for queue_id, n in queues.items()]
        except (AttributeError, TypeError, ValueError) as exc:
            raise StoreLayoutError(f"{table.path} holds no table of offsets: {exc}") from exc
        return found

    def start_of(self, topic: str, queue_id: int) -> int:
        """Return the physical offset before which records of a queue do not count: those of a topic that was deleted.

        Apache's broker notes no deletion.  But a queue whose first unit has number 0 had no record before that one.
        """
        deleted_end = self.deleted.end_of(topic)
        queue = self.queues.find(topic, queue_id)
        unit = queue.unit(0) if queue is not None else None
        if unit is None or unit.physical_offset <= deleted_end:
            return deleted_end
        record = self.log.check(unit.physical_offset, check_crc=False)
        is_first = record.kind is RecordKind.MESSAGE and record.queue_offset == 0 and record.size == unit.size
        is_own = (record.topic, record.queue_id) == (topic, queue_id)
        return unit.physical_offset if is_first and is_own else deleted_end

    def topics(self) -> frozenset[str] | None:
        """Return the topics of the broker's table; ``None`` without a table.

        Raises:
            StoreLayoutError: the table is damaged.
        """
        content = JsonTable(self.directory.config / _TOPICS_TABLE, self.file_system).load()
        table = content.get("topicConfigTable") if isinstance(content, dict) else None
        return frozenset(map(str, table)) if isinstance(table, dict) else None

    def _load(self) -> None:
        directory, files = self.directory, self.file_system
        sizes: dict[str, Any] = {}
        for name, pattern in _FILES_OF_SIZE.items():  # the first one that has any byte
            paths = (path for path in sorted(self.root.glob(pattern)) if path.is_file() and path.stat().st_size)
            sizes.update((name, path.stat().st_size) for path in islice(paths, 1))
        try:
            self.config = StoreConfig(root=self.root, **sizes)
        except ConfigError as exc:
            raise StoreLayoutError(f"{self.root} has files of a size no store has: {exc}") from exc
        self.queues = QueueTable(self.config, files)
        log_files, queue_layouts = directory.check(self.config, self.queues)
        self.log = CommitLog(directory.commit_log_files(self.config), ClockSteps(directory.config, files))
        self._leave_strays(directory.commit_log, log_files)
        self.log.files.load(FoundFiles(log_files.starts, [], []))
        self.log.max_offset = self.log.files.files[-1].end if log_files.starts else 0
        for found in queue_layouts:
            self._leave_strays(found.directory, found.files)
            self.queues.load([found._replace(files=FoundFiles(found.files.starts, [], []))])
        for queue in self.queues:
            self._find_end(queue)
            correct_min_offset(queue, self.log.min_offset)
        self.deleted = DeletedTopics(directory.config, files)
        self.deleted.load()
        self.is_clean = not files.exists(directory.abort)

    def _leave_strays(self, directory: Path, found: FoundFiles) -> None:
        self.strays += (directory / file_name(start) for start in sorted(found.empty_starts + found.stray_starts))

    def _find_end(self, queue: ConsumeQueue) -> None:
        """End the queue after the last unit of its last file that has any."""
        for file in reversed(queue.files.files):
            found = find_good_units(file, self.file_system)
            count = found.number if found is not None else 0
            if count or file.start == queue.files.start:
                queue.next_offset = queue.max_offset = file.start // UNIT_SIZE + count
                queue.max_physical_offset = self.log.max_offset  # at most
                return
