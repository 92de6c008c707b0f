"""Fast checks that nearly all stored records pass, so that only the others are searched for damage.

They cost a third of ``record.find_damage`` and half of ``record.check_record``, which name the damage.
"""

from collections.abc import Sequence
from functools import partial
from mmap import mmap
from typing import Final
from zlib import crc32

from triomq.protocol.record.layout import (
    CRC_MASK,
    HEAD,
    HOST_V6_BITS,
    MAX_TOPIC_BYTES,
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    head_struct,
    record_size,
)
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES, PropertyName
from triomq.protocol.record.record import RecordCheck, RecordKind, tags_code_of

_HEAD_SIZE: Final = HEAD.size
_MAX_WITHOUT_BODY: Final = record_size(0, MAX_TOPIC_BYTES, MAX_PROPERTIES_BYTES)
_MAX_COPIED_BODY: Final = 2048  # a longer one costs more to copy than to read through a view
_MAX_RUN_BYTES: Final = 64 * 1024
_MAX_TOPICS: Final = 4096
_MESSAGE: Final = RecordKind.MESSAGE
_TAGS: Final = PropertyName.TAGS.encode()
_unpack_checked = head_struct(
    "size", "magic", "body_crc", "queue_id", "physical_offset", "sys_flag", "body_length"
).unpack_from
_unpack_walked = head_struct(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag", "store_timestamp",
    "prepared_transaction_offset", "body_length",
).unpack_from  # fmt: skip
_new_check: Final = partial(tuple.__new__, RecordCheck)  # half the time of a NamedTuple's own constructor


def are_intact(
    buffer: mmap | bytes,
    positions: Sequence[int],
    sizes: Sequence[int],
    offsets: Sequence[int],
    topic_field: bytes,
    queue_id: int,
) -> bool:
    """Whether all records are definitely intact and match their units; if not, ask ``find_damage``.

    Never fails, and never returns ``True`` where ``find_damage`` finds something.

    Args:
        buffer: a commit log file; its slices are copies, which cost less than views.
        positions: start of each record in the file.
        sizes: of the records, none shorter than a head; all of them lie within ``buffer``.
        offsets: the physical offset that each record must contain.
        topic_field: length byte and topic of the queue.
        queue_id: of the queue.
    """
    topic_length = len(topic_field)
    least_rest = _HEAD_SIZE + topic_length + 2  # without body and properties
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
            or sys_flag & HOST_V6_BITS
            or not 0 < body_length <= size - least_rest <= body_length + MAX_PROPERTIES_BYTES
            or buffer[tail_at:length_at] != topic_field
            or buffer[length_at] << 8 | buffer[length_at + 1] != size - least_rest - body_length
            or crc32(buffer[body_at:tail_at]) & CRC_MASK != crc
        ):
            return False
    return True


class IntactWalk:
    """Walks over consecutive records of a commit log, many at a time, while all of them are intact.

    Lists cost less than a generator when millions of records are read.
    """

    __slots__ = ("_check_crc", "_topics")

    def __init__(self, *, check_crc: bool) -> None:
        """Create a walk; ``check_crc`` as for ``record.check_record``."""
        self._check_crc = check_crc
        self._topics: dict[bytes, str] = {}  # valid ones: most records share a few

    def run(self, buffer: mmap | bytes, position: int, stop: int, start: int) -> list[RecordCheck]:
        """Return the result of ``record.check_record`` for the next records; empty if the first needs a closer look.

        Never fails; the list is bounded.

        Args:
            buffer: a commit log file.
            position: start of the first record in the file.
            stop: only records that begin before it are read.
            start: physical offset of the file's start; each record must contain its own physical offset.
        """
        found: list[RecordCheck] = []
        add, find_topic, check_crc = found.append, self._topics.get, self._check_crc
        view = memoryview(buffer)
        limit = len(buffer)
        stop = min(stop, limit - MIN_RECORD_BYTES + 1, position + _MAX_RUN_BYTES)
        while position < stop:
            size, magic, crc, queue_id, queue_offset, offset, sys_flag, store_timestamp, prepared, body_length = (
                _unpack_walked(buffer, position)
            )
            end = position + size
            if (
                magic != MESSAGE_MAGIC
                or offset != start + position
                or sys_flag & HOST_V6_BITS
                or body_length <= 0
                or not MIN_RECORD_BYTES <= size - body_length <= _MAX_WITHOUT_BODY  # a wrong size must not copy a file
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
                body = (buffer if body_length <= _MAX_COPIED_BODY else view)[body_at:tail_at]
                if crc32(body) & CRC_MASK != crc:
                    break
            code = tags_code_of(properties) if _TAGS in properties else 0
            add(_new_check((
                _MESSAGE, size, "", queue_id, queue_offset, offset, sys_flag, store_timestamp, prepared,
                code, topic, properties,
            )))  # fmt: skip
            position = end
        return found

    def _good_topic(self, name: bytes) -> str:
        """Return the topic as text; "" if it needs a closer look."""
        if not 0 < len(name) <= MAX_TOPIC_BYTES or (self._check_crc and 0 in name):
            return ""
        if len(self._topics) >= _MAX_TOPICS:
            self._topics.clear()
        topic = self._topics[name] = name.decode("utf-8", "replace")
        return topic
