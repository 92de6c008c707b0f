"""Structs of an index file, and the hashes of its keys.

A file is a header, a table of slots and a table of units; unit 0 is never used, and slot and unit numbers of 0 mean
"none".  Source: IndexHeader.java, IndexFile.java; store.md 4.1-4.3.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from triomq.protocol.java import java_hash
from triomq.protocol.units import PhysicalOffset

HEADER: Final = Struct(">qqqqii")
"""The fields of ``IndexHeader``."""

SLOT_SIZE: Final = 4
UNIT: Final = Struct(">iqii")
"""The fields of ``IndexUnit``."""

UNIT_SIZE: Final = UNIT.size

KEY_WIDTH: Final = 32
"""``key_hashes`` takes keys padded on the left to this length: that of the unique keys of all clients."""

_MASK: Final = 0xFFFF_FFFF
_MAX_HASH: Final = 0x7FFF_FFFF
_POWERS: Final[tuple[int, ...]] = tuple(pow(31, exponent, 1 << 32) for exponent in range(KEY_WIDTH + 1))
_P8: Final = _POWERS[8]
_P16: Final = _POWERS[16]
_TWO_HALVES: Final = Struct(">12xI12xI")  # of one key: the sums of its first and its last 16 characters

_AT_ONCE: Final = 512  # keys in one number; a shorter number makes no use of the rest of these masks
_PAIRS, _FOURS, _EIGHTS, _HALVES = (
    int.from_bytes(pattern * (KEY_WIDTH * _AT_ONCE // len(pattern)), "big")
    for pattern in (b"\x00\xff", b"\x00\x00\xff\xff", bytes(4) + b"\xff" * 4, bytes(12) + b"\xff" * 4)
)


class IndexHeader(NamedTuple):
    """What an index file says of itself; times are store times in ms."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: PhysicalOffset
    end_physical_offset: PhysicalOffset
    hash_slot_count: int  # slots in use
    index_count: int  # number of the next unit; the first one is 1


class IndexUnit(NamedTuple):
    """One key of one message."""

    key_hash: int
    physical_offset: PhysicalOffset
    time_diff_s: int  # store time, as seconds after the header's ``begin_timestamp``
    previous_unit: int  # in the same slot


def key_hash(topic: str, key: str) -> int:
    """Return the hash under which messages of ``topic`` with ``key`` are indexed: at least 0, 31 bits."""
    return fold_hash(java_hash(f"{topic}#{key}"))


def fold_hash(hashed: int) -> int:
    """Return the amount of a Java hash, of which only the lowest 32 bits count; 0 for the one without an amount."""
    hashed &= _MASK
    return hashed if hashed <= _MAX_HASH else -hashed & _MAX_HASH


def topic_share(topic: str) -> tuple[int, ...]:
    """Return what a topic adds to the hash of an ASCII key, by the key's length, 0 to ``KEY_WIDTH``."""
    hashed = java_hash(topic + "#")
    return tuple(hashed * power & _MASK for power in _POWERS)


def key_hashes(keys: Sequence[bytes], shares: Sequence[int]) -> list[int]:
    """Return ``key_hash`` of many ASCII keys: 0.25 us each instead of 1 us.

    Keys lie side by side in one big number, and each operation adds neighbours in all of them at once.

    Args:
        keys: padded on the left with zero bytes to ``KEY_WIDTH``.
        shares: for each key what ``topic_share`` says for its topic and its length before padding.
    """
    hashes: list[int] = []
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        lanes = int.from_bytes(b"".join(some), "big")
        lanes = (lanes >> 8 & _PAIRS) * 31 + (lanes & _PAIRS)
        lanes = (lanes >> 16 & _FOURS) * 31**2 + (lanes & _FOURS)
        lanes = (lanes >> 32 & _EIGHTS) * 31**4 + (lanes & _EIGHTS)  # each below 2**43
        lanes = (lanes >> 64 & _HALVES) * _P8 + (lanes & _HALVES)  # only the lowest 32 bits of a lane count
        sums = _TWO_HALVES.iter_unpack(lanes.to_bytes(KEY_WIDTH * len(some), "big"))
        some_shares = shares[start : start + _AT_ONCE]
        hashes += [
            hashed if (hashed := (first * _P16 + last + share) & _MASK) <= _MAX_HASH else -hashed & _MAX_HASH
            for (first, last), share in zip(sums, some_shares, strict=True)
        ]
    return hashes
