"""The same message under another topic, place and time: copies of a stored record, without decoding it.

Only what changes is packed anew.  Body, its CRC, flags, birth and hosts are taken over as the bytes they are, which
costs a fifth of decoding the record and encoding it again.

Source: store.md 2.1, 8.4.
"""

from struct import Struct
from typing import Final, TypeAlias

from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.errors import ProtocolError
from triomq.protocol.record.record import MESSAGE_MAGIC

RecordHead: TypeAlias = tuple[int, int, bytes, int, bytes, int, int]
"""Of a record: its size, magic number, body CRC and flag; sysFlag, born time and born host as they are; its store time,
ms, and the length of its body."""

RecordSource: TypeAlias = tuple[RecordHead, bytes, bytes]
"""Head, the bytes from store host to the end of the body, and the properties behind their length."""

HOST_BITS: Final = int(MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6)
"""None of them is set in the sysFlag of a plain record, one with two IPv4 hosts."""

LEAST_TAIL_BYTES: Final = 3
"""A topic and properties, each of no length."""

PLAIN_BORN_BYTES: Final = 20
"""sysFlag, born time and born host of a plain record; that they are its sysFlag's is for others to check."""

_V6_EXTRA: Final = 12
_SYS_FLAG: Final = Struct(">i")
_SYS_FLAG_AT: Final = 36
_LENGTH: Final = Struct(">h")


def _source_head(born_length: int, store_host_length: int) -> Struct:
    return Struct(
        ">ii4s"  # totalSize, magic, bodyCRC
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
    return Struct(f">ii4siiqq{born_length}sq")


_SOURCE_HEADS: Final = tuple(  # by the two host bits of sysFlag
    (_source_head(PLAIN_BORN_BYTES + born, 8 + store), 44 + PLAIN_BORN_BYTES + born)
    for store in (0, _V6_EXTRA)
    for born in (0, _V6_EXTRA)
)
PLAIN_HEAD, PLAIN_REST_AT = _SOURCE_HEADS[0]
"""The struct that gives the head of a plain record, as long as all before its body; where its store host begins."""

PLAIN_COPY_HEAD: Final = _copy_head(PLAIN_BORN_BYTES)
"""What stands before the store host of a copy: size, magic number, body CRC, queue id, flag, queue offset, physical
offset, born bytes and store time."""

IPV6_COPY_HEAD: Final = _copy_head(PLAIN_BORN_BYTES + _V6_EXTRA)
"""The same with a born host that is IPv6."""

_unpack_sys_flag = _SYS_FLAG.unpack_from
_unpack_length = _LENGTH.unpack_from
pack_length: Final = _LENGTH.pack
"""Makes the length of properties that stands before them."""


def split_record(record: memoryview) -> RecordSource:
    """Return what a copy needs of a whole record.

    Raises:
        ProtocolError: the bytes are no record, or its lengths contradict each other.
    """
    length = len(record)
    if length < PLAIN_HEAD.size + LEAST_TAIL_BYTES:
        raise ProtocolError(f"record of {length} bytes: too few for one")
    (sys_flag,) = _unpack_sys_flag(record, _SYS_FLAG_AT)
    head_struct, rest_at = _SOURCE_HEADS[(sys_flag & HOST_BITS) >> 4]
    if length < head_struct.size:
        raise ProtocolError(f"record of {length} bytes: too few for IPv6 hosts")
    head = size, magic, _, _, _, _, body_length = head_struct.unpack_from(record)
    topic_at = head_struct.size + body_length
    if size == length and body_length >= 0 and topic_at < length and magic == MESSAGE_MAGIC:
        properties_at = topic_at + 3 + record[topic_at]
        if properties_at <= length and properties_at + _unpack_length(record, properties_at - 2)[0] == length:
            return head, bytes(record[rest_at:topic_at]), bytes(record[properties_at - 2 :])
    raise ProtocolError(f"record of {length} bytes: size {size}, body {body_length} bytes, which does not fit")
