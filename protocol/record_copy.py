"""The same message under another topic, place and time: copies of a stored record, without decoding it.

Only what changes is packed anew.  Body, its CRC, flags, birth and hosts are taken over as the bytes they are, which
costs a fifth of decoding the record and encoding it again.

Source: store.md 2.1, 8.4.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.errors import ProtocolError
from triomq.protocol.record import MESSAGE_MAGIC

RecordSource: TypeAlias = tuple[bytes, int, bytes, memoryview, int, int]
"""What a copy takes over of a record.

Magic number and body CRC; flag; sysFlag, born time and born host; the bytes from store host to the end of the body.
Then what the copy does not take over: store time, ms, and the length of the body.
"""

_BORN_V6: Final = int(MessageSysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(MessageSysFlag.STORE_HOST_V6)
_IPV4_BORN: Final = 20  # sysFlag, born time and born host with an IPv4 address
_V6_EXTRA: Final = 12
_SYS_FLAG: Final = Struct(">i")
_SYS_FLAG_AT: Final = 36
_LENGTH: Final = Struct(">H")
_MIN_SIZE: Final = 91  # without body, topic and properties
_MAGIC: Final = _SYS_FLAG.pack(MESSAGE_MAGIC)


def _source_head(born_length: int, store_host_length: int) -> Struct:
    return Struct(
        ">i"  # totalSize
        "8s"  # magic, bodyCRC
        "4x"  # queueId
        "i"  # flag
        "16x"  # queueOffset, physicalOffset
        f"{born_length}s"  # sysFlag, bornTimestamp, bornHost
        "q"  # storeTimestamp
        f"{store_host_length}x"
        "12x"  # reconsumeTimes, preparedTransactionOffset
        "i"  # bodyLength
    )


def _copy_head(born_length: int) -> Struct:
    return Struct(f">i8siiqq{born_length}sq")


_SOURCE_HEADS: Final = tuple(  # by the two host bits of sysFlag
    (_source_head(_IPV4_BORN + born, 8 + store), 44 + _IPV4_BORN + born)
    for store in (0, _V6_EXTRA)
    for born in (0, _V6_EXTRA)
)
_pack_ipv4_head = _copy_head(_IPV4_BORN).pack
_pack_ipv6_head = _copy_head(_IPV4_BORN + _V6_EXTRA).pack
_unpack_sys_flag = _SYS_FLAG.unpack_from
_unpack_length = _LENGTH.unpack_from
_pack_length = _LENGTH.pack
FIXED_COPY_BYTES: Final = 46
"""Length of a copy without what its source gives, topic field and properties."""


def split_record(record: memoryview) -> tuple[RecordSource, bytes]:
    """Return what a copy takes over of a whole record, and the record's properties.

    The views that are returned keep the buffer alive.

    Raises:
        ProtocolError: the bytes are no record, or its lengths contradict each other.
    """
    length = len(record)
    if length < _MIN_SIZE:
        raise ProtocolError(f"record of {length} bytes: too few for one")
    (sys_flag,) = _unpack_sys_flag(record, _SYS_FLAG_AT)
    head, rest_at = _SOURCE_HEADS[(sys_flag & (_BORN_V6 | _STORE_V6)) >> 4]
    if length < head.size:
        raise ProtocolError(f"record of {length} bytes: too few for IPv6 hosts")
    size, magic_and_crc, flag, born, store_timestamp, body_length = head.unpack_from(record)
    topic_at = head.size + body_length
    if size == length and body_length >= 0 and topic_at < length and magic_and_crc[:4] == _MAGIC:
        properties_at = topic_at + 3 + record[topic_at]
        if properties_at <= length and properties_at + _unpack_length(record, properties_at - 2)[0] == length:
            source = (magic_and_crc, flag, born, record[rest_at:topic_at], store_timestamp, body_length)
            return source, bytes(record[properties_at:])
    raise ProtocolError(f"record of {length} bytes: size {size}, body {body_length} bytes, which does not fit")


def copy_size(source: RecordSource, topic_field: bytes, properties: bytes) -> int:
    """Return the length of a copy."""
    return FIXED_COPY_BYTES + len(source[2]) + len(source[3]) + len(topic_field) + len(properties)


def copy_parts(
    source: RecordSource,
    size: int,
    topic_field: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    properties: bytes,
) -> Sequence[bytes | memoryview]:
    """Return the bytes of a copy, in parts.

    Args:
        source: from :func:`split_record`.
        size: what :func:`copy_size` says.
        topic_field: length byte and text.
        queue_id, queue_offset, physical_offset, store_timestamp: its own.
        properties: at most 32767 bytes.

    Raises:
        struct.error: a number does not fit its field.
    """
    magic_and_crc, flag, born, rest, _, _ = source
    pack = _pack_ipv4_head if len(born) == _IPV4_BORN else _pack_ipv6_head
    head = pack(
        size, magic_and_crc, queue_id, flag, queue_offset, physical_offset, born, store_timestamp
    )  # fmt: skip
    return head, rest, topic_field, _pack_length(len(properties)), properties
