"""What adds messages to a store: the append path, from sizes checked to units written.

Source: CommitLog.java, asyncPutMessage, asyncPutMessages; store.md 2.2, 2.5-2.10.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, SupportsIndex
from zlib import crc32

from triomq.protocol.codes import TRANSACTION_MASK
from triomq.protocol.errors import MessageIllegalError, ProtocolError, StoreError
from triomq.protocol.host import IPV4_HOST_LENGTH
from triomq.protocol.record.consume_queue_unit import UNIT
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES
from triomq.protocol.record.record import HEAD, MESSAGE_MAGIC
from triomq.storage.commit_log.commit_log import CRC_MASK, FIXED_HEAD_BYTES, MIN_BLANK_BYTES, NOT_HOST_BITS
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.dispatch import WITHOUT_UNIT, Dispatcher
from triomq.storage.reading.record_copies import PackedCopies, RecordCopy, copy_size
from triomq.storage.reading.store_reader import StoreReader

RunEntry = tuple[ConsumeQueue, bytes, bytes, int, int, int, int]
"""Queue, body, properties, tags code, flag, sysFlag and born timestamp (ms) of one message of a run."""

BatchEntry = tuple[int, bytes, bytes, int]
"""Flag, body, properties and tags code of one message of a batch."""

Origin = tuple[int, int, int, bytes, bytes, int]
"""Flag, sys_flag, born_timestamp, born_host, store_host and reconsume_times of a message, as ``put`` takes them."""

_FIXED_BYTES: Final = FIXED_HEAD_BYTES + 2  # a record without hosts, body, topic field and properties
_FIXED_IPV4_BYTES: Final = _FIXED_BYTES + 2 * IPV4_HOST_LENGTH
_MOST_QUEUES: Final = 128  # of one step: all of them must be mapped at once
_pack_head = HEAD.pack
_pack_unit = UNIT.pack
_two_bytes = struct.Struct(">h").pack
_new_tuple = tuple.__new__  # half the time of a NamedTuple's own constructor


class Appended(NamedTuple):
    """Where a message was stored, and when (ms)."""

    physical_offset: int
    queue_offset: int
    store_timestamp: int


class _DeliveryTime:
    """When a message is due that is being stored, as a number that ``struct`` asks for."""

    __slots__ = ("_delay_ms", "_store")

    def __init__(self, store: "StoreWriter", delay_ms: int) -> None:
        self._store = store
        self._delay_ms = delay_ms

    def __index__(self) -> int:
        # Store times never decrease: after the clock was set back they are ahead of it, and the delay would be longer.
        return min(self._store.commit_log.store_timestamp, self._store.now_ms()) + self._delay_ms


class StoreWriter(StoreReader):
    """Appends messages to log and queues of an open store."""

    _clock_ms: Callable[[], int]
    _dispatcher: Dispatcher
    _max_body_bytes: int
    _max_record_bytes: int
    _messages_put: int
    _small_record_bytes: int  # shorter records break no limit
    _refusal: Callable[[], StoreError] | None

    def now_ms(self) -> int:
        """Return the time of the clock that gives store times, ms."""
        return self._clock_ms()

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, always the same object; it exists in memory only until its first message.

        Raises:
            IllegalNameError: RocketMQ allows no such topic or queue id.
            StoreClosedError: the store is not open.
        """
        self._require_open()
        return self.queues.get(topic, queue_id)

    def delivery_time(self, level: int) -> SupportsIndex:
        """Return the tags code of messages of a delay level, 1 to the highest one; it serves for all of them."""
        return _DeliveryTime(self, self.config.delay_levels.delays_ms[level - 1])

    def put(  # noqa: PLR0913, PLR0917  # the parts of a message
        self,
        queue: ConsumeQueue,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: SupportsIndex,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Appended:
        """Store one message, or nothing of it.

        Args:
            queue: from ``queue()``.
            body: as it came, perhaps compressed.
            properties: encoded, without a final 0x02.
            tags_code: hash of the tags, or in the schedule topic what ``delivery_time()`` returns: it becomes a number
                only when the store time is known.
            flag, sys_flag, born_timestamp, reconsume_times, prepared_transaction_offset: fields of the record; the
                host bits of ``sys_flag`` are set here.
            born_host, store_host: 8 or 20 bytes, see ``protocol.host.encode_host``.

        Raises:
            MessageIllegalError: a length or a number is above its limit.
            StoreFullError: the disk is full.
            StoreClosedError: the store is not open.
            StoreError: the disk refused, now or before.
        """
        if self._refusal is not None:
            raise self._refusal()
        size = _FIXED_BYTES + len(born_host) + len(store_host) + len(body) + len(queue.topic_field) + len(properties)
        if size > self._small_record_bytes:
            self._check_size(size, len(body), len(properties))
        log = self.commit_log
        has_unit = sys_flag & TRANSACTION_MASK not in WITHOUT_UNIT
        log.reserve(size)
        if has_unit:
            queue.reserve(1)
        physical_offset = log.begin(size)
        now = self._clock_ms()
        if now > log.store_timestamp:
            log.store_timestamp = now
        queue_offset = queue.next_offset if has_unit else 0
        try:
            head = log.head(
                queue,
                queue_offset,
                physical_offset,
                size,
                body,
                flag,
                sys_flag,
                born_timestamp,
                born_host,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                properties,
            )
            unit = _pack_unit(physical_offset, size, tags_code)
        except (struct.error, ProtocolError) as exc:
            raise MessageIllegalError(f"message for {queue.topic}: {exc}") from exc
        log.write(head, body, queue.topic_field, properties)
        self._messages_put += 1
        if has_unit:
            queue.append_packed(unit, physical_offset + size)
            self._dispatcher.appended(queue, physical_offset + size)
        return _new_tuple(Appended, (physical_offset, queue_offset, log.store_timestamp))

    def put_run(self, run: Sequence[RunEntry], born_host: bytes, store_host: bytes) -> list[tuple[int, int]] | None:
        """Store messages of any queues behind one another with one copy, or none of them.

        Args:
            run: the messages, as ``put`` takes them, none of them part of a transaction.
            born_host, store_host: of all of them.

        Returns:
            Physical offset and queue offset of each.  ``None`` if this way is not open: the end of a file is near, a
            host is not IPv4, a message is above a limit or the store takes none.  ``put`` takes them one by one then,
            and tells which one fails and why.
        """
        log = self.commit_log
        if self._refusal is not None or len(born_host) != IPV4_HOST_LENGTH or len(store_host) != IPV4_HOST_LENGTH:
            return None
        store_timestamp = max(log.store_timestamp, self._clock_ms())
        physical_offset = log.max_offset
        parts: list[bytes] = []
        places: list[tuple[int, int]] = []
        units_of: dict[ConsumeQueue, list[bytes]] = {}
        try:
            for queue, body, properties, tags_code, flag, sys_flag, born_timestamp in run:
                topic_field = queue.topic_field
                body_length, properties_length = len(body), len(properties)
                size = _FIXED_IPV4_BYTES + body_length + len(topic_field) + properties_length
                if size > self._small_record_bytes:
                    return None
                units = units_of.get(queue)
                if units is None:
                    units = units_of[queue] = []
                queue_offset = queue.next_offset + len(units)
                units.append(_pack_unit(physical_offset, size, tags_code))
                head = _pack_head(
                    size,
                    MESSAGE_MAGIC,
                    crc32(body) & CRC_MASK,
                    queue.queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    sys_flag & NOT_HOST_BITS,
                    born_timestamp,
                    born_host,
                    store_timestamp,
                    store_host,
                    0,
                    0,
                    body_length,
                )
                parts += (head, body, topic_field, _two_bytes(properties_length), properties)
                places.append((physical_offset, queue_offset))
                physical_offset += size
        except struct.error:
            return None
        if not log.find_room(physical_offset - log.max_offset) or not all(
            queue.has_room(len(units)) for queue, units in units_of.items()
        ):
            return None
        log.store_timestamp = store_timestamp
        log.write_run(b"".join(parts))
        self._messages_put += len(places)
        for queue, units in units_of.items():
            queue.append_run(b"".join(units), physical_offset)
            self._dispatcher.appended(queue, physical_offset)
        return places

    def put_batch(
        self,
        queue: ConsumeQueue,
        entries: Sequence[BatchEntry],
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
    ) -> list[Appended]:
        """Store several messages behind one another, in one file and with one store time, or none of them.

        Raises:
            MessageIllegalError: as ``put``; also a transaction flag, or all together do not fit into one file.
            StoreFullError, StoreClosedError, StoreError: as ``put``.
        """
        if self._refusal is not None:
            raise self._refusal()
        sizes = self._batch_sizes(queue, entries, sys_flag, len(born_host) + len(store_host))
        log = self.commit_log
        log.reserve(sum(sizes))
        queue.reserve(len(entries))
        physical_offset = log.begin(sum(sizes))
        log.store_timestamp = max(log.store_timestamp, self._clock_ms())
        common = (sys_flag, born_timestamp, born_host, store_host, 0, 0)
        parts: list[bytes] = []
        units = []
        appended = []
        queue_offset, topic_field, store_timestamp = queue.next_offset, queue.topic_field, log.store_timestamp
        try:
            for size, (flag, body, properties, tags_code) in zip(sizes, entries, strict=True):
                head = log.head(queue, queue_offset, physical_offset, size, body, flag, *common, properties)
                parts += (head, body, topic_field, _two_bytes(len(properties)), properties)
                units.append(_pack_unit(physical_offset, size, tags_code))
                appended.append(_new_tuple(Appended, (physical_offset, queue_offset, store_timestamp)))
                physical_offset += size
                queue_offset += 1
        except (struct.error, ProtocolError) as exc:
            raise MessageIllegalError(f"batch for {queue.topic}: {exc}") from exc
        if entries:
            log.write_run(b"".join(parts))
            self._append_units(queue, units)
            self._messages_put += len(entries)
        return appended

    def put_copies(self, copies: Sequence[RecordCopy]) -> int:
        """Store records of this store again, in other queues, with one store time.

        Nothing of a copy is checked: its source was once.  That, one write to the log and one look at each queue make a
        copy several times as fast as decoding and ``put``.

        Returns:
            How many were stored: from the first on as many as one file of the log holds, in a limited number of
            queues.

        Raises:
            MessageIllegalError: the first one fits into no file.
            StoreFullError, StoreClosedError, StoreError: as ``put``; none was stored.
        """
        if self._refusal is not None:
            raise self._refusal()
        log = self.commit_log
        log.store_timestamp = max(log.store_timestamp, self._clock_ms())
        begin = log.max_offset
        packed = PackedCopies(copies, begin, log.store_timestamp)
        if len(packed.units) > self._most_queues or not log.find_room(packed.size_bytes):
            copies = self._of_one_step(copies)
            packed = PackedCopies(copies, begin, log.store_timestamp)
            log.reserve(packed.size_bytes)
        for queue, units in packed.units.items():
            queue.reserve_with_others(len(units))
        at = log.begin(packed.size_bytes)
        if at != begin:
            packed = PackedCopies(copies, at, log.store_timestamp)
        log.write_run(b"".join(packed.parts))
        for queue, units in packed.units.items():
            self._append_units(queue, units)
        self._messages_put += len(copies)
        return len(copies)

    @property
    def _most_queues(self) -> int:
        return max(min(_MOST_QUEUES, self.queues.pool.limit // 4), 1)

    def _append_units(self, queue: ConsumeQueue, units: Sequence[bytes]) -> None:
        """Add the units of records that end at the end of the log to a queue that has reserved room for them."""
        end = self.commit_log.max_offset
        if queue.has_room(len(units)):
            queue.append_run(b"".join(units), end)
        else:
            for unit in units:
                queue.append_packed(unit, end)
        self._dispatcher.appended(queue, end)

    def _of_one_step(self, copies: Sequence[RecordCopy]) -> Sequence[RecordCopy]:
        room = self.config.commit_log_file_size_bytes - MIN_BLANK_BYTES
        queues: set[ConsumeQueue] = set()
        for count, copy in enumerate(copies):
            queues.add(copy[0])
            if len(queues) > self._most_queues:
                return copies[:count]
            size = copy_size(copy)
            if size > room:
                if not count:
                    raise MessageIllegalError(f"copy of {size} bytes: fits into no file")
                return copies[:count]
            room -= size
        return copies

    def _batch_sizes(
        self, queue: ConsumeQueue, entries: Sequence[BatchEntry], sys_flag: int, hosts_length: int
    ) -> list[int]:
        if sys_flag & TRANSACTION_MASK:
            raise MessageIllegalError(f"batch for {queue.topic}: a batch cannot be part of a transaction")
        fixed = _FIXED_BYTES + hosts_length + len(queue.topic_field)
        sizes = []
        for _, body, properties, _ in entries:
            size = fixed + len(body) + len(properties)
            self._check_size(size, len(body), len(properties))
            sizes.append(size)
        if sum(sizes) + MIN_BLANK_BYTES > self.config.commit_log_file_size_bytes:
            raise MessageIllegalError(
                f"batch of {sum(sizes)} bytes: more than a commit log file"
                f" ({self.config.commit_log_file_size_bytes}, commit_log_file_size_bytes) holds"
            )
        return sizes

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
