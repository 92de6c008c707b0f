"""What a start of a store tells about its recovery."""

from dataclasses import dataclass

from triomq.storage.commit_log.damage import DamagedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What the start of a store found and did.

    Attributes:
        clean: the previous shutdown was clean.
        scan_start, log_end: the part of the commit log that was walked over, as physical offsets.
        records: messages in it.
        stopped_by: why the log ends there, "" at the end of the last file.
        truncated_bytes: cleared past the end of the log: more than 0 means that something was damaged or torn.
        damage: parts of the log that held no record, each with file, offset and reason.
        lost_messages: units of consume queues that pointed there.
        removed_files: commit log files past the end.
        units_added, units_removed: in consume queues; one of which a part was missing counts as added.
        repaired_queues: queues that had lost units in the middle, as ``topic:queue_id``.
        ignored_records: records that cannot belong to a queue.
        removed_index_files: index files that are rebuilt.
        seconds: how long it took.
    """

    clean: bool
    scan_start: int = 0
    log_end: int = 0
    records: int = 0
    stopped_by: str = ""
    truncated_bytes: int = 0
    damage: tuple[DamagedPart, ...] = ()
    lost_messages: int = 0
    removed_files: int = 0
    units_added: int = 0
    units_removed: int = 0
    repaired_queues: tuple[str, ...] = ()
    ignored_records: int = 0
    removed_index_files: tuple[str, ...] = ()
    seconds: float = 0.0
