"""The quick look at stored records: what nearly all pass, so that only the others are searched for damage.

A third as dear as ``record.find_damage``, and half as ``record.check_record``, which go from part to part to tell what
is wrong.
"""

from collections.abc import Iterator, Sequence
from mmap import mmap
from struct import Struct
from typing import Final
from zlib import crc32

from triomq.protocol.properties import MAX_PROPERTIES_BYTES, PropertyName
from triomq.protocol.record import HEAD, MAX_TOPIC_BYTES, MESSAGE_MAGIC, RecordCheck, RecordKind, tags_code_of

LEAST_RECORD_BYTES: Final = 91 + 1
"""Of a record with no body, no properties and a topic of one character."""

_HOST_V6_BITS: Final = 0x30
_HEAD_SIZE: Final = HEAD.size
_CRC_MASK: Final = 0x7FFF_FFFF
_LEAST_TAIL: Final = 1 + 1 + 2  # of a record: topic with its length, length of the properties
_MOST_TAIL: Final = 1 + MAX_TOPIC_BYTES + 2 + MAX_PROPERTIES_BYTES
_MESSAGE: Final = RecordKind.MESSAGE
_TAGS: Final = PropertyName.TAGS.encode()
_unpack_checked = Struct(">iiii12xqi44xi").unpack_from  # of HEAD: size, magic, CRC, queue, offset, flags, body length
_unpack_walked = Struct(">iiii4xqqi16xq12xqi").unpack_from  # of HEAD: what a RecordCheck names, CRC, length of the body
_new_tuple = tuple.__new__  # half the time of a NamedTuple's own constructor


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


def walk_intact(
    buffer: mmap | bytes, position: int, stop: int, start: int, *, check_crc: bool
) -> Iterator[RecordCheck]:
    """Yield what ``record.check_record`` says of the records that follow one another, as long as all is plain.

    It ends before the first record that needs a closer look: ``check_record`` knows.  Never fails.

    Args:
        buffer: a commit log file.
        position: where in it the first record begins.
        stop: no record that begins there or behind it is looked at.
        start: physical offset of the begin of the file; each record must name its own place.
        check_crc: as for ``check_record``.
    """
    limit = len(buffer)
    last = min(stop, limit - LEAST_RECORD_BYTES + 1)
    while position < last:
        size, magic, crc, queue_id, queue_offset, physical_offset, sys_flag, store_timestamp, prepared, body_length = (
            _unpack_walked(buffer, position)
        )
        end = position + size
        tail_at = _HEAD_SIZE + body_length
        if (
            magic != MESSAGE_MAGIC
            or physical_offset != start + position
            or sys_flag & _HOST_V6_BITS
            or body_length < 0
            or not _LEAST_TAIL
            <= size - tail_at
            <= _MOST_TAIL  # a flipped bit of the size makes nobody copy a whole file
            or end > limit
        ):
            return
        record = buffer[position:end]
        properties_at = tail_at + record[tail_at] + 3
        topic = record[tail_at + 1 : properties_at - 2]
        properties = record[properties_at:]
        if (
            not 0 < len(topic) <= MAX_TOPIC_BYTES
            or not 0 <= size - properties_at <= MAX_PROPERTIES_BYTES
            or record[properties_at - 2] << 8 | record[properties_at - 1] != size - properties_at
            or (check_crc and (crc32(record[_HEAD_SIZE:tail_at]) & _CRC_MASK != crc or 0 in properties or 0 in topic))
        ):
            return
        yield _new_tuple(
            RecordCheck,
            (
                _MESSAGE,
                size,
                "",
                queue_id,
                queue_offset,
                physical_offset,
                sys_flag,
                store_timestamp,
                prepared,
                tags_code_of(properties) if _TAGS in properties else 0,
                topic.decode("utf-8", "replace"),
                properties,
            ),
        )
        position = end
