"""Many records stored again at once, in other queues: how they are read, and how their copies are packed.

A delayed message costs a broker what these two loops cost, so they call nothing for a usual record.

Source: store.md 2.1, 3.1, 8.4.
"""

from collections.abc import Callable, Iterable, Sequence
from mmap import mmap
from typing import Final, SupportsIndex, TypeAlias, TypeVar

from triomq.protocol.record.consume_queue_unit import UNIT
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES, PropertyName, get_property
from triomq.protocol.record.record import MESSAGE_MAGIC
from triomq.protocol.record.record_copy import (
    HOST_BITS,
    IPV6_COPY_HEAD,
    LEAST_TAIL_BYTES,
    PLAIN_BORN_BYTES,
    PLAIN_COPY_HEAD,
    PLAIN_HEAD,
    PLAIN_REST_AT,
    RecordHead,
)
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue

_T = TypeVar("_T")

RecordCopy: TypeAlias = tuple[ConsumeQueue, SupportsIndex, RecordHead, bytes, bytes]
"""Queue and tags code of a message that is stored again; then its ``RecordSource``, perhaps with other properties."""

Look: TypeAlias = Callable[[int, int], RecordCopy | None]
"""Returns the copy of the record at a physical offset, of a size; ``None`` if there can be none."""

_TAGS: Final = PropertyName.TAGS.encode()
_REAL_TOPIC: Final = PropertyName.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = PropertyName.REAL_QUEUE_ID.encode()
_TAGS_NEEDLE: Final = _TAGS + b"\x01"
_END: Final = b"\x02"
_SEPARATOR: Final = 2
_REAL_PLACE: Final = b"\x02" + _REAL_TOPIC + b"\x01"
_PROPERTIES_AT: Final = 2  # in their field
_SYS_FLAG_AT: Final = 3  # its low byte, in the born bytes of a head
_LEAST_SIZE: Final = PLAIN_HEAD.size + LEAST_TAIL_BYTES
_LONGEST_FIELD: Final = _PROPERTIES_AT + MAX_PROPERTIES_BYTES
_MOST_KNOWN: Final = 4096
_LONGEST_KNOWN: Final = 512  # bytes: a topic has at most 127 of them, and most tags fewer
_COPY_HEAD_BYTES: Final = PLAIN_COPY_HEAD.size - PLAIN_BORN_BYTES
_unpack_head = PLAIN_HEAD.unpack_from
_pack_plain_head = PLAIN_COPY_HEAD.pack
_pack_ipv6_head = IPV6_COPY_HEAD.pack
_pack_unit = UNIT.pack


class CopyReader:
    """Reads waiting records as copies for the queues they were sent to.

    Many messages have the same tags, and the same end of their properties, which names the queue.  What such a text
    means is asked for once; so are records that are not plain.
    """

    __slots__ = ("_codes", "_look", "_queues")

    def __init__(self, look: Look) -> None:
        """Describe the reader; ``look`` is asked for what it does not know."""
        self._look = look
        self._codes: dict[bytes, SupportsIndex] = {}  # by tags
        self._queues: dict[bytes, ConsumeQueue] = {}  # by what follows the name REAL_TOPIC

    def read(self, log: CommitLog, units: Iterable[tuple[int, int, int]]) -> list[RecordCopy | None]:
        """Return a copy for each unit, of physical offset, size and a number that is not looked at.

        ``None`` stands where ``look`` says so.
        """
        copies: list[RecordCopy | None] = []
        add = copies.append
        code_of, queue_of = self._codes.get, self._queues.get
        content: mmap | bytes = b""
        view = memoryview(content)
        start = limit = 0
        for physical_offset, size, _ in units:
            if not start <= physical_offset < limit:
                file = log.files.file_at(physical_offset)
                if file is not None:
                    content, view, start, limit = file.map, file.view, file.start, min(file.end, log.max_offset)
            at = physical_offset - start
            if at >= 0 and _LEAST_SIZE <= size <= limit - physical_offset:
                head = _unpack_head(view, at)
                total, magic, _, _, born, _, body_length = head
                if (
                    total == size
                    and magic == MESSAGE_MAGIC
                    and not born[_SYS_FLAG_AT] & HOST_BITS
                    and 0 <= body_length <= size - _LEAST_SIZE
                ):
                    topic_at = at + PLAIN_HEAD.size + body_length
                    field = content[topic_at + 1 + content[topic_at] : at + size]
                    own, is_placed, place = field.rpartition(_REAL_PLACE)
                    if is_placed and (field[0] << 8 | field[1]) + _PROPERTIES_AT == len(field) <= _LONGEST_FIELD:
                        before, is_tagged, behind = own.rpartition(_TAGS_NEEDLE)
                        if not is_tagged:
                            tags_code: SupportsIndex | None = 0
                        elif before[-1] == _SEPARATOR or len(before) == _PROPERTIES_AT:
                            tags_code = code_of(behind.partition(_END)[0])
                        else:
                            tags_code = None
                        queue = queue_of(place)
                        if queue is not None and tags_code is not None:
                            add((queue, tags_code, head, content[at + PLAIN_REST_AT : topic_at], field))
                            continue
            add(self._read_unknown(physical_offset, size))
        return copies

    def _read_unknown(self, physical_offset: int, size: int) -> RecordCopy | None:
        copy = self._look(physical_offset, size)
        if copy is not None:
            queue, tags_code, _, _, field = copy
            tags = get_property(field[_PROPERTIES_AT:], _TAGS)
            if tags is not None:
                _remember(self._codes, tags, tags_code)
            _, separator, place = field.rpartition(_REAL_PLACE)
            names = {name: get_property(separator + place, name) for name in (_TAGS, _REAL_TOPIC, _REAL_QUEUE_ID)}
            # What stands before this end must give the tags, and must not be able to give the queue.
            if [name for name, value in names.items() if value is None] == [_TAGS]:
                _remember(self._queues, place, queue)
        return copy


def _remember(known: dict[bytes, _T], text: bytes, meaning: _T) -> None:
    if len(text) <= _LONGEST_KNOWN:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[text] = meaning


class PackedCopies:
    """The bytes of copies that follow one another in the log, from one physical offset on.

    Attributes:
        size_bytes: of all records.
        units: of each queue, packed.
        parts: of the records, to be joined.
    """

    __slots__ = ("parts", "size_bytes", "units")

    def __init__(self, copies: Sequence[RecordCopy], physical_offset: int, store_timestamp: int) -> None:
        """Pack copies; their queue offsets follow those that the queues have.

        Raises:
            struct.error: a number does not fit its field.
        """
        self.parts: list[bytes] = []
        self.units: dict[ConsumeQueue, list[bytes]] = {}
        parts, units_of, at = self.parts, self.units, physical_offset
        for queue, tags_code, (_, _, body_crc, flag, born, _, _), rest, properties in copies:
            topic_field = queue.topic_field
            units = units_of.get(queue)
            if units is None:
                units = units_of[queue] = []
            pack_head = _pack_plain_head if len(born) == PLAIN_BORN_BYTES else _pack_ipv6_head
            size = _COPY_HEAD_BYTES + len(born) + len(rest) + len(topic_field) + len(properties)
            head = pack_head(
                size,
                MESSAGE_MAGIC,
                body_crc,
                queue.queue_id,
                flag,
                queue.next_offset + len(units),
                at,
                born,
                store_timestamp,
            )
            parts += (head, rest, topic_field, properties)
            units.append(_pack_unit(at, size, tags_code))
            at += size
        self.size_bytes = at - physical_offset


def copy_size(copy: RecordCopy) -> int:
    """Return how many bytes a copy has in the log."""
    queue, _, head, rest, properties = copy
    return _COPY_HEAD_BYTES + len(head[4]) + len(rest) + len(queue.topic_field) + len(properties)
