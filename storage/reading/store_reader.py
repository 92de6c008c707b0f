"""Read access to an open store."""

from collections.abc import Sequence

from triomq.protocol.errors import ProtocolError
from triomq.protocol.filters.filter_types import MessageFilter
from triomq.protocol.filters.sql_filter import SqlFilter
from triomq.protocol.record.consume_queue_unit import ConsumeQueueUnit
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.consume_queue.unit_search import physical_offset_of
from triomq.storage.reading.cold_read import ColdReads, Work
from triomq.storage.reading.filtered_read import choose, scan_for
from triomq.storage.reading.get_message import GetMessageResult, GetMessageStatus, get_message
from triomq.storage.reading.offset_by_time import offset_by_time


class StoreReader:
    """Reads the log and the queues of an open store."""

    def __init__(self, config: StoreConfig, log: CommitLog, queues: QueueTable, cold_reads: ColdReads) -> None:
        """Read with these parts; ``cold_reads`` knows what is not in memory."""
        self._config = config
        self._log = log
        self._queues = queues
        self._cold_reads = cold_reads

    def get_message(
        self,
        queue: ConsumeQueue | tuple[str, int],
        queue_offset: int,
        max_msg_nums: int,
        codes: frozenset[int] | None = None,
        max_bytes: int | None = None,
    ) -> GetMessageResult:
        """Read messages from ``queue_offset`` on; see ``get_message.get_message``.

        ``queue`` may be given as topic and queue id: one that does not exist is not created, and has no messages.
        """
        found = queue if isinstance(queue, ConsumeQueue) else self._queues.find(*queue)
        if found is None:
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0, 0)
        return get_message(self._log, self._config, found, queue_offset, max_msg_nums, codes, max_bytes)

    def get_matching(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter,
        max_bytes: int | None = None,
    ) -> GetMessageResult:
        """Read the messages that a filter may match, by its own stage: the units' tag codes, or the properties.

        ``filtered_read.scan_for`` tells what must be in memory.
        """
        scan = scan_for(message_filter, max_msg_nums, max_bytes)
        found = get_message(self._log, self._config, queue, queue_offset, *scan)
        if isinstance(message_filter, SqlFilter) and found.status is GetMessageStatus.FOUND:
            return choose(found, message_filter, self._config, max_msg_nums, max_bytes)
        return found

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message; 0 for a queue that does not exist."""
        queue = self._queues.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last message; 0 for a queue that does not exist."""
        queue = self._queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> Work[int]:
        """Return the queue offset of the message stored nearest to ``timestamp`` (ms), 0 without messages.

        See ``offset_by_time.offset_by_time`` for times that go back.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        return (yield from offset_by_time(self._log, queue, timestamp, self._cold_reads))

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> Work[int]:
        """Return the store time (ms) of a message, or of the next one if it is lost; -1 if there is none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        yield from self._cold_reads.load_units(queue, queue_offset)
        physical_offset = physical_offset_of(queue, queue_offset)
        yield from self._cold_reads.load_records((physical_offset,))
        return self._log.store_time(physical_offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> Work[int]:
        """Return the store time of the first message of the queue (ms), -1 without messages."""
        return (yield from self.store_time(topic, queue_id, self.min_offset_in_queue(topic, queue_id)))

    def look_message(self, physical_offset: int, size: int | None = None) -> memoryview | None:
        """Return the record at ``physical_offset`` (of ``size`` bytes), or ``None``.

        Any offset is allowed.  A client may know a place before the record is on the disk, from a send that does not
        wait or a check of a transaction: with durability sync, answer after the flush unless ``is_durable``.
        """
        return self._log.look_message(physical_offset, size)

    def is_durable(self, physical_offset: int) -> bool:
        """Whether a record is as durable as the configuration promises; with durability sync: on the disk."""
        return self._config.durability is not Durability.SYNC or physical_offset < self._log.flushed_offset

    def recent_message(self, physical_offset: int) -> MessageExt | None:
        """Return the message at ``physical_offset`` if it was written lately, so that it is in memory; else ``None``.

        Any offset is allowed, and the message may not be on the disk yet, as in ``look_message``.
        """
        log = self._log
        if not self._cold_reads.hot_from() <= physical_offset < log.max_offset:
            return None
        file = log.files.file_at(physical_offset)
        try:
            message = None if file is None else decode_record(file.map, physical_offset - file.start)
        except ProtocolError:
            return None
        return message if message is not None and message.physical_offset == physical_offset else None

    def look_up(self, physical_offsets: Sequence[int]) -> Work[list[memoryview | None]]:
        """Return what ``look_message`` returns for each offset."""
        yield from self._cold_reads.load_records(physical_offsets)
        return [self.look_message(physical_offset) for physical_offset in physical_offsets]

    def queue_units(self, topic: str, queue_id: int, index: int, count: int) -> list[ConsumeQueueUnit]:
        """Return up to ``count`` visible units of a queue from queue offset ``index`` on."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return []
        begin, end = max(index, queue.min_offset), min(index + count, queue.max_offset)
        units = map(queue.unit, range(begin, end))
        return [unit for unit in units if unit is not None]
