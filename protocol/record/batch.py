"""The body of a batch send: several messages for one topic and queue in one request.

Per message: int32 total size, int32 magic (0), int32 CRC (0), int32 flag, int32 body length, body, int16 properties
length, properties.  Readers ignore magic and CRC: the broker computes the CRC itself.

Source: MessageDecoder.java, encodeMessage and decodeMessage; wire.md 10.7.
"""

import struct
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from triomq.protocol.errors import ProtocolError
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES

ENTRY_HEAD: Final = Struct(">iiiii")
"""Total size, magic, CRC, flag, body length."""

_PROPERTIES_LENGTH: Final = Struct(">h")
_FIXED_SIZE: Final = ENTRY_HEAD.size + _PROPERTIES_LENGTH.size


class BatchEntry(NamedTuple):
    """One message of a batch; ``properties`` are encoded."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(messages: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the body for messages given as flag, body and encoded properties (see ``BatchEntry``).

    Raises:
        ProtocolError: properties above 32767 bytes, or a flag that does not fit 32 bits.
    """
    parts: list[bytes] = []
    for flag, body, properties in messages:
        size = _FIXED_SIZE + len(body) + len(properties)
        try:
            parts += (
                ENTRY_HEAD.pack(size, 0, 0, flag, len(body)),
                body,
                _PROPERTIES_LENGTH.pack(len(properties)),
                properties,
            )
        except struct.error as exc:
            raise ProtocolError(
                f"batch: flag {flag}, body of {len(body)} bytes, properties of {len(properties)} bytes"
                f" (at most {MAX_PROPERTIES_BYTES}): {exc}"
            ) from exc
    return b"".join(parts)


def decode_batch(body: bytes | bytearray | memoryview) -> list[BatchEntry]:
    """Return copies of the messages of a batch body, so that none keeps the whole body alive.

    Raises:
        ProtocolError: an entry is truncated or its lengths contradict each other.
    """
    entries = []
    position, limit = 0, len(body)
    while position < limit:
        if limit - position < _FIXED_SIZE:
            raise ProtocolError(f"batch entry at {position}: {limit - position} bytes are too few for one")
        size, _, _, flag, body_length = ENTRY_HEAD.unpack_from(body, position)
        body_at = position + ENTRY_HEAD.size
        properties_at = body_at + body_length + _PROPERTIES_LENGTH.size
        end = position + size
        if body_length < 0 or end > limit or properties_at > end:
            raise ProtocolError(
                f"batch entry at {position}: size {size}, body {body_length} bytes, {limit - position} bytes are there"
            )
        (properties_length,) = _PROPERTIES_LENGTH.unpack_from(body, properties_at - _PROPERTIES_LENGTH.size)
        if properties_length < 0 or properties_at + properties_length != end:
            raise ProtocolError(f"batch entry at {position}: its parts do not add up to {size} bytes")
        entries.append(BatchEntry(flag, bytes(body[body_at : body_at + body_length]), bytes(body[properties_at:end])))
        position = end
    return entries
