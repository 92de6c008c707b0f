"""Verifying a stopped store: every record, every unit of every consume queue and index file, every stored
offset.

Problems of one kind at one place are counted, not listed one by one: a queue that has lost a file is one line.
Source: store.md 10.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from triomq.protocol.codes import HIDDEN_BIT
from triomq.protocol.errors import IllegalNameError
from triomq.protocol.record.consume_queue_unit import REPEATED_CODE, ConsumeQueueUnit
from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.storage.commit_log.log_scan import FILLER_TOPIC, DamagedPart, Progress
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import validate_queue
from triomq.storage.consume_queue.unit_search import first_offset
from triomq.storage.delays import WAITING_TOPICS
from triomq.storage.tools.index_check import check_index
from triomq.storage.tools.stopped_store import StoppedStore

_MAX_HASH: Final = 2**31 - 1


class ProblemKind(Enum):
    """What can be wrong."""

    RECORD = "record"
    """Part of the commit log is damaged, with good records after it: these messages are lost."""
    TAIL = "tail"
    """The commit log ends with a torn record; the next start cuts it off."""
    STRAY_FILE = "stray file"
    """A file is empty, or follows a missing one; the next start deletes or quarantines it."""
    MISSING_UNIT = "missing unit"
    """A record has no unit in its consume queue: consumers do not see it."""
    WRONG_UNIT = "wrong unit"
    """A unit points to no record of its queue, or has the wrong length or tags code."""
    INDEX = "index"
    """A unit of an index file points to no record with its key, or a file is not an index file."""
    OFFSET = "offset"
    """A consumer group's offset is past the end of its queue."""


@dataclass(slots=True)
class Problem:
    """Something that is wrong, and how often.

    Attributes:
        kind: what.
        place: a file of commit log or index, ``topic:queue_id``, or ``group topic:queue_id``.
        offset: the first one: a physical offset in the commit log, a number in an index file, else a queue offset.
        text: the defect of the first one.
        count: how many there are.
        size_bytes: of the damaged part of the commit log.
    """

    kind: ProblemKind
    place: str
    offset: int
    text: str
    count: int = 1
    size_bytes: int = 0


@dataclass(slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        records, record_bytes: good ones in the commit log.
        units: of all queues, without blank ones and those whose records have expired.
        index_units: of all index files, without those whose records have expired.
        log_end: end of the last good record.
        problems: in the order in which they were found.
    """

    records: int = 0
    record_bytes: int = 0
    units: int = 0
    index_units: int = 0
    log_end: int = 0
    problems: list[Problem] = field(default_factory=list)


def check(store: StoppedStore, progress: Progress | None = None) -> CheckReport:
    """Verify everything; changes nothing.

    Raises:
        StoreError: a file cannot be read.
        StoreLayoutError: a table is damaged.
    """
    return _Checker(store).run(progress)


class _Checker:
    """One check."""

    def __init__(self, store: StoppedStore) -> None:
        self._store = store
        self._report = CheckReport(log_end=store.log.files.start)
        self._good_end = store.log.files.files[-1].end if store.log.files.files else 0
        self._matched: Counter[ConsumeQueue] = Counter()
        self._problems: dict[tuple[ProblemKind, str], Problem] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self._last_without_queue: dict[tuple[str, int], int] = {}
        self._deleted_until: dict[str, int] = {}
        self._fillers: list[range] = []
        self._offsets = store.stored_offsets()  # first, so that an unreadable table fails before the log is read
        self._topics = store.topics()

    def run(self, progress: Progress | None) -> CheckReport:
        store, report = self._store, self._report
        for path in store.strays:
            report.problems.append(Problem(ProblemKind.STRAY_FILE, str(path), int(path.name), "empty, or after a gap"))
        for found in store.walk(progress):
            if isinstance(found, DamagedPart):
                kind = ProblemKind.RECORD
                if not found.store_timestamp:
                    kind, self._good_end = ProblemKind.TAIL, found.start
                size_bytes = found.end - found.start
                text = f"{size_bytes} bytes: {found.reason}"
                report.problems.append(Problem(kind, self._file(found.start), found.start, text, 1, size_bytes))
            else:
                offset, record = found
                report.records += 1
                report.record_bytes += record.size
                report.log_end = offset + record.size
                self._check_record(offset, record)
        self._forget_deleted()
        for queue in store.queues:
            self._check_queue(queue)
        for path, number, reason in check_index(store, self._good_end, self._fillers, progress):
            report.index_units += number > 0
            if reason:
                self._add(ProblemKind.INDEX, str(path), number, reason)
        for group, topic, queue_id, stored in self._offsets:
            its_queue = store.queues.find(topic, queue_id)
            end = its_queue.max_offset if its_queue is not None else 0
            if stored > end:
                self._add(ProblemKind.OFFSET, f"{group} {topic}:{queue_id}", stored, f"the queue ends at {end}")
        report.problems += self._problems.values()
        return report

    def _forget_deleted(self) -> None:
        """Drop the missing units of queues that were deleted together with their topic."""
        known = self._topics if self._store.is_clean else None  # after a crash the table may lack a new topic
        alive = {queue.topic for queue in self._store.queues if queue.next_offset}
        for (topic, queue_id), offset in self._last_without_queue.items():
            is_new = offset < self._deleted_until.get(topic, 0)
            is_gone = known is not None and topic not in known and topic not in alive
            if is_new or is_gone:
                del self._problems[ProblemKind.MISSING_UNIT, f"{topic}:{queue_id}"]

    def _add(self, kind: ProblemKind, place: str, offset: int, text: str) -> None:
        known = self._problems.setdefault((kind, place), Problem(kind, place, offset, text, 0))
        known.count += 1

    def _file(self, offset: int) -> str:
        file = self._store.log.files.file_at(offset)
        assert file is not None, "the walk stays in the files"
        return str(file.path)

    def _check_record(self, offset: int, record: RecordCheck) -> None:
        """Look for the unit of a record."""
        if self._store.queues.find(record.topic, record.queue_id) is None:
            try:
                validate_queue(record.topic, record.queue_id)
            except IllegalNameError as exc:  # a flipped bit of a topic leaves the record whole
                problem = Problem(ProblemKind.RECORD, self._file(offset), offset, f"{record.size} bytes: {exc}")
                problem.size_bytes = record.size
                self._report.problems.append(problem)
                return
        if record.sys_flag & HIDDEN_BIT:
            if record.topic == FILLER_TOPIC:
                self._fillers.append(range(offset, offset + record.size))
            return
        name = record.topic, record.queue_id
        start = self._starts.get(name)
        if start is None:
            start = self._starts[name] = self._store.start_of(*name)
        if offset < start:
            self._deleted_until[record.topic] = min(start, self._deleted_until.get(record.topic, start))
            return
        queue = self._store.queues.find(*name)
        unit = queue.unit(record.queue_offset) if queue is not None else None
        if queue is None or unit is None or unit.is_lost:
            if queue is None or not queue.next_offset:
                self._last_without_queue[name] = offset
            place = f"{record.topic}:{record.queue_id}"
            self._add(ProblemKind.MISSING_UNIT, place, record.queue_offset, f"of the record at {offset}")
        elif unit[:2] == (offset, record.size):
            self._matched[queue] += 1
            self._check_tags_code(queue, record, unit)

    def _check_tags_code(self, queue: ConsumeQueue, record: RecordCheck, unit: ConsumeQueueUnit) -> None:
        if unit.tags_code == record.tags_code:
            return
        # Of a message that waits it is the delivery time, which depends on the levels or the turns of waiting of then,
        # and is before the store time if the clock had been set back.
        if queue.topic in WAITING_TOPICS and unit.tags_code > _MAX_HASH:
            return
        text = f"tags code {unit.tags_code} instead of {record.tags_code}"
        self._add(ProblemKind.WRONG_UNIT, _name(queue), record.queue_offset, text)

    def _check_queue(self, queue: ConsumeQueue) -> None:
        """Find the units to which no record belongs."""
        valid = range(max(queue.min_offset, first_offset(queue)), queue.next_offset)
        if self._matched[queue] == len(valid):  # the records have led to all of them already
            self._report.units += len(valid)
            return
        lost = 0
        for number in valid:
            unit = queue.unit(number)
            lost += unit is not None and unit.is_lost
            if reason := self._reason(queue, number, unit):
                self._add(ProblemKind.WRONG_UNIT, _name(queue), number, reason)
        self._report.units += len(valid) - lost

    def _reason(self, queue: ConsumeQueue, number: int, unit: ConsumeQueueUnit | None) -> str:
        """Return the defect of a unit, "" without one."""
        if unit is None or unit.size <= 0:
            return "an empty unit in the middle"
        is_repeated = unit.tags_code == REPEATED_CODE
        if unit.is_lost and not is_repeated:
            return ""
        if 0 <= unit.physical_offset < self._store.deleted.end_of(queue.topic):
            return ""
        if unit.physical_offset >= self._good_end:
            return f"its record, at {unit.physical_offset}, is in the damaged end of the log"
        record = self._store.log.check(unit.physical_offset, check_crc=False)
        if record.kind is not RecordKind.MESSAGE:
            return f"no record at {unit.physical_offset}: {record.reason}"
        if record.size != unit.size:
            return f"{unit.size} bytes, but the record at {unit.physical_offset} has {record.size}"
        is_later = is_repeated and record.queue_offset > number
        if (record.topic, record.queue_id) != (queue.topic, queue.queue_id) or not (
            record.queue_offset == number or is_later
        ):
            return (
                f"the record at {unit.physical_offset} is number {record.queue_offset}"
                f" of {record.topic}:{record.queue_id}"
            )
        return ""


def _name(queue: ConsumeQueue) -> str:
    return f"{queue.topic}:{queue.queue_id}"
