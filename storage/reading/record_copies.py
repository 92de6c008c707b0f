"""Read waiting messages as entries for their destination queues.

This loop and the append are the cost of a delayed message, so it calls no function for a usual record.

Source: store.md 2.1, 3.1, 8.4.
"""

from collections.abc import Callable, Iterable
from mmap import mmap
from typing import Final, TypeAlias, TypeVar

from triomq.protocol.record.layout import HEAD, HOST_V6_BITS, MESSAGE_MAGIC, PROPERTIES_LENGTH, record_size
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES, PropertyName, get_property
from triomq.storage.append import Entry, copy_of
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue

_T = TypeVar("_T")

Copies: TypeAlias = tuple[list[Entry | None], list[int]]
"""The entry for each message, ``None`` if it has no destination; the store time of each waiting record, ms."""

Find: TypeAlias = Callable[[int, int], tuple[MessageExt, ConsumeQueue, int] | None]
"""Returns the message of a physical offset and size, its queue and its tags code; ``None`` without a destination."""

_TAGS: Final = PropertyName.TAGS.encode()
_REAL_TOPIC: Final = PropertyName.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = PropertyName.REAL_QUEUE_ID.encode()
_TAGS_NEEDLE: Final = _TAGS + b"\x01"
_END: Final = b"\x02"
_SEPARATOR: Final = 2
_REAL_PLACE: Final = b"\x02" + _REAL_TOPIC + b"\x01"
_PROPERTIES_AT: Final = PROPERTIES_LENGTH.size  # in their field
_HEAD_BYTES: Final = HEAD.size
_MIN_SIZE: Final = record_size(0, 0, 0)
_MAX_FIELD_BYTES: Final = _PROPERTIES_AT + MAX_PROPERTIES_BYTES
_MAX_KNOWN: Final = 4096
_MAX_KNOWN_BYTES: Final = 512  # a topic has at most 127, and most tags fewer
_unpack_head = HEAD.unpack_from
_new = tuple.__new__


class CopyReader:
    """Reads waiting records as entries for their destination queues.

    Many messages have the same tags and the same end of their properties, which names the queue.  The reader looks up
    each of these texts once, and every record with IPv6 hosts.
    """

    def __init__(self, find: Find) -> None:
        """Set up the reader; ``find`` looks up records with new texts."""
        self._find = find
        self._codes: dict[bytes, int] = {}  # by tags
        self._queues: dict[bytes, ConsumeQueue] = {}  # by the text after the name REAL_TOPIC

    def read(self, log: CommitLog, units: Iterable[tuple[int, int, int]]) -> Copies:
        """Return an entry for each unit: physical offset, size, and an ignored number."""
        entries: list[Entry | None] = []
        times: list[int] = []
        add, add_time = entries.append, times.append
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
            if at >= 0 and _MIN_SIZE <= size <= limit - physical_offset:
                (
                    total, magic, crc, _, flag, _, _, sys_flag,
                    born, born_host, stored, store_host, times_, half, length,
                ) = _unpack_head(view, at)  # fmt: skip
                if (
                    total == size
                    and magic == MESSAGE_MAGIC
                    and not sys_flag & HOST_V6_BITS
                    and 0 <= length <= size - _MIN_SIZE
                ):
                    body_at = at + _HEAD_BYTES
                    topic_at = body_at + length
                    field = content[topic_at + 1 + content[topic_at] : at + size]
                    own, is_placed, place = field.rpartition(_REAL_PLACE)
                    if is_placed and (field[0] << 8 | field[1]) + _PROPERTIES_AT == len(field) <= _MAX_FIELD_BYTES:
                        before, is_tagged, after = own.rpartition(_TAGS_NEEDLE)
                        if not is_tagged:
                            tags_code: int | None = 0
                        elif before[-1] == _SEPARATOR or len(before) == _PROPERTIES_AT:
                            tags_code = code_of(after.partition(_END)[0])
                        else:
                            tags_code = None
                        queue = queue_of(place)
                        if queue is not None and tags_code is not None:
                            body, properties = content[body_at:topic_at], field[_PROPERTIES_AT:]
                            fields = (queue, body, properties, tags_code, flag, sys_flag, born, born_host, store_host)
                            add(_new(Entry, (*fields, times_, half, crc)))
                            add_time(stored)
                            continue
            found, stored = self._read_unknown(physical_offset, size)
            add(found)
            add_time(stored)
        return entries, times

    def _read_unknown(self, physical_offset: int, size: int) -> tuple[Entry | None, int]:
        found = self._find(physical_offset, size)
        if found is None:
            return None, 0
        message, queue, tags_code = found
        properties = message.encoded_properties
        tags = get_property(properties, _TAGS)
        if tags is not None:
            _remember(self._codes, tags, tags_code)
        _, separator, place = (b"xx" + properties).rpartition(_REAL_PLACE)
        names = {name: get_property(separator + place, name) for name in (_TAGS, _REAL_TOPIC, _REAL_QUEUE_ID)}
        # The text before this end must hold the tags, and must not be able to name the queue.
        if [name for name, value in names.items() if value is None] == [_TAGS]:
            _remember(self._queues, place, queue)
        return copy_of(message, queue, properties)._replace(tags_code=tags_code), message.store_timestamp


def _remember(known: dict[bytes, _T], text: bytes, meaning: _T) -> None:
    if len(text) <= _MAX_KNOWN_BYTES:
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[text] = meaning
