"""Encode, decode and check message records, whose layout is declared in ``layout``.

Lengths are checked against the bytes given before anything is copied.

Source: MessageDecoder.java, CommitLog.java; store.md 2.1-2.5, wire.md 10.1.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from triomq.protocol.codes import TRANSACTION_MASK, MessageSysFlag
from triomq.protocol.errors import ProtocolError
from triomq.protocol.java import tags_code
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.record.layout import (
    BLANK_HEAD,
    BLANK_MAGIC,
    CRC_MASK,
    HEAD,
    HEADS,
    HOST_BITS_SHIFT,
    HOST_V6_BITS,
    MAX_TOPIC_BYTES,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    Head,
    head_for,
    head_struct,
    record_size,
)
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName, get_property

if TYPE_CHECKING:
    from mmap import mmap

ReadableBuffer: TypeAlias = "bytes | bytearray | memoryview | mmap"

_TAGS: Final = PropertyName.TAGS.encode()
_HEAD_SIZE: Final = HEAD.size
_PORT_BYTES: Final = 4
_ROLLBACK: Final = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_MULTI_DISPATCH: Final = b"INNER_MULTI_DISPATCH\x01"
_SECTOR: Final = 512  # bytes that a disk writes completely or not at all
_unpack_head = HEAD.unpack_from
_unpack_sizes = head_struct("size", "queue_offset", "sys_flag", "body_length").unpack_from
_PROPERTIES_LENGTH_BYTES: Final = PROPERTIES_LENGTH.size
_BODY_LENGTH: Final = struct.Struct(">i")  # the last field of a head


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32 of a stored body as records keep it: without the top bit."""
    return zlib.crc32(body) & CRC_MASK


def encode_record(  # noqa: PLR0913  # the fields of a record
    *,
    queue_id: int = 0,
    queue_offset: int = 0,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    body: bytes,
    topic: bytes,
    properties: bytes = b"",
    flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Return one record; the host bits of ``sys_flag`` are set from the hosts' lengths.

    Args:
        queue_id, queue_offset, physical_offset, sys_flag, born_timestamp, store_timestamp, flag, reconsume_times,
            prepared_transaction_offset: fields of the head.
        born_host, store_host: 8 or 20 bytes, see ``encode_host``.
        body: as stored, possibly compressed.
        topic: 1 to 127 bytes.
        properties: at most 32767 bytes.

    Raises:
        ProtocolError: a number or a length does not fit its field.
    """
    if not 0 < len(topic) <= MAX_TOPIC_BYTES:
        raise ProtocolError(f"record: topic of {len(topic)} bytes, must be 1 to {MAX_TOPIC_BYTES}")
    head, sys_flag = head_for(sys_flag, born_host, store_host)
    try:
        packed_head = head.pack(
            record_size(len(body), len(topic), len(properties), head.size), MESSAGE_MAGIC, body_crc(body),
            queue_id, flag, queue_offset, physical_offset, sys_flag,
            born_timestamp, born_host, store_timestamp, store_host,
            reconsume_times, prepared_transaction_offset, len(body),
        )  # fmt: skip
        properties_length = PROPERTIES_LENGTH.pack(len(properties))
    except struct.error as exc:
        raise ProtocolError(f"record: a number does not fit its field: {exc}") from exc
    return b"".join((packed_head, body, bytes((len(topic),)), topic, properties_length, properties))


def decode_record(buffer: ReadableBuffer, position: int = 0) -> MessageExt:
    """Return the message at ``position``; its CRC is not checked, as Java's clients do not check it either.

    Raises:
        ProtocolError: no record, a truncated one, or one whose lengths contradict each other.
    """
    head, body_at, tail_at, _ = _locate(buffer, position, len(buffer))
    # bytes() is free for bytes; a slice of a memoryview would keep the whole buffer alive
    return MessageExt(head, bytes(buffer[body_at:tail_at]), bytes(buffer[tail_at : position + head[0]]))


def tags_code_of(properties: bytes) -> int:
    """Return the hash of a message's tags that its consume queue unit holds; 0 without tags."""
    tags = get_property(properties, _TAGS)
    return tags_code(tags.decode("utf-8", "replace")) if tags else 0


def iter_properties(buffer: memoryview) -> Iterator[tuple[int, int, QueueOffset, bytes]]:
    """Yield start, end, queue offset and encoded properties of concatenated intact records; nothing else is decoded."""
    at, size = 0, len(buffer)
    while at < size:
        record_size, queue_offset, sys_flag, body_length = _unpack_sizes(buffer, at)
        topic_at = at + _HEAD_SIZE + body_length
        if sys_flag & HOST_V6_BITS:
            head = HEADS[(sys_flag & HOST_V6_BITS) >> HOST_BITS_SHIFT].size
            topic_at = at + head + _BODY_LENGTH.unpack_from(buffer, at + head - _BODY_LENGTH.size)[0]
        end = at + record_size
        yield at, end, queue_offset, bytes(buffer[topic_at + 1 + buffer[topic_at] + _PROPERTIES_LENGTH_BYTES : end])
        at = end


def decode_records(buffer: ReadableBuffer) -> list[MessageExt]:
    """Return the messages of concatenated records; an empty buffer has none.

    Raises:
        ProtocolError: as for ``decode_record``.
    """
    data = bytes(buffer)  # free for bytes; slices of it are copies, which keep no buffer alive
    messages = []
    position, limit = 0, len(data)
    while position < limit:
        head, body_at, tail_at, _ = _locate(data, position, limit)
        end = position + head[0]
        messages.append(MessageExt(head, data[body_at:tail_at], data[tail_at:end]))
        position = end
    return messages


class RecordKind(IntEnum):
    """What a position of the commit log holds."""

    MESSAGE = 0
    BLANK = 1  # the file ends here; the next record starts in the next file
    END = 2  # neither magic number: the log ends here
    BAD = 3  # a record's magic number, but damaged


class RecordCheck(NamedTuple):
    """What a scan of the commit log needs to know about one position.

    Only ``kind``, ``size`` and ``reason`` are set unless ``kind`` is ``MESSAGE``.
    """

    kind: RecordKind
    #: Bytes to the next record (``BLANK``: to the end of the file).  0 for ``END``, and for ``BAD`` unless all lengths
    #: of the record agree.
    size: int
    reason: str = ""  # why it is END or BAD
    queue_id: int = 0
    queue_offset: QueueOffset = QueueOffset(0)
    physical_offset: PhysicalOffset = PhysicalOffset(-1)  # the record's own field; the caller compares it
    sys_flag: int = 0
    store_timestamp: int = 0
    prepared_transaction_offset: int = 0
    tags_code: int = 0
    topic: str = ""  # not checked against the rules for topic names
    properties: bytes = b""


def check_record(buffer: ReadableBuffer, position: int, limit: int, *, check_crc: bool) -> RecordCheck:
    """Examine ``position`` of a commit log file without decoding a message; never fails.

    Args:
        buffer: one file.
        position: in the file.
        limit: end of the bytes that may be read, at most ``len(buffer)``.
        check_crc: also verify the body's CRC, and detect sectors after it that never reached the disk.
    """
    left = limit - position
    if left < BLANK_HEAD.size:
        return RecordCheck(RecordKind.END, 0, f"{left} bytes left")
    size, magic = BLANK_HEAD.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        if BLANK_HEAD.size <= size <= left:
            return RecordCheck(RecordKind.BLANK, size)
        return RecordCheck(RecordKind.BAD, 0, f"blank record of {size} bytes where {left} are left")
    if magic != MESSAGE_MAGIC:
        return RecordCheck(RecordKind.END, 0, f"no record: magic {magic & 0xFFFF_FFFF:#010x}")
    try:
        head, body_at, tail_at, properties_at = _locate(buffer, position, limit)
    except ProtocolError as exc:
        return RecordCheck(RecordKind.BAD, 0, str(exc))
    properties = bytes(buffer[properties_at : position + size])
    topic = bytes(buffer[tail_at + 1 : properties_at - 2])
    reason = ""
    if check_crc:
        reason = _body_damage(head, memoryview(buffer)[body_at:tail_at])
        if not reason and (_has_lost_sector(properties, properties_at) or _has_lost_sector(topic, tail_at + 1)):
            reason = "a part of its topic or properties is missing"
    if reason:
        return RecordCheck(RecordKind.BAD, size, f"record at {position}: {reason}")
    return RecordCheck(
        RecordKind.MESSAGE, size, "", head[3], head[5], head[6], head[7], head[10], head[13],
        tags_code_of(properties), str(topic, "utf-8", "replace"), properties,
    )  # fmt: skip


def find_damage(buffer: ReadableBuffer, position: int, size: int, topic: bytes, queue_id: int) -> str:
    """Return the damage of a record whose size, magic and offset are right; "" if none is visible.

    Args:
        buffer: a commit log file.
        position: start of the record in the file.
        size: of the record.
        topic, queue_id: the queue it must belong to, unless RocketMQ's multi-dispatch stored it.
    """
    try:
        head, body_at, tail_at, properties_at = _locate(buffer, position, position + size)
    except ProtocolError as exc:
        return str(exc)
    if reason := _body_damage(head, memoryview(buffer)[body_at:tail_at]):
        return reason
    found = bytes(buffer[tail_at + 1 : properties_at - 2])
    is_elsewhere = (found, head[3]) != (topic, queue_id)
    if is_elsewhere and _MULTI_DISPATCH not in bytes(buffer[properties_at : position + size]):
        return f"a message of topic {found.decode('utf-8', 'replace')} queue {head[3]}"
    return ""


def _body_damage(head: Head, body: bytes | memoryview) -> str:
    """Return the damage that a record's body, or its absence, reveals; "" without damage."""
    if len(body):
        return "" if head[2] == body_crc(body) else "the body does not match its CRC"
    # A body length of zero may also be what a power cut left of a sector; then the store host is zero too.
    has_host = any(head[11][-_PORT_BYTES:]) or head[7] & TRANSACTION_MASK == _ROLLBACK  # fillers have no host
    return "" if head[10] and has_host else "a part of its head is missing"


def _has_lost_sector(text: bytes, position: int) -> bool:
    """Whether a sector of a text that begins at ``position`` of a file is all zero: it never reached the disk.

    No checksum covers topic and properties; a power cut can leave such a hole in them.
    """
    if 0 not in text:
        return False
    end = position + len(text)
    borders = [position, *range(position - position % _SECTOR + _SECTOR, end, _SECTOR), end]
    return any(not any(text[start - position : stop - position]) for start, stop in pairwise(borders) if start < stop)


def _locate(buffer: ReadableBuffer, position: int, limit: int) -> tuple[Head, int, int, int]:
    """Return the head and the positions of body, topic length and properties.

    Raises:
        ProtocolError: the record does not end before ``limit``, or its lengths contradict each other.
    """
    if not 0 <= position <= limit - _HEAD_SIZE:
        raise ProtocolError(f"record at {position}: {limit - position} bytes are too few for one")
    head = _unpack_head(buffer, position)
    body_at = position + _HEAD_SIZE
    if host_bits := head[7] & HOST_V6_BITS:
        other = HEADS[host_bits >> HOST_BITS_SHIFT]
        body_at = position + other.size
        if body_at > limit:
            raise ProtocolError(f"record at {position}: {limit - position} bytes are too few for IPv6 hosts")
        head = other.unpack_from(buffer, position)
    size = head[0]
    body_length = head[14]
    tail_at = body_at + body_length
    end = position + size
    if head[1] != MESSAGE_MAGIC or body_length < 0 or end > limit or tail_at + 4 > end:
        if head[1] != MESSAGE_MAGIC:
            raise ProtocolError(f"record at {position}: magic {head[1] & 0xFFFF_FFFF:#010x}")
        raise ProtocolError(
            f"record at {position}: size {size}, body {body_length} bytes, but {limit - position} bytes are there"
        )
    topic_length = buffer[tail_at]
    properties_at = tail_at + topic_length + 3
    if not 0 < topic_length <= MAX_TOPIC_BYTES or properties_at > end:
        raise ProtocolError(f"record at {position}: topic of {topic_length} bytes")
    high = buffer[properties_at - 2]
    if high > 127 or properties_at + (high << 8 | buffer[properties_at - 1]) != end:
        raise ProtocolError(f"record at {position}: its parts do not add up to {size} bytes")
    return head, body_at, tail_at, properties_at
