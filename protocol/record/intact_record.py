"""The quick look at stored records: what nearly all pass, so that only the others are searched for damage.

A third as dear as ``record.find_damage``, and half as ``record.check_record``, which go from part to part to tell what
is wrong.
"""

from collections.abc import Sequence
from functools import partial
from mmap import mmap
from struct import Struct
from typing import Final
from zlib import crc32

from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES, PropertyName
from triomq.protocol.record.record import HEAD, MAX_TOPIC_BYTES, MESSAGE_MAGIC, RecordCheck, RecordKind, tags_code_of

LEAST_RECORD_BYTES: Final = 91 + 1
"""Of a record with no body, no properties and a topic of one character."""

_HOST_V6_BITS: Final = 0x30
_HEAD_SIZE: Final = HEAD.size
_CRC_MASK: Final = 0x7FFF_FFFF
_MOST_BESIDE_BODY: Final = _HEAD_SIZE + 1 + MAX_TOPIC_BYTES + 2 + MAX_PROPERTIES_BYTES
_MOST_COPIED: Final = 2048  # of a body: more of it is dearer to copy than to look at through a view
_MOST_RUN_BYTES: Final = 64 * 1024
_MOST_TOPICS: Final = 4096
_MESSAGE: Final = RecordKind.MESSAGE
_TAGS: Final = PropertyName.TAGS.encode()
_unpack_checked = Struct(">iiii12xqi44xi").unpack_from  # of HEAD: size, magic, CRC, queue, offset, flags, body length
_unpack_walked = Struct(">iiii4xqqi16xq12xqi").unpack_from  # of HEAD: what a RecordCheck names, CRC, length of the body
_new_check: Final = partial(tuple.__new__, RecordCheck)  # half the time of a NamedTuple's own constructor


def are_intact(
    buffer: mmap | bytes,
    positions: Sequence[int],
    sizes: Sequence[int],
    offsets: Sequence[int],
    topic_field: bytes,
    queue_id: int,
) -> bool:
    """Whether records are certainly whole and what their units say; ``False`` tells nothing: ``find_damage`` knows.

    Never fails, and never says ``True`` where ``find_damage`` finds something.

    Args:
        buffer: a commit log file: of a mapping and of bytes, unlike of a view, a slice is a copy, which is cheaper.
        positions: where in it each record begins.
        sizes: of the records, none shorter than a head; all of them lie within ``buffer``.
        offsets: what each must name as its physical offset.
        topic_field: length byte and topic of the queue.
        queue_id: of the queue.
    """
    topic_length = len(topic_field)
    least_rest = _HEAD_SIZE + topic_length + 2  # of a record without its body and properties
    for position, size, offset in zip(positions, sizes, offsets, strict=True):
        found_size, magic, crc, found_id, found_offset, sys_flag, body_length = _unpack_checked(buffer, position)
        body_at = position + _HEAD_SIZE
        tail_at = body_at + body_length
        length_at = tail_at + topic_length
        if (
            found_size != size
            or found_offset != offset
            or found_id != queue_id
            or magic != MESSAGE_MAGIC
            or sys_flag & _HOST_V6_BITS
            or not 0 < body_length <= size - least_rest <= body_length + MAX_PROPERTIES_BYTES
            or buffer[tail_at:length_at] != topic_field
            or buffer[length_at] << 8 | buffer[length_at + 1] != size - least_rest - body_length
            or crc32(buffer[body_at:tail_at]) & _CRC_MASK != crc
        ):
            return False
    return True


class IntactWalk:
    """Goes over the records of a commit log that follow one another, some at a time, as long as all is plain.

    For who reads millions of records, lists are cheaper than a generator that is asked for each of them.
    """

    __slots__ = ("_check_crc", "_topics")

    def __init__(self, *, check_crc: bool) -> None:
        """Compare bodies with their CRC as ``record.check_record`` does, or do not."""
        self._check_crc = check_crc
        self._topics: dict[bytes, str] = {}  # those found good: most records have one of few

    def run(self, buffer: mmap | bytes, position: int, stop: int, start: int) -> list[RecordCheck]:
        """Return what ``record.check_record`` says of the next records: of none if the first needs a closer look.

        Never fails; the list is bounded.

        Args:
            buffer: a commit log file.
            position: where in it the first record begins.
            stop: no record that begins there or behind it is looked at.
            start: physical offset of the begin of the file; each record must name its own place.
        """
        found: list[RecordCheck] = []
        add, find_topic, check_crc = found.append, self._topics.get, self._check_crc
        view = memoryview(buffer)
        limit = len(buffer)
        stop = min(stop, limit - LEAST_RECORD_BYTES + 1, position + _MOST_RUN_BYTES)
        while position < stop:
            size, magic, crc, queue_id, queue_offset, offset, sys_flag, store_timestamp, prepared, body_length = (
                _unpack_walked(buffer, position)
            )
            end = position + size
            if (
                magic != MESSAGE_MAGIC
                or offset != start + position
                or sys_flag & _HOST_V6_BITS
                or body_length <= 0
                or not LEAST_RECORD_BYTES
                <= size - body_length
                <= _MOST_BESIDE_BODY  # a flipped bit of the size makes nobody copy a whole file
                or end > limit
            ):
                break
            body_at = position + _HEAD_SIZE
            tail_at = body_at + body_length
            tail = buffer[tail_at:end]
            length_at = tail[0] + 1
            name = tail[1:length_at]
            properties = tail[length_at + 2 :]
            topic = find_topic(name) or self._good_topic(name)
            length = end - tail_at - length_at - 2
            if (
                not topic
                or not 0 <= length <= MAX_PROPERTIES_BYTES
                or tail[length_at] << 8 | tail[length_at + 1] != length
                or (check_crc and 0 in properties)
            ):
                break
            if check_crc:
                body = (buffer if body_length <= _MOST_COPIED else view)[body_at:tail_at]
                if crc32(body) & _CRC_MASK != crc:
                    break
            code = tags_code_of(properties) if _TAGS in properties else 0
            add(
                _new_check(
                    (
                        _MESSAGE,
                        size,
                        "",
                        queue_id,
                        queue_offset,
                        offset,
                        sys_flag,
                        store_timestamp,
                        prepared,
                        code,
                        topic,
                        properties,
                    )
                )
            )
            position = end
        return found

    def _good_topic(self, name: bytes) -> str:
        """Return the topic of that name; "" if it needs a closer look."""
        if not 0 < len(name) <= MAX_TOPIC_BYTES or (self._check_crc and 0 in name):
            return ""
        if len(self._topics) >= _MOST_TOPICS:
            self._topics.clear()
        topic = self._topics[name] = name.decode("utf-8", "replace")
        return topic
