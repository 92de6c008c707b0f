"""One consume queue: for each message of (topic, queue id), in order, 20 bytes that say where its record is.

Numbers of units are queue offsets; ``queue_offset * 20`` is a position in the sequence of files.
Source: ConsumeQueue.java; store.md 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from typing import Final

from triomq.protocol.errors import StoreError
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, REPEATED_CODE, UNIT, UNIT_SIZE, ConsumeQueueUnit
from triomq.storage.delays import WAITING_TOPICS
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.files.mapped_file_queue import MappedFileQueue

_LOST_AT_ONCE: Final = 16 * 1024
_MAX_CHECKED_RANGES: Final = 4  # as many readers keep their own range
_MAX_UNITS_IN_ONE_READ: Final = 1024  # 800 in RocketMQ, or as many as a client asks for; Java clients ask for no more


class CheckedUnits:
    """Ranges of queue offsets whose units name records that were read and found intact.

    Records of an earlier process, or of a master, are checked when they are read.  That costs more than reading them,
    and most readers are not the first.  Of ranges that do not touch, the longest are kept.
    """

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def covers(self, begin: int, end: int) -> bool:
        """Whether all units of [begin, end) are known to be good."""
        return any(low <= begin and end <= high for low, high in self._ranges)

    def add(self, begin: int, end: int) -> None:
        """Note that the units of [begin, end) are good."""
        apart = []
        for low, high in self._ranges:
            if low <= end and begin <= high:
                begin, end = min(low, begin), max(high, end)
            else:
                apart.append((low, high))
        if len(apart) == _MAX_CHECKED_RANGES:
            apart.remove(min(apart, key=lambda range_: range_[1] - range_[0]))
        self._ranges = [*apart, (begin, end)]

    def clear(self) -> None:
        """Forget all ranges, because the units have changed."""
        self._ranges.clear()


def lost_units(count: int, topic: str, log_file_size: int, physical_offset: int, size: int) -> bytes:
    """Return ``count`` packed units of lost messages, which neither our reader nor RocketMQ's mistakes for messages.

    These are blank units, except before an intact message in the commit log's very first file.  There RocketMQ takes a
    blank unit, whose offset is 0, for one of a deleted file, and skips up to 800 intact messages.  So units within one
    read of the intact message name its record instead, with a tags code that our reader recognizes.  RocketMQ then
    delivers that message several times to consumers of all tags.  Queues of delayed messages keep blank units, because
    RocketMQ skips only the blank unit there, and would deliver a record twice that two units name.
    Source: DefaultMessageStore.java, getMessage; ScheduleMessageService.java; store.md 3.5, 7.1.

    Args:
        count: number of consecutive lost messages.
        topic: topic of the queue.
        log_file_size: of each file of the commit log.
        physical_offset, size: record of the intact message after them.
    """
    repeated = 0
    if physical_offset < log_file_size and topic not in WAITING_TOPICS:
        repeated = min(count, _MAX_UNITS_IN_ONE_READ)
    return BLANK_UNIT * (count - repeated) + UNIT.pack(physical_offset, size, REPEATED_CODE) * repeated


@dataclass(eq=False)
class ConsumeQueue:
    """The units of one queue; nothing is on disk before the first one.

    ``next_offset`` runs ahead of ``max_offset`` while messages wait for a flush (durability sync).

    Attributes:
        topic, queue_id: whose queue it is.
        topic_field: the topic as records hold it: length byte and text.
        next_offset: queue offset of the next message.
        max_offset: messages before it are visible to consumers.
        min_offset: the first message that is still in the commit log.
        max_physical_offset: end of the newest record that has a unit here, or of the run that it was written with.
        on_arrival: called with this queue after ``max_offset`` has grown.
        files: the mapped files.
        log_file_size: of each file of the commit log.
        begins: called with this queue before it makes its first file.
        generation: grows when the queue is deleted and starts again at 0.
        refusal: why its files could not be deleted; as long as they may be there it takes no messages.
        checked: units whose records, of an earlier process or a master, were read and found to be intact.
        flushed_position: units before it are on the disk, as a position in the sequence of files.
    """

    topic: str
    queue_id: int
    files: MappedFileQueue
    log_file_size: int
    begins: "Callable[[ConsumeQueue], None]" = lambda queue: None

    def __post_init__(self) -> None:
        text = self.topic.encode()
        self.topic_field = bytes((len(text),)) + text
        self.on_arrival: Callable[[ConsumeQueue], None] | None = None
        self._map: mmap | None = None  # of the current file, if that is mapped
        self._current: MappedFile | None = None
        self._position = 0  # in the current file
        self._limit = 0  # up to here the current file may be written
        self.next_offset = self.max_offset = self.min_offset = 0
        self.max_physical_offset = 0
        self.flushed_position = 0
        self.generation = 0
        self.refusal: StoreError | None = None
        self.checked = CheckedUnits()

    @property
    def end_position(self) -> int:
        """End of the units, visible or not, as a position in the sequence of files."""
        return self.next_offset * UNIT_SIZE

    def refuse(self, reason: StoreError) -> None:
        """Take no messages from now on, as long as ``refusal`` is set."""
        self.refusal = self.refusal or reason
        self._limit = 0  # without room an append has to ask for some

    def reserve(self, count: int) -> None:
        """Map the files of the next ``count`` units and make sure that the disk cannot refuse one.

        Raises:
            StoreFullError, StoreError: no space, or the file system reports an error; nothing has changed for readers.
        """
        if self.refusal is not None:
            raise StoreError(
                f"topic[{self.topic}] takes no messages until its deletion succeeds, delete it again: {self.refusal}"
            ) from self.refusal
        current = self._current
        if current is None:
            self.begins(self)
            current = self.files.create_next(0)  # a queue that begins later was begun with start_at()
            self._enter(current, 0)
        file = current
        needed = file.start + self._position + UNIT_SIZE * count
        while True:
            self.files.reserve(file, min(needed - file.start, file.size))
            file.ensure_mapped()
            if needed <= file.end:
                break
            file = self.files.file_at(file.end) or self.files.create_next(file.end)
        self._enter(current, self._position)

    def append_visible(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Make room for the next unit, write it and show it, for units that are rebuilt from the log.

        Raises:
            StoreFullError, StoreError: as ``reserve``.
        """
        position, map_ = self._position, self._map
        if map_ is None or position + UNIT_SIZE > self._limit:
            self.reserve(1)
            self.append_units(UNIT.pack(physical_offset, size, tags_code), physical_offset + size)
        else:  # what the two do, in half the time
            UNIT.pack_into(map_, position, physical_offset, size, tags_code)
            self._position = position + UNIT_SIZE
            self.next_offset += 1
            self.max_physical_offset = physical_offset + size
        self.max_offset = self.next_offset

    def has_room(self, count: int) -> bool:
        """Whether ``count`` units can be appended to the current file, and the disk cannot refuse them."""
        return self._position + UNIT_SIZE * count <= self._limit

    def append_units(self, units: bytes, physical_end: int) -> None:
        """Write packed units for which ``reserve`` has made room, or ``has_room`` has found some.

        No record of theirs ends after ``physical_end``; ``max_offset`` is left to the caller.
        """
        position, end = self._position, self._position + len(units)
        if end > self._limit:
            begin = self.end_position
            self.files.write(begin, units)
            file = self.files.file_at(begin + len(units) - 1)
            assert file is not None, "reserve() has made it"
            self._enter(file, begin + len(units) - file.start)
        else:
            map_ = self._map
            assert map_ is not None, "there is no room in a file that is not mapped"
            map_[position:end] = units
            self._position = end
        self.next_offset += len(units) // UNIT_SIZE
        self.max_physical_offset = physical_end

    def show(self, max_offset: int) -> None:
        """Make the messages before ``max_offset`` visible to consumers."""
        self.max_offset = max_offset
        if self.on_arrival is not None:
            self.on_arrival(self)

    def units_from(self, queue_offset: int, max_units: int) -> memoryview | None:
        """Return the visible units from ``queue_offset`` to the end of its file, at most ``max_units``.

        ``None`` if no file holds ``queue_offset`` or nothing is visible there.
        """
        position = queue_offset * UNIT_SIZE
        file = self.files.file_at(position)
        if file is None:
            return None
        count = min((file.end - position) // UNIT_SIZE, self.max_offset - queue_offset, max_units)
        at = position - file.start
        return file.view[at : at + count * UNIT_SIZE] if count > 0 else None

    def unit(self, queue_offset: int) -> ConsumeQueueUnit | None:
        """Return the unit of one message, visible or waiting for a flush; ``None`` without one."""
        position = queue_offset * UNIT_SIZE
        file = self.files.file_at(position)
        if file is None or queue_offset >= self.next_offset:
            return None
        return ConsumeQueueUnit._make(UNIT.unpack_from(file.map, position - file.start))

    def units_at(self, queue_offsets: list[int]) -> list[tuple[int, int, int]]:
        """Return the units of many messages as plain tuples, as :meth:`unit` does; ``(0, 0, 0)`` for one missing."""
        count = len(queue_offsets)
        if count and queue_offsets == list(range(queue_offsets[0], queue_offsets[0] + count)):
            units = self.units_from(queue_offsets[0], count)
            if units is not None and len(units) == count * UNIT_SIZE:
                return list(UNIT.iter_unpack(units))
        return [self.unit(queue_offset) or (0, 0, 0) for queue_offset in queue_offsets]

    def lose(self, begin: int, end: int) -> None:
        """Note that the messages of [begin, end) are lost; there is a unit after them."""
        following = self.unit(end)
        assert following is not None, "at the end of a queue units are cut"
        self.files.write(begin * UNIT_SIZE, self._lost(end - begin, following.physical_offset, following.size))
        self.checked.clear()

    def resume(self, next_offset: int, max_physical_offset: int) -> None:
        """Continue after ``next_offset`` units that are on disk and checked; all of them become visible."""
        self.next_offset = self.max_offset = next_offset
        self.max_physical_offset = max_physical_offset
        self.checked.clear()
        self.flushed_position = min(self.flushed_position, self.end_position)
        self._current = self._map = None
        self._position = self._limit = 0
        if self.files.files:
            position = self.end_position
            file = self.files.file_at(position) or self.files.files[-1]
            file.assume_reserved(position - file.start)
            self._enter(file, position - file.start)

    def start_at(self, queue_offset: int, physical_offset: int, size: int) -> None:
        """Start an empty queue in the middle: units before ``queue_offset`` in its file become lost ones.

        ``physical_offset`` and ``size`` are those of the record that comes first.

        Raises:
            StoreFullError, StoreError: the file cannot be made.
        """
        position = queue_offset * UNIT_SIZE
        file = self.files.create_next(position - position % self.files.file_size)
        blank_bytes = position - file.start
        self.files.reserve(file, blank_bytes)
        file.map[:blank_bytes] = self._lost(blank_bytes // UNIT_SIZE, physical_offset, size)
        self._enter(file, blank_bytes)
        self.next_offset = self.max_offset = self.min_offset = queue_offset
        self.flushed_position = file.start

    def append_lost(self, count: int, physical_offset: int, size: int) -> None:
        """Append units of messages that are lost, so that the numbers of the following ones stay right.

        ``physical_offset`` and ``size`` are those of the record that follows.

        Raises:
            StoreFullError, StoreError: as ``reserve``.
        """
        newest = self.max_physical_offset
        for begin in range(0, count, _LOST_AT_ONCE):  # only the last ones may differ
            units = self._lost(min(count - begin, 2 * _LOST_AT_ONCE), physical_offset, size)
            for unit in UNIT.iter_unpack(units[: _LOST_AT_ONCE * UNIT_SIZE]):
                self.append_visible(*unit)
        self.max_physical_offset = newest

    def destroy(self) -> None:
        """Delete all files; the object becomes an empty queue that begins at 0.

        Raises:
            StoreError: something cannot be deleted; a later call deletes the rest.
        """
        try:
            self.files.remove_directory()
        finally:
            self.generation += 1
            self.min_offset = self.flushed_position = 0
            self.resume(0, 0)

    def detach(self) -> None:
        """Drop the files because the store is closed.  Views that readers hold stay valid."""
        for file in self.files.files:
            file.leave()
        self.files.files.clear()
        self.resume(0, 0)

    def _lost(self, count: int, physical_offset: int, size: int) -> bytes:
        return lost_units(count, self.topic, self.log_file_size, physical_offset, size)

    def _enter(self, file: MappedFile, position: int) -> None:
        self._current = file
        file.on_unmap = self._let_go
        self._position = position
        if file.is_mapped:
            self._map = file.map
            self._limit = file.reserved
        else:  # most queues are idle: the next append maps it
            self._map = None
            self._limit = 0

    def _let_go(self, file: MappedFile) -> None:
        """Drop a mapping that the pool has ended: without room the next append has to ask for some first."""
        if file is self._current:
            self._limit = 0
            self._map = None
