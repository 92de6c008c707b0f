"""Settings of the store, each with RocketMQ's own name and default beside it."""

import os
from dataclasses import dataclass, field, fields
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any, Final

from triomq.protocol.errors import ConfigError
from triomq.protocol.record.consume_queue_unit import UNIT_SIZE
from triomq.storage.delays import DelayLevels

_MIN_COMMIT_LOG_FILE_BYTES: Final = 1024
_MAX_FILE_BYTES: Final = 2**31 - 1  # RocketMQ keeps file sizes and positions in an int
_HOURS: Final = range(24)
_MAX_INDEX_SLOTS: Final = 100_000_000
_MAX_INDEX_UNITS: Final = 80_000_000  # together they fill a file
_RECORD_OVERHEAD_BYTES: Final = 65_536  # what a record may be longer than its body
_MAX_TRANSFER_BYTES: Final = 8 * 1024**2  # with the longest message and a header it is a frame still
_MAX_TRANSFER_COUNT: Final = 8192  # of no read more is looked at in one step


class Durability(Enum):
    """When a message counts as stored.  Source: FlushDiskType.java."""

    ASYNC = "async"
    """In the operating system's cache: survives the process, not a power loss.  ASYNC_FLUSH"""
    SYNC = "sync"
    """On the disk; consumers do not see it before.  SYNC_FLUSH"""


def _machine_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limited(default: float, least: float, most: float = inf) -> Any:
    """Return a setting that must be within limits."""
    return field(default=default, metadata={"limits": (least, most)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where a store is and how it behaves; impossible values raise ``ConfigError``.

    File sizes are not recorded on disk: a directory must be opened with the sizes it was written with.
    Source: MessageStoreConfig.java; store.md, appendix A.
    """

    root: Path  # storePathRootDir
    # mappedFileSizeCommitLog
    commit_log_file_size_bytes: int = _limited(1024**3, _MIN_COMMIT_LOG_FILE_BYTES, _MAX_FILE_BYTES)
    # mappedFileSizeConsumeQueue; rounded up to whole units
    consume_queue_file_size_bytes: int = _limited(6_000_000, UNIT_SIZE, _MAX_FILE_BYTES)
    # maxMessageSize: of a body
    max_message_size_bytes: int = _limited(4 * 1024**2, 1, _MAX_FILE_BYTES - _RECORD_OVERHEAD_BYTES)
    durability: Durability = Durability.ASYNC  # flushDiskType

    flush_interval_s: float = 0.5  # flushIntervalCommitLog, there in ms like the other intervals
    flush_least_pages: int = _limited(4, 0)  # flushCommitLogLeastPages
    flush_thorough_interval_s: float = 10.0  # flushCommitLogThoroughInterval
    flush_consume_queue_interval_s: float = 1.0  # flushIntervalConsumeQueue
    flush_consume_queue_least_pages: int = _limited(2, 0)  # flushConsumeQueueLeastPages
    flush_consume_queue_thorough_interval_s: float = 60.0  # flushConsumeQueueThoroughInterval

    reserve_step_bytes: int = _limited(16 * 1024**2, 1)  # ours: disk space is reserved this far ahead in the commit log
    # ours: likewise in each consume queue, at first less
    consume_queue_reserve_step_bytes: int = _limited(64 * 1024, 1)

    retention_hours: float = _limited(72.0, 0)  # fileReservedTime: older files of the commit log may be deleted
    retention_bytes: int | None = None  # ours: above this length the commit log loses its oldest files at any hour
    delete_when: tuple[int, ...] = (4,)  # deleteWhen: hours of the local day in which old files are deleted
    # diskMaxUsedSpaceRatio, percent: above it old files are deleted at any hour
    disk_max_used_ratio: int = _limited(75, 10, 95)
    # rocketmq.broker.diskSpaceCleanForciblyRatio, percent: above it younger files too
    disk_clean_ratio: int = _limited(85, 1, 100)
    disk_full_ratio: int = _limited(90, 1, 100)  # rocketmq.broker.diskSpaceWarningLevelRatio, percent: no puts above
    clean_file_forcibly: bool = True  # cleanFileForciblyEnable: whether disk_clean_ratio counts
    clean_interval_s: float = 10.0  # cleanResourceInterval
    delete_files_interval_s: float = 0.1  # deleteCommitLogFilesInterval: pause between two files

    hot_bytes: int = _limited(64 * 1024**2, 0)  # ours: so near to the log's end, records count as in memory unasked
    max_transfer_bytes_in_memory: int = _limited(262_144, 1, _MAX_TRANSFER_BYTES)  # maxTransferBytesOnMessageInMemory
    max_transfer_count_in_memory: int = _limited(32, 1, _MAX_TRANSFER_COUNT)  # maxTransferCountOnMessageInMemory
    max_transfer_bytes_in_disk: int = _limited(65_536, 1, _MAX_TRANSFER_BYTES)  # maxTransferBytesOnMessageInDisk
    max_transfer_count_in_disk: int = _limited(8, 1, _MAX_TRANSFER_COUNT)  # maxTransferCountOnMessageInDisk
    # ours: of a pull that says how many bytes its reader takes
    max_transfer_bytes_asked: int = _limited(1024**2, 1, _MAX_TRANSFER_BYTES)
    max_transfer_count_asked: int = _limited(1024, 1, _MAX_TRANSFER_COUNT)  # ours: likewise
    in_memory_max_ratio: int = _limited(40, 0, 100)  # accessMessageInMemoryMaxRatio, percent of the main memory
    # ours: for tests
    physical_memory_bytes: int = field(default_factory=_machine_memory_bytes, metadata={"limits": (1, inf)})

    check_crc_on_recover: bool = True  # checkCRCOnRecover
    index: bool = True  # messageIndexEnable: new messages can be found by their keys
    index_slots: int = _limited(5_000_000, 1, _MAX_INDEX_SLOTS)  # maxHashSlotNum
    index_units: int = _limited(20_000_000, 2, _MAX_INDEX_UNITS)  # maxIndexNum: of a file, with one that is never used
    delay_levels: DelayLevels = field(default_factory=DelayLevels)  # messageDelayLevel

    def __post_init__(self) -> None:
        """Round the consume queue's file size up to whole units and check all values."""
        units = -(-self.consume_queue_file_size_bytes // UNIT_SIZE)
        object.__setattr__(self, "consume_queue_file_size_bytes", units * UNIT_SIZE)
        for setting in fields(self):
            value = getattr(self, setting.name)
            if "limits" in setting.metadata:
                least, most = setting.metadata["limits"]
                if not least <= value <= most:
                    allowed = f"at least {least}" if most == inf else f"{least} to {most}"
                    raise ConfigError(f"{setting.name} is {value}, must be {allowed}")
            if setting.name.endswith("_interval_s") and not value > 0:
                raise ConfigError(f"{setting.name} is {value}, must be above 0")
        self._check_retention()

    def _check_retention(self) -> None:
        if wrong := [hour for hour in self.delete_when if hour not in _HOURS]:
            raise ConfigError(f"delete_when holds {wrong[0]}, must be hours of a day, 0 to 23")
        least = self.commit_log_file_size_bytes
        if self.retention_bytes is not None and self.retention_bytes < least:
            raise ConfigError(
                f"retention_bytes is {self.retention_bytes}, must be at least {least} (commit_log_file_size_bytes):"
                " only whole files are deleted"
            )

    def transfer_limits(self, max_bytes: int | None) -> tuple[int, int]:
        """Return the limits of one read of records in memory: messages and bytes.

        With ``max_bytes``, the limit that the reader asked for, reads are longer, also of records on disk.
        """
        if max_bytes is None:
            return self.max_transfer_count_in_memory, self.max_transfer_bytes_in_memory
        return self.max_transfer_count_asked, min(max_bytes, self.max_transfer_bytes_asked)

    @property
    def in_memory_bytes(self) -> int:
        """Records within this distance of the log's end count as in memory.  Source: store.md 7.3."""
        return self.physical_memory_bytes * self.in_memory_max_ratio // 100

    @property
    def max_record_size_bytes(self) -> int:
        """A longer record is refused.  Source: store.md 2.8; for one file: 2.2."""
        limit = self.max_message_size_bytes + _RECORD_OVERHEAD_BYTES
        return min(limit, self.commit_log_file_size_bytes - 8)
