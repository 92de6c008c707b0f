"""Figures of a store for monitoring and tests."""

from dataclasses import dataclass

from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.queue_table import QueueTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """A snapshot of a store.

    Attributes:
        messages_put: messages stored since the store was opened.
        min_offset, max_offset, flushed_offset: offsets of the commit log.
        store_timestamp: store time of the newest message, ms.
        queues: number of consume queues with messages.
        mapped_files: number of mapped files of commit log and consume queues.
        reserved_bytes: disk space known to be reserved for these files.
        damaged_records: damaged records that reads skipped.
        refusal: why messages are refused now, "" if they are not.
    """

    messages_put: int
    min_offset: int
    max_offset: int
    flushed_offset: int
    store_timestamp: int
    queues: int
    mapped_files: int
    reserved_bytes: int
    damaged_records: int
    refusal: str


def take_statistics(log: CommitLog, queues: QueueTable, messages_put: int, refusal: str) -> StoreStatistics:
    """Return a snapshot of an open store."""
    files = [file for queue in queues for file in queue.files.files] + log.files.files
    return StoreStatistics(
        messages_put=messages_put,
        min_offset=log.min_offset,
        max_offset=log.max_offset,
        flushed_offset=log.flushed_offset,
        store_timestamp=log.store_timestamp,
        queues=sum(bool(queue.files.files) for queue in queues),
        mapped_files=sum(file.is_mapped for file in files),
        reserved_bytes=sum(file.reserved for file in files),
        damaged_records=log.damage.count,
        refusal=refusal,
    )
