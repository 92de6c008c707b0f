"""Message ids: the place where a message is stored, the unique id from its producer, and recall handles.

The two ids are upper-case hex digits of the same lengths, 32 or 56 (IPv6), so the text does not show which kind it is.
Unique ids must be compared with their case, because Go clients write a part in lower case.

Source: MessageDecoder.java and MessageClientIDSetter.java; wire.md 10.2, store.md 2.9; RocketMQ 5.5.0
RecallMessageHandle.java.
"""

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from itertools import count
from struct import Struct
from typing import Final, NamedTuple, Self

from triomq.protocol.errors import ProtocolError
from triomq.protocol.host import IPV4_HOST_LENGTH, IPV6_HOST_LENGTH, decode_host
from triomq.protocol.message_queue import PhysicalOffset

_OFFSET: Final = Struct(">q")
_ID_LENGTHS: Final = frozenset((2 * (IPV4_HOST_LENGTH + 8), 2 * (IPV6_HOST_LENGTH + 8)))
_NUMBER_DIGITS: Final = 4
_UINT16: Final = 0xFFFF
_UINT32: Final = 0xFFFF_FFFF


def offset_message_id(store_host: bytes, physical_offset: PhysicalOffset | int) -> str:
    """Return the id of a record's place; ``store_host`` as in the record: 8 or 20 bytes."""
    return f"{store_host.hex().upper()}{physical_offset & 0xFFFF_FFFF_FFFF_FFFF:016X}"


def parse_offset_message_id(text: str) -> tuple[str, int, PhysicalOffset]:
    """Return address, port and commit log offset of an offset message id.

    Raises:
        ProtocolError: the text cannot be such an id.  Many unique ids can; then the result is meaningless.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(text) not in _ID_LENGTHS or 2 * len(raw) != len(text):  # fromhex() skips blanks
        raise ProtocolError(f"message id {text[:80]!r}: not 32 or 56 hex digits")
    host, port = decode_host(raw[:-8])
    (physical_offset,) = _OFFSET.unpack_from(raw, len(raw) - 8)
    if physical_offset < 0:
        raise ProtocolError(f"message id {text!r}: negative offset")
    return host, port, PhysicalOffset(physical_offset)


class UniqueIdGenerator:
    """Generates the unique ids of a producer's messages: ``UNIQ_KEY``.

    An id consists of address, process id (16 bits), ``discriminator`` (32 bits), milliseconds since the local start of
    the month (32 bits) and a counter (16 bits): unique below 65536 ids per millisecond.
    """

    def __init__(self, ip: bytes, pid: int, discriminator: int, clock_ms: Callable[[], int]) -> None:
        """Set the constant parts.

        Args:
            ip: 4 or 16 bytes.
            pid: the process id; its low 16 bits are used.
            discriminator: distinguishes generators of one process; its low 32 bits are used.
            clock_ms: wall clock in milliseconds since 1970.
        """
        if len(ip) not in (4, 16):
            raise ProtocolError(f"address of {len(ip)} bytes: must be 4 or 16")
        self._prefix = f"{ip.hex().upper()}{pid & _UINT16:04X}{discriminator & _UINT32:08X}"
        self._clock_ms = clock_ms
        self._count = count().__next__
        self._month_start_ms = 0
        self._next_month_ms = 0

    def next(self) -> str:
        """Return a new id: 32 or 56 upper-case hex digits."""
        now = self._clock_ms()
        if now >= self._next_month_ms:
            year, month = time.localtime(now // 1000)[:2]
            starts = ((year, each, 1, 0, 0, 0, 0, 0, -1) for each in (month, month + 1))  # month 13 is January
            self._month_start_ms, self._next_month_ms = (int(time.mktime(start)) * 1000 for start in starts)
        # A clock set back below the month's start wraps around, as in Java.
        return "%s%08X%04X" % (  # noqa: UP031  # faster than an f-string here
            self._prefix,
            now - self._month_start_ms & _UINT32,
            self._count() & _UINT16,
        )

    def next_many(self, count: int) -> list[str]:
        """Return new ids that share their time: at most 65,535, because the counter has 16 bits."""
        begin, number = self.next()[:-_NUMBER_DIGITS], self._count
        return [f"{begin}{number() & _UINT16:04X}" for _ in range(count)]


RECALL_TAG: Final = "_RECALL_TAG_"
_VERSION: Final = "v1"
_MAX_DIGITS: Final = 18


class RecallHandle(NamedTuple):
    """Names a delayed message, to take it back before it is due.

    Attributes:
        topic: where it will appear.
        broker_name: the broker that has it.
        deliver_ms: when it is due.
        message_id: the unique id its producer gave it.
    """

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str

    def encode(self) -> str:
        """Return it as clients pass it around."""
        return urlsafe_b64encode(" ".join((_VERSION, *map(str, self))).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read a handle.

        Raises:
            ProtocolError: it is none.
        """
        try:
            version, topic, broker_name, deliver_ms, message_id = urlsafe_b64decode(text.encode()).decode().split(" ")
        except ValueError as exc:
            raise ProtocolError("recall handle is invalid") from exc
        if version != _VERSION or not (deliver_ms.isdecimal() and len(deliver_ms) <= _MAX_DIGITS):
            raise ProtocolError("recall handle is invalid")
        return cls(topic, broker_name, int(deliver_ms), message_id)


def delete_key(topic: str, message_id: str) -> str:
    """Return the value of ``TIMER_DEL_UNIQKEY`` in a message that takes another one back, as of RocketMQ 5.3."""
    return f"{topic}+{message_id}"
