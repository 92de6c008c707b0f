"""Repair a stopped store from what its commit log still holds.

The plan lists everything that would be done; carrying it out changes nothing else, but that offsets follow a queue
which is shorter when it was built again.  What is lost in the middle of the log stays lost: a start after a crash
replaces it by records that all readers skip, and so does a repair, see ``damage``.  RocketMQ ends the log there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triomq.protocol.record.record import RecordKind
from triomq.storage.commit_log.damage import QUARANTINE, DamagedPart, fill
from triomq.storage.commit_log.log_scan import Progress
from triomq.storage.commit_log.log_walk import Damage, walk
from triomq.storage.delays import stored_tags_code
from triomq.storage.flush import sync_files
from triomq.storage.recovery.queue_cuts import lose_parts
from triomq.storage.recovery.redispatch import Redispatcher
from triomq.storage.tools.stopped_store import StoppedStore, StoredOffset
from triomq.storage.tools.store_check import CheckReport, Problem, ProblemKind, queues_to_rebuild


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What a repair does.

    Attributes:
        cut_at: the commit log is cleared from here on, ``None``: it ends well.
        cut_bytes: how much is cleared.
        queues: consume queues, as ``topic:queue_id``, that are deleted and rebuilt.
        index_files: deleted files: the first bad one and all later ones; a broker rebuilds them.
        offsets: groups whose offset is set back, with the new one.
        fillers: parts of the log that are replaced by records that all readers skip, after a copy was made.
        losses: messages in the middle of the log that are lost: what was in these parts, and whole records of queues
            that cannot be, which stay.
    """

    cut_at: int | None
    cut_bytes: int
    queues: tuple[str, ...]
    index_files: tuple[str, ...]
    offsets: tuple[StoredOffset, ...]
    fillers: tuple[DamagedPart, ...]
    losses: tuple[Problem, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.cut_at is None and not (self.queues or self.index_files or self.offsets or self.fillers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair has done.

    Attributes:
        units_built: in the consume queues of the plan.
        records_ignored: records whose number cannot be that of their queue; consumers do not see them.
        offsets_set: stored offsets that were past the end of their queue, in the end.
    """

    units_built: int
    records_ignored: int
    offsets_set: int = 0


def plan_repair(store: StoppedStore, report: CheckReport) -> RepairPlan:
    """Decide what to do about what a check has found.

    Raises:
        StoreLayoutError: the table of offsets is damaged.
    """
    tail = next((problem for problem in report.problems if problem.kind is ProblemKind.TAIL), None)
    rebuilt = queues_to_rebuild(report.problems)
    ahead = _offsets_ahead(store)
    losses = tuple(problem for problem in report.problems if problem.kind is ProblemKind.RECORD)
    return RepairPlan(
        cut_at=tail.offset if tail is not None else None,
        cut_bytes=tail.size_bytes if tail is not None else 0,
        queues=tuple(rebuilt),
        index_files=_bad_index_files(store, report),
        offsets=tuple(stored for stored in ahead if f"{stored.topic}:{stored.queue_id}" not in rebuilt),
        fillers=tuple(_damaged_part(store, loss) for loss in losses if not _is_message(store, loss.offset)),
        losses=losses,
    )


def _is_message(store: StoppedStore, offset: int) -> bool:
    return store.log.check(offset, check_crc=True).kind is RecordKind.MESSAGE


def _damaged_part(store: StoppedStore, loss: Problem) -> DamagedPart:
    end = loss.offset + loss.size_bytes
    following = store.log.check(end, check_crc=False)
    return DamagedPart(Path(loss.place), loss.offset, end, loss.text, following.store_timestamp)


def _offsets_ahead(store: StoppedStore) -> list[StoredOffset]:
    """Return the stored offsets that are past the end of their queue, as they have to be."""
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues}
    return [
        stored._replace(offset=end)
        for stored in store.stored_offsets()
        if stored.offset > (end := ends.get((stored.topic, stored.queue_id), 0))
    ]


def _bad_index_files(store: StoppedStore, report: CheckReport) -> tuple[str, ...]:
    bad = [Path(problem.place).name for problem in report.problems if problem.kind is ProblemKind.INDEX]
    return tuple(name for name in store.directory.index_names() if name >= min(bad)) if bad else ()


def repair(store: StoppedStore, plan: RepairPlan, progress: Progress | None = None) -> RepairReport:
    """Carry out a plan; all of it is on the disk when this returns.

    Args:
        store: opened to be written.
        plan: made for this store since it was opened.
        progress: called while the commit log is read.

    Raises:
        StoreFullError, StoreError: writing failed; the repair can be repeated.
    """
    if plan.cut_at is not None:
        _cut(store, plan.cut_at)
    builder = None
    if plan.queues:
        with store.rebuilding():
            builder = _rebuild(store, plan.queues, progress)
    if plan.index_files:
        store.directory.delete_index_files(plan.index_files)
    _fill(store, plan.fillers)
    ahead = _offsets_ahead(store)  # those of the plan, and of queues that are shorter now
    if ahead:
        store.save_offsets(ahead)
    return RepairReport(
        units_built=builder.units_added if builder else 0,
        records_ignored=builder.ignored_records if builder else 0,
        offsets_set=len(ahead),
    )


def _cut(store: StoppedStore, offset: int) -> None:
    files = store.log.files
    files.remove_from(max(sum(file.start <= offset for file in files.files), 1))
    files.files[-1].zero_from(offset - files.files[-1].start)
    sync_files(store.file_system, [(files, files.files[-1].start)])


def _fill(store: StoppedStore, parts: Sequence[DamagedPart]) -> None:
    """Replace damaged parts; units go first, because later runs do not look for units that name fillers."""
    if not parts:
        return
    starts, ends = [part.start for part in parts], [part.end for part in parts]
    sync_files(store.file_system, [(queue.files, 0) for queue in store.queues if lose_parts(queue, starts, ends)])
    fill(store.log.files, parts, store.file_system, store.root / QUARANTINE)
    sync_files(store.file_system, [(store.log.files, starts[0])])


def _rebuild(store: StoppedStore, names: Sequence[str], progress: Progress | None) -> Redispatcher:
    """Rebuild consume queues, named ``topic:queue_id``, from all records of the log."""
    queues = [store.queues.get(topic, int(number)) for topic, _, number in (name.rpartition(":") for name in names)]
    starts = {(queue.topic, queue.queue_id): store.start_of(queue.topic, queue.queue_id) for queue in queues}
    for queue in queues:
        queue.destroy()
    tags_code_of = stored_tags_code(store.config.delay_levels)
    builder = Redispatcher(store.queues, store.deleted, tags_code_of, lambda record, reason: None)
    builder.start(store.log.min_offset)
    for found in walk(store.log, store.file_system, check_crc=False, progress=progress):
        if not isinstance(found, Damage):
            offset, record = found
            start = starts.get((record.topic, record.queue_id))
            if start is not None and offset >= start:
                builder.dispatch((record,))
    builder.finish()
    sync_files(store.file_system, [(queue.files, 0) for queue in queues])
    return builder
