"""The message record: one layout in the commit log and in every body that carries messages.

A record is a head of 88 bytes (12 more for each IPv6 host), the body, the topic with a 1 byte length and the
properties with a 2 byte length.  ``layouts.RECORD`` is the readable form; here the head is one ``Struct``.

Lengths are checked against the bytes that are there before anything is copied.
Source: MessageDecoder.java, CommitLog.java; store.md 2.1-2.5, wire.md 10.1.
"""

import struct
import zlib
from enum import IntEnum
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from triomq.protocol.codes import TRANSACTION_MASK, MessageSysFlag
from triomq.protocol.errors import ProtocolError
from triomq.protocol.host import IPV4_HOST_LENGTH, IPV6_HOST_LENGTH
from triomq.protocol.host import decode_host as decode_host
from triomq.protocol.host import encode_host as encode_host
from triomq.protocol.java import tags_code
from triomq.protocol.record.message import MessageExt, RecordHead
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES, PropertyName, get_property
from triomq.protocol.units import PhysicalOffset, QueueOffset

if TYPE_CHECKING:
    from mmap import mmap

ReadableBuffer: TypeAlias = "bytes | bytearray | memoryview | mmap"
WritableBuffer: TypeAlias = "bytearray | memoryview | mmap"

MESSAGE_MAGIC: Final = -626843481  # 0xDAA320A7
BLANK_MAGIC: Final = -875286124  # 0xCBD43194
CRC_MASK: Final = 0x7FFF_FFFF  # a bodyCRC has no sign bit
MAX_TOPIC_BYTES: Final = 127

_HOST_V6_BITS: Final = int(MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6)
_WITHOUT_HOST_BITS: Final = ~_HOST_V6_BITS
_BOTH_IPV4: Final = 2 * IPV4_HOST_LENGTH
_TAGS: Final = PropertyName.TAGS.encode()


def _head(born_host_length: int, store_host_length: int) -> Struct:
    return Struct(
        ">i"  # totalSize
        "i"  # magic
        "i"  # bodyCRC
        "i"  # queueId
        "i"  # flag
        "q"  # queueOffset
        "q"  # physicalOffset
        "i"  # sysFlag
        "q"  # bornTimestamp
        f"{born_host_length}s"
        "q"  # storeTimestamp
        f"{store_host_length}s"
        "i"  # reconsumeTimes
        "q"  # preparedTransactionOffset
        "i"  # bodyLength
    )


HEAD: Final = _head(IPV4_HOST_LENGTH, IPV4_HOST_LENGTH)
"""Everything before the body when both hosts are IPv4: 88 bytes."""

_HEADS: Final = (  # by the two host bits of sysFlag, which HEAD finds at the same place in all four
    HEAD,
    _head(IPV6_HOST_LENGTH, IPV4_HOST_LENGTH),
    _head(IPV4_HOST_LENGTH, IPV6_HOST_LENGTH),
    _head(IPV6_HOST_LENGTH, IPV6_HOST_LENGTH),
)
_HEAD_SIZE: Final = HEAD.size
_FIXED_SIZE: Final = 75  # every field of fixed length but the hosts
_PORT_BYTES: Final = 4
_ROLLBACK: Final = int(MessageSysFlag.TRANSACTION_ROLLBACK)
BLANK_HEAD: Final = Struct(">ii")
"""Bytes to the end of the file, magic: the begin of a blank record."""

_SIZE_AND_MAGIC: Final = BLANK_HEAD
_MULTI_DISPATCH: Final = b"INNER_MULTI_DISPATCH\x01"
_PROPERTIES_LENGTH: Final = Struct(">H")
_SECTOR: Final = 512  # what a disk writes as a whole or not at all
_TOPIC_LENGTHS: Final = tuple(bytes((length,)) for length in range(MAX_TOPIC_BYTES + 1))
_JOINED_BODY_LIMIT: Final = 2048  # a longer body is copied on its own, not joined with what follows it
_unpack_head = HEAD.unpack_from
_new_tuple = tuple.__new__  # half the time of a NamedTuple's own constructor


def record_size(
    body_length: int,
    topic_length: int,
    properties_length: int,
    born_host_length: int = IPV4_HOST_LENGTH,
    store_host_length: int = IPV4_HOST_LENGTH,
) -> int:
    """Return the length of a whole record, of the lengths of its parts in bytes."""
    return _FIXED_SIZE + born_host_length + store_host_length + body_length + topic_length + properties_length


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32 of a stored body as records keep it: without the top bit."""
    return zlib.crc32(body) & CRC_MASK


def pack_record_into(  # noqa: PLR0913, PLR0917  # the fields of a record
    buffer: WritableBuffer,
    position: int,
    size: int,
    body_crc: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    topic: bytes,
    properties: bytes,
) -> None:
    """Write one record at ``position``; the two host bits of ``sys_flag`` are set from the hosts' lengths.

    The arguments stand in the record's order: passed by position a call costs 0.4 us less than by name.

    Args:
        buffer: must have room for ``size`` bytes at ``position``.
        position: where in the buffer.
        size: what ``record_size`` says.
        body_crc: what ``body_crc`` says of ``body``.
        born_host: 8 or 20 bytes, see ``encode_host``; ``store_host`` likewise.
        body: as stored, perhaps compressed.
        topic: 1 to 127 bytes.
        properties: at most 32767 bytes.

    Raises:
        ProtocolError: a number or a length does not fit its field, or ``size`` is wrong; the buffer may hold
            a part of the record's head then.
    """
    topic_length = len(topic)
    properties_length = len(properties)
    body_length = len(body)
    host_lengths = len(born_host) + len(store_host)
    end = position + size
    if (
        size != _FIXED_SIZE + host_lengths + body_length + topic_length + properties_length
        or not 0 < topic_length <= MAX_TOPIC_BYTES
        or properties_length > MAX_PROPERTIES_BYTES
        or not 0 <= position <= len(buffer) - size
    ):
        raise ProtocolError(
            f"record of {size} bytes at {position} of {len(buffer)}: body {body_length}, topic {topic_length}"
            f" (1 to 127), properties {properties_length} (at most 32767), hosts {host_lengths} bytes"
        )
    if host_lengths == _BOTH_IPV4:
        head, sys_flag = HEAD, sys_flag & _WITHOUT_HOST_BITS
    else:
        head, sys_flag = head_for(sys_flag, born_host, store_host)
    try:
        head.pack_into(
            buffer,
            position,
            size,
            MESSAGE_MAGIC,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        )
    except struct.error as exc:
        raise ProtocolError(f"record: a number does not fit its field: {exc}") from exc
    start = position + head.size
    if body_length > _JOINED_BODY_LIMIT:
        buffer[start : start + body_length] = body
        start += body_length
        body = b""
    buffer[start:end] = b"".join(
        (body, _TOPIC_LENGTHS[topic_length], topic, _PROPERTIES_LENGTH.pack(properties_length), properties)
    )


def encode_record(  # noqa: PLR0913  # the fields of a record
    *,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    body: bytes,
    topic: bytes,
    properties: bytes,
    flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Return one record as new bytes: for answers that carry a record changed from the stored one.

    Raises:
        ProtocolError: as ``pack_record_into``.
    """
    size = record_size(len(body), len(topic), len(properties), len(born_host), len(store_host))
    buffer = bytearray(size)
    pack_record_into(
        buffer,
        0,
        size=size,
        body_crc=body_crc(body),
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body=body,
        topic=topic,
        properties=properties,
    )
    return bytes(buffer)


def decode_record(buffer: ReadableBuffer, position: int = 0) -> MessageExt:
    """Return the message at ``position``; its CRC is not checked, as Java's clients do not check it either.

    Raises:
        ProtocolError: no record, a truncated one, or one whose lengths contradict each other.
    """
    head, body_at, tail_at, _ = _locate(buffer, position, len(buffer))
    # bytes() costs nothing for bytes; a slice of a memoryview would keep the whole buffer alive
    return MessageExt(head, bytes(buffer[body_at:tail_at]), bytes(buffer[tail_at : position + head[0]]))


def tags_code_of(properties: bytes) -> int:
    """Return the hash of a message's tags, which its unit in the consume queue holds; 0 without tags."""
    tags = get_property(properties, _TAGS)
    return tags_code(tags.decode("utf-8", "replace")) if tags else 0


def decode_records(buffer: ReadableBuffer) -> list[MessageExt]:
    """Return the messages of a body of concatenated records; an empty body has none.

    Raises:
        ProtocolError: as ``decode_record``, for any of them.
    """
    data = bytes(buffer)  # costs nothing for bytes; slices of it are copies, which keep no buffer alive
    messages = []
    position, limit = 0, len(data)
    while position < limit:
        head, body_at, tail_at, _ = _locate(data, position, limit)
        end = position + head[0]
        messages.append(MessageExt(head, data[body_at:tail_at], data[tail_at:end]))
        position = end
    return messages


class RecordKind(IntEnum):
    """What stands at a position of the commit log."""

    MESSAGE = 0
    BLANK = 1  # the file ends here; the next record starts in the next file
    END = 2  # neither magic: the log ends here
    BAD = 3  # a record's magic, but damaged


class RecordCheck(NamedTuple):
    """What a scan of the commit log needs to know of one position.

    Only ``kind``, ``size`` and ``reason`` mean something unless ``kind`` is ``MESSAGE``.
    """

    kind: RecordKind
    #: Bytes from here to the next record (``BLANK``: to the end of the file).  0 for END, and for BAD if nothing tells:
    #: else all lengths of the record agree with it.
    size: int
    reason: str = ""  # why it is END or BAD
    queue_id: int = 0
    queue_offset: QueueOffset = QueueOffset(0)
    physical_offset: PhysicalOffset = PhysicalOffset(-1)  # as the record says; the caller compares it with the place
    sys_flag: int = 0
    store_timestamp: int = 0
    prepared_transaction_offset: int = 0
    tags_code: int = 0
    topic: str = ""  # not checked against the rules for topic names
    properties: bytes = b""


def check_record(buffer: ReadableBuffer, position: int, limit: int, *, check_crc: bool) -> RecordCheck:
    """Look at ``position`` of a commit log file without making a message; never fails.

    Args:
        buffer: one file.
        position: where in it.
        limit: end of the bytes that may be looked at, at most ``len(buffer)``.
        check_crc: also compare the body with its CRC, and look whether sectors behind it are missing.
    """
    left = limit - position
    if left < _SIZE_AND_MAGIC.size:
        return RecordCheck(RecordKind.END, 0, f"{left} bytes left")
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        if _SIZE_AND_MAGIC.size <= size <= left:
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
    return _new_tuple(
        RecordCheck,
        (
            RecordKind.MESSAGE,
            size,
            "",
            head[3],
            head[5],
            head[6],
            head[7],
            head[10],
            head[13],
            tags_code_of(properties),
            str(topic, "utf-8", "replace"),
            properties,
        ),
    )


def find_damage(buffer: ReadableBuffer, position: int, size: int, topic: bytes, queue_id: int) -> str:
    """Return what is wrong with a record whose size, magic and offset are right, "" if nothing can be seen.

    Args:
        buffer: a commit log file.
        position: where in it the record begins.
        size: of the record.
        topic, queue_id: whose message it has to be; with RocketMQ's multi-dispatch it may be of another queue.
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


def _body_damage(head: RecordHead, body: bytes | memoryview) -> str:
    """Return what a record's body, or that there is none, tells about damage, "" if nothing."""
    if len(body):
        return "" if head[2] == body_crc(body) else "the body does not match its CRC"
    # Zero is the length of no body, and of what a power cut has left of one sector: then there is no store host either.
    has_host = any(head[11][-_PORT_BYTES:]) or head[7] & TRANSACTION_MASK == _ROLLBACK  # as fillers are
    return "" if head[10] and has_host else "a part of its head is missing"


def _has_lost_sector(text: bytes, position: int) -> bool:
    """Tell whether a sector of a text that begins at ``position`` of a file never reached the disk, so is zero.

    No checksum covers topic and properties; after a power cut they can have such a hole.
    """
    if 0 not in text:
        return False
    end = position + len(text)
    borders = [position, *range(position - position % _SECTOR + _SECTOR, end, _SECTOR), end]
    return any(not any(text[start - position : stop - position]) for start, stop in pairwise(borders) if start < stop)


def _locate(buffer: ReadableBuffer, position: int, limit: int) -> tuple[RecordHead, int, int, int]:
    """Return head, and where body, topic length and properties begin; all is checked to lie before ``limit``.

    Raises:
        ProtocolError: it does not, or the lengths contradict each other.
    """
    if not 0 <= position <= limit - _HEAD_SIZE:
        raise ProtocolError(f"record at {position}: {limit - position} bytes are too few for one")
    head = _unpack_head(buffer, position)
    body_at = position + _HEAD_SIZE
    if host_bits := head[7] & _HOST_V6_BITS:
        other = _HEADS[host_bits >> 4]
        body_at = position + other.size
        if body_at > limit:
            raise ProtocolError(f"record at {position}: {limit - position} bytes are too few for IPv6 hosts")
        head = other.unpack_from(buffer, position)
    size = head[0]
    body_length = head[14]
    tail_at = body_at + body_length
    end = position + size
    if head[1] != MESSAGE_MAGIC or body_length < 0 or end > limit or tail_at + 4 > end:
        raise _broken(position, limit, head)
    topic_length = buffer[tail_at]
    properties_at = tail_at + topic_length + 3
    if not 0 < topic_length <= MAX_TOPIC_BYTES or properties_at > end:
        raise ProtocolError(f"record at {position}: topic of {topic_length} bytes")
    high = buffer[properties_at - 2]
    if high > 127 or properties_at + (high << 8 | buffer[properties_at - 1]) != end:
        raise ProtocolError(f"record at {position}: its parts do not add up to {size} bytes")
    return head, body_at, tail_at, properties_at


def _broken(position: int, limit: int, head: RecordHead) -> ProtocolError:
    if head[1] != MESSAGE_MAGIC:
        return ProtocolError(f"record at {position}: magic {head[1] & 0xFFFF_FFFF:#010x}")
    return ProtocolError(
        f"record at {position}: size {head[0]}, body {head[14]} bytes, but {limit - position} bytes are there"
    )


def head_for(sys_flag: int, born_host: bytes, store_host: bytes) -> tuple[Struct, int]:
    """Return the head for hosts of which one is not IPv4, and ``sys_flag`` with its host bits."""
    for host in (born_host, store_host):
        if len(host) not in (IPV4_HOST_LENGTH, IPV6_HOST_LENGTH):
            raise ProtocolError(f"record: host of {len(host)} bytes, must be 8 or 20")
    sys_flag &= _WITHOUT_HOST_BITS
    if len(born_host) == IPV6_HOST_LENGTH:
        sys_flag |= int(MessageSysFlag.BORN_HOST_V6)
    if len(store_host) == IPV6_HOST_LENGTH:
        sys_flag |= int(MessageSysFlag.STORE_HOST_V6)
    return _HEADS[(sys_flag & _HOST_V6_BITS) >> 4], sys_flag
