"""Append messages to the commit log and their units to the consume queues, and show them to consumers.

Problem: an append writes at least two files, and the process may be killed or the disk may be full at any moment.
Still, all messages of an append are stored or none of them, and a consumer never sees a message that a restart loses.

Rejected: a thread that dispatches records to the queues later, as RocketMQ has.  A queue would lag behind the log, and
a start would have to find out how far.

Invariant: space for records and units is reserved before the first byte is written, so the disk cannot refuse any of
them.  The units follow in the same step as the records.  With durability ``sync`` the ``Appender`` holds back
``max_offset``, which consumers see, until the records are on the disk.  The index follows the log on its own.

Source: CommitLog.java, asyncPutMessage, asyncPutMessages; DefaultMessageStore.java, doDispatch; store.md 2.2, 2.5-2.10,
3.3.
"""

import struct
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, TypeAlias

from triomq.protocol.codes import HIDDEN_BIT
from triomq.protocol.errors import MessageIllegalError, ProtocolError
from triomq.protocol.host import IPV4_HOST_LENGTH
from triomq.protocol.record.consume_queue_unit import UNIT
from triomq.protocol.record.layout import HEAD, HOST_V6_BITS, MESSAGE_MAGIC, PROPERTIES_LENGTH, head_for
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES
from triomq.protocol.record.record import body_crc, tags_code_of
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable

DueTime: TypeAlias = Callable[[int, int], int]
"""Returns the tags code of a message that waits, from its store time and the time now (ms)."""

HELD_STEP_MS: Final = 3000
"""While the clock is behind the newest record by no more than this, store times do not go back."""

_MAX_QUEUES: Final = 128  # in one append: all of them must be mapped at once
_UNLIMITED: Final = 2**63
_LENGTH_BYTES: Final = PROPERTIES_LENGTH.size
_FIXED_IPV4_BYTES: Final = HEAD.size + _LENGTH_BYTES  # a record without body, topic field and properties
_NOT_HOST_BITS: Final = ~HOST_V6_BITS
_pack_ipv4_head = HEAD.pack
_pack_unit = UNIT.pack
_two_bytes = PROPERTIES_LENGTH.pack


class Entry(NamedTuple):
    """One message to append.

    Hot paths build it with ``tuple.__new__`` and unpack it, which takes half the time of a call and of attributes.

    Attributes:
        queue: from ``MessageStore.queue()``.
        body: as received, possibly compressed.
        properties: encoded, without a final 0x02.
        tags_code: hash of the tags; for a message that waits, a function that is called once the store time is known.
        flag, sys_flag, born_timestamp, reconsume_times, prepared_transaction_offset: fields of the record; the append
            sets the host bits of ``sys_flag``.
        born_host, store_host: 8 or 20 bytes, see ``protocol.host.encode_host``.
        body_crc: checksum of the body, as the record holds it.
    """

    queue: ConsumeQueue
    body: bytes
    properties: bytes
    tags_code: int | DueTime
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int


def entry(  # noqa: PLR0913  # the fields of a record
    queue: ConsumeQueue,
    body: bytes,
    properties: bytes,
    *,
    tags_code: int | DueTime = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> Entry:
    """Return an entry with the checksum of its body, and 0 for each number that is not given."""
    return Entry(
        queue, body, properties, tags_code, flag, sys_flag, born_timestamp, born_host, store_host, reconsume_times,
        prepared_transaction_offset, body_crc(body),
    )  # fmt: skip


def copy_of(message: MessageExt, queue: ConsumeQueue, properties: bytes) -> Entry:
    """Return an entry that stores a stored message again, in another queue or with other properties."""
    return Entry(
        queue, message.stored_body, properties, tags_code_of(properties), message.flag, message.sys_flag,
        message.born_timestamp, message.encoded_born_host, message.encoded_store_host, message.reconsume_times,
        message.prepared_transaction_offset, message.body_crc,
    )  # fmt: skip


_Packed: TypeAlias = tuple[list[bytes], list[tuple[int, int]], dict[ConsumeQueue, list[bytes]], int]
"""Parts of the records, place of each message, units of each queue, and the physical offset after the last record."""


class Appender:
    """Appends entries to the log and the queues of an open store, and shows them to consumers: at once, or once they
    are on the disk.
    """

    def __init__(self, config: StoreConfig, log: CommitLog, queues: QueueTable, clock_ms: Callable[[], int]) -> None:
        """Describe the appender; ``clock_ms`` gives store times."""
        self._log = log
        self._waits_for_flush = config.durability is Durability.SYNC
        self._pending: deque[tuple[int, ConsumeQueue, int]] = deque()
        self._clock_ms = clock_ms
        self._max_body_bytes = config.max_message_size_bytes
        self._max_record_bytes = config.max_record_size_bytes
        self._max_queues = max(min(_MAX_QUEUES, queues.pool.limit // 4), 1)
        self._small_bytes = min(self._max_record_bytes, self._max_body_bytes, MAX_PROPERTIES_BYTES)

    def append(self, entries: Sequence[Entry], *, are_copies: bool = False) -> list[tuple[int, int]]:
        """Store messages one after the other, in one file and with one store time, or none of them.

        Args:
            entries: the messages.
            are_copies: they were accepted before, so that the limits of the configuration do not apply.

        Returns:
            Physical offset and queue offset of each message; the queue offset of one that gets no unit is 0.

        Raises:
            MessageIllegalError: a length or a number is above its limit, or the messages do not fit into one append.
            StoreFullError: the disk is full.
            StoreError: the disk reports an error.
        """
        if not entries:
            return []
        log = self._log
        newest_ms, now_ms = log.store_timestamp, self._clock_ms()
        store_ms = newest_ms if now_ms < newest_ms <= now_ms + HELD_STEP_MS else now_ms
        times = store_ms, now_ms
        max_size = _UNLIMITED if are_copies else self._small_bytes
        begin = log.max_offset
        parts, places, units_of, end = self._pack(entries, begin, times, max_size)
        log.reserve(end - begin)
        for queue, units in units_of.items():
            if not queue.has_room(len(units)):
                if len(units_of) > self._max_queues:
                    raise MessageIllegalError(
                        f"messages for {len(units_of)} queues, at most {self._max_queues} in one append"
                    )
                for each, its_units in units_of.items():  # all of them: mapping one must not unmap another
                    each.reserve(len(its_units))
                break
        at = log.begin(end - begin)
        if at != begin:  # in the next file
            parts, places, units_of, end = self._pack(entries, at, times, max_size)
        if store_ms < newest_ms:
            log.clock_steps.add(at, newest_ms)
        log.store_timestamp = store_ms
        log.write(parts, end - at)
        for queue, units in units_of.items():
            queue.append_units(b"".join(units), end)
            if self._waits_for_flush:
                self._pending.append((end, queue, queue.next_offset))
            else:
                queue.show(queue.next_offset)
        return places

    def flushed(self) -> None:
        """Show the messages that are on the disk; each queue's ``on_arrival`` is called once."""
        pending, flushed_offset = self._pending, self._log.flushed_offset
        arrived: dict[ConsumeQueue, int] = {}
        while pending and pending[0][0] <= flushed_offset:
            _, queue, max_offset = pending.popleft()
            arrived[queue] = max_offset
        for queue, max_offset in arrived.items():
            queue.show(max_offset)

    def forget(self, queues: Collection[ConsumeQueue]) -> None:
        """Drop the pending messages of queues that were deleted."""
        self._pending = deque(entry for entry in self._pending if entry[1] not in queues)

    def _pack(self, entries: Sequence[Entry], physical_offset: int, times: tuple[int, int], max_size: int) -> _Packed:
        """Pack records that begin at ``physical_offset``; records above ``max_size`` are checked.

        All in one loop: a call for each message would cost a tenth of its append.
        """
        parts: list[bytes] = []
        places: list[tuple[int, int]] = []
        units_of: dict[ConsumeQueue, list[bytes]] = {}
        store_timestamp = times[0]
        try:
            for (
                queue, body, properties, tags_code, flag, sys_flag, born_timestamp, born_host, store_host,
                reconsume_times, prepared_transaction_offset, crc,
            ) in entries:  # fmt: skip
                topic_field = queue.topic_field
                body_length, properties_length = len(body), len(properties)
                if len(born_host) == IPV4_HOST_LENGTH == len(store_host):
                    pack_head, sys_flag = _pack_ipv4_head, sys_flag & _NOT_HOST_BITS
                    size = _FIXED_IPV4_BYTES + body_length + len(topic_field) + properties_length
                else:
                    head, sys_flag = head_for(sys_flag, born_host, store_host)
                    pack_head = head.pack
                    size = head.size + _LENGTH_BYTES + body_length + len(topic_field) + properties_length
                if size > max_size:
                    self._check_size(size, body_length, properties_length)
                if sys_flag & HIDDEN_BIT:
                    queue_offset = 0
                else:
                    units = units_of.get(queue)
                    if units is None:
                        units = units_of[queue] = []
                    queue_offset = queue.next_offset + len(units)
                    code = tags_code if isinstance(tags_code, int) else tags_code(*times)
                    units.append(_pack_unit(physical_offset, size, code))
                packed_head = pack_head(
                    size, MESSAGE_MAGIC, crc, queue.queue_id, flag, queue_offset, physical_offset, sys_flag,
                    born_timestamp, born_host, store_timestamp, store_host,
                    reconsume_times, prepared_transaction_offset, body_length,
                )  # fmt: skip
                parts += (packed_head, body, topic_field, _two_bytes(properties_length), properties)
                places.append((physical_offset, queue_offset))
                physical_offset += size
        except (struct.error, ProtocolError) as exc:
            failed = entries[len(places)]
            raise MessageIllegalError(f"message for {failed.queue.topic}: {exc}") from exc
        return parts, places, units_of, physical_offset

    def _check_size(self, size: int, body_length: int, properties_length: int) -> None:
        if body_length > self._max_body_bytes:
            limit = f"body of {body_length} bytes, at most {self._max_body_bytes} (max_message_size_bytes)"
        elif properties_length > MAX_PROPERTIES_BYTES:
            limit = f"properties of {properties_length} bytes, at most {MAX_PROPERTIES_BYTES}"
        elif size > self._max_record_bytes:
            limit = f"record of {size} bytes, at most {self._max_record_bytes}"
        else:
            return
        raise MessageIllegalError(f"message too large: {limit}")
