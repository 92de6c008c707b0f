"""The messages that a life expects, and those that it finds."""

from collections.abc import Iterable
from typing import NamedTuple

from triomq.protocol.codes import HIDDEN_BIT
from triomq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.consume_queue_unit import ConsumeQueueUnit
from triomq.protocol.record.record import RecordKind, decode_record
from triomq.storage.commit_log.log_scan import FILLER_TOPIC
from triomq.storage.delays import DelayLevels
from triomq.storage.message_store import MessageStore


class Stored(NamedTuple):
    """One record as it must be found again."""

    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    tags_codes: frozenset[int]  # of a delayed message the delivery time, which a rebuilt unit may have later
    has_unit: bool
    record: bytes

    @property
    def end(self) -> int:
        return self.physical_offset + len(self.record)


class DeletedFiles:
    """Files of the log that were deleted.

    Attributes:
        gone, going: the log begins at a file border from here, up to which all is deleted, to there.
        ends: behind the last message of each queue that was in such a file.
    """

    def __init__(self) -> None:
        self.gone = self.going = 0
        self.ends: dict[tuple[str, int], int] = {}

    def expire(self, history: list[Stored], log_start: int, durable_end: int) -> list[Stored]:
        """Return the rest of a history if the log begins there; -1: only unflushed messages are left.

        A file may also be missing whose name never reached the disk: then nothing in it did for certain.
        """
        begin = self.going if log_start < 0 else log_start
        is_expected = self.gone <= begin and (begin <= self.going or durable_end <= self.going)
        assert is_expected, f"the log begins at {begin}, not from {self.gone} to {self.going}"
        self.gone = self.going = max(log_start, 0)
        for stored in history:
            if stored.has_unit and stored.physical_offset < begin:
                queue = stored.topic, stored.queue_id
                self.ends[queue] = max(self.ends.get(queue, 0), stored.queue_offset + 1)
        return [stored for stored in history if stored.physical_offset >= begin]


class Intent(NamedTuple):
    """A message that is being put: it may be found or not."""

    topic: str
    queue_id: int
    body: bytes
    tags_code: int


def stored_record(levels: DelayLevels, now_ms: int, physical_offset: int, record: bytes, code: int) -> Stored:
    """Describe a record by its bytes and its tags code; delayed messages are in the queue of their level."""
    message = decode_record(record)
    codes = {code}
    if message.topic == SCHEDULE_TOPIC:
        delay_ms = levels.delays_ms[message.queue_id]
        codes = {time + delay_ms for time in (message.store_timestamp, min(message.store_timestamp, now_ms))}
    elif message.topic == TIMER_TOPIC:
        codes = {int(message.properties["TIMER_OUT_MS"])}
    has_unit = not message.sys_flag & HIDDEN_BIT
    place = (physical_offset, message.topic, message.queue_id, message.queue_offset)
    return Stored(*place, frozenset(codes), has_unit, record)


def records_of(store: MessageStore) -> Iterable[tuple[int, bytes]]:
    """Return all records of messages with their physical offsets; the log must have no hole."""
    log = store.commit_log
    offset = max(log.min_offset, 0)
    while offset < log.max_offset:
        found = log.check(offset, check_crc=True)
        assert found.kind in {RecordKind.MESSAGE, RecordKind.BLANK}, f"at {offset}: {found}"
        if found.kind is RecordKind.MESSAGE and found.topic != FILLER_TOPIC:
            record = log.look_message(offset)
            assert record is not None
            yield offset, bytes(record)
        offset += found.size


def units(store: MessageStore, begin: int, end: int) -> dict[tuple[str, int, int], ConsumeQueueUnit]:
    """Return the units of messages in a part of the log, by topic, queue id and number."""
    found = {}
    for queue in store.queues:
        for number in range(queue.min_offset, queue.next_offset):
            unit = queue.unit(number)
            assert unit is not None
            if begin <= unit.physical_offset < end:
                found[queue.topic, queue.queue_id, number] = unit
    return found
