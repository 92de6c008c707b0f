"""The layout of a message record, declared once: in the commit log and in every body that carries messages.

A record is a head of 88 bytes (12 more for each IPv6 host), the body, the topic with a 1-byte length and the
properties with a 2-byte length.  All numbers are signed and big-endian.  ``layouts.RECORD`` is the readable form, and
tests compare the two.

Source: MessageDecoder.java, CommitLog.java; store.md 2.1-2.5, wire.md 10.1.
"""

from struct import Struct, calcsize
from typing import Final, TypeAlias

from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.errors import ProtocolError
from triomq.protocol.host import IPV4_HOST_LENGTH, IPV6_HOST_LENGTH
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset

MESSAGE_MAGIC: Final = -626843481  # 0xDAA320A7
BLANK_MAGIC: Final = -875286124  # 0xCBD43194
CRC_MASK: Final = 0x7FFF_FFFF  # a body CRC has no top bit
MAX_TOPIC_BYTES: Final = 127

HEAD_FORMATS: Final = {
    "size": "i",  # of the whole record
    "magic": "i",
    "body_crc": "i",  # without the top bit
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "physical_offset": "q",
    "sys_flag": "i",
    "born_timestamp": "q",
    "born_host": f"{IPV4_HOST_LENGTH}s",
    "store_timestamp": "q",
    "store_host": f"{IPV4_HOST_LENGTH}s",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_length": "i",
}
"""The ``struct`` format of each field before the body when both hosts are IPv4, in the record's order."""

Head: TypeAlias = tuple[
    int, int, int, int, int, QueueOffset, PhysicalOffset, int, int, bytes, int, bytes, int, int, int
]
"""The values of ``HEAD_FORMATS``."""


def _head(born_host_length: int, store_host_length: int) -> Struct:
    formats = HEAD_FORMATS | {"born_host": f"{born_host_length}s", "store_host": f"{store_host_length}s"}
    return Struct(">" + "".join(formats.values()))


def head_struct(*names: str) -> Struct:
    """Return a struct of these head fields, given in the record's order, that starts where the record starts.

    Fields before and between them are skipped, and those after the last one are left out.
    """
    last = list(HEAD_FORMATS).index(names[-1])
    wanted = [
        code if name in names else f"{calcsize('>' + code)}x"
        for name, code in list(HEAD_FORMATS.items())[: last + 1]
    ]  # fmt: skip
    return Struct(">" + "".join(wanted))


def head_offset(name: str) -> int:
    """Return the position of a head field in a record with IPv4 hosts."""
    return head_struct(name).size - calcsize(">" + HEAD_FORMATS[name])


HEAD: Final = _head(IPV4_HOST_LENGTH, IPV4_HOST_LENGTH)
"""Everything before the body when both hosts are IPv4: 88 bytes."""

HEADS: Final = (
    HEAD,
    _head(IPV6_HOST_LENGTH, IPV4_HOST_LENGTH),
    _head(IPV4_HOST_LENGTH, IPV6_HOST_LENGTH),
    _head(IPV6_HOST_LENGTH, IPV6_HOST_LENGTH),
)
"""By the host bits of ``sys_flag``, shifted right by ``HOST_BITS_SHIFT``; ``sys_flag`` is at one place in all."""

BLANK_HEAD: Final = head_struct("size", "magic")
"""The head of a blank record: the bytes to the end of the file, and ``BLANK_MAGIC``."""

BORN_HOST_V6: Final = int(MessageSysFlag.BORN_HOST_V6)
STORE_HOST_V6: Final = int(MessageSysFlag.STORE_HOST_V6)
HOST_V6_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
HOST_BITS_SHIFT: Final = 4
IPV6_EXTRA_BYTES: Final = IPV6_HOST_LENGTH - IPV4_HOST_LENGTH
"""How far an IPv6 host moves the fields after it."""

PROPERTIES_LENGTH: Final = Struct(">h")
_LENGTH_BYTES: Final = 1 + PROPERTIES_LENGTH.size  # of topic and properties
MIN_RECORD_BYTES: Final = HEAD.size + _LENGTH_BYTES + 1
"""The size of a record without body and properties whose topic has one character."""


def record_size(body_length: int, topic_length: int, properties_length: int, head_size: int = HEAD.size) -> int:
    """Return the length of a whole record from the lengths of its parts in bytes."""
    return head_size + _LENGTH_BYTES + body_length + topic_length + properties_length


def head_for(sys_flag: int, born_host: bytes, store_host: bytes) -> tuple[Struct, int]:
    """Return the head for two encoded hosts, and ``sys_flag`` with its host bits set to match them.

    Raises:
        ProtocolError: a host has neither 8 nor 20 bytes.
    """
    sys_flag &= ~HOST_V6_BITS
    for host, bit in ((born_host, BORN_HOST_V6), (store_host, STORE_HOST_V6)):
        if len(host) == IPV6_HOST_LENGTH:
            sys_flag |= bit
        elif len(host) != IPV4_HOST_LENGTH:
            raise ProtocolError(f"record: host of {len(host)} bytes, must be 8 or 20")
    return HEADS[(sys_flag & HOST_V6_BITS) >> HOST_BITS_SHIFT], sys_flag
