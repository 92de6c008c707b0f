"""Patterns of client addresses, as accounts and the list of global white addresses hold them.

One address, a list ``a,b``, a list in the last part ``10.0.0.{1,2}``, or a range ``a-b`` or ``*`` with only ``*``
behind.
A pattern that RocketMQ reads in another sense than it is written, or that makes it fail at each request, is an error.

Source: behaviour.md A.19; RemoteAddressStrategyFactory.java.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from triomq.protocol.errors import ConfigError

Numbers: TypeAlias = tuple[int, ...]
"""An address: four numbers, or eight of an IPv6 address."""

_EVERYBODY: Final = frozenset(("*", "*.*.*.*", "*:*:*:*:*:*:*:*"))
_V4_PARTS: Final = 4
_V6_PARTS: Final = 8
_V4_MAX: Final = 255
_V4_PART: Final = re.compile(r"0|[1-9]\d{0,2}", re.ASCII)
_V4_RANGE: Final = re.compile(r"(\d{1,3})-(\d{1,3})", re.ASCII)
_V6_RANGE: Final = re.compile(r"([0-9a-fA-F]{1,4})-([0-9a-fA-F]{1,4})")


class _Range(NamedTuple):
    """Addresses that begin with ``head``, then have a number within the bounds."""

    parts: int
    head: Numbers
    low: int
    high: int

    def has(self, numbers: Numbers) -> bool:
        at = len(self.head)
        return len(numbers) == self.parts and numbers[:at] == self.head and self.low <= numbers[at] <= self.high


@dataclass(frozen=True, slots=True)
class AddressSet:
    """The addresses that patterns name."""

    has_all: bool = False
    single: frozenset[Numbers] = frozenset()
    ranges: tuple[_Range, ...] = ()

    def __bool__(self) -> bool:
        return self.has_all or bool(self.single or self.ranges)

    def has(self, host: str) -> bool:
        """Whether it contains an address, written as a socket reports it; an unreadable one is in no list."""
        if not (self.single or self.ranges):
            return self.has_all
        numbers = _read_host(host)
        return self.has_all or numbers in self.single or any(each.has(numbers) for each in self.ranges)


NOBODY: Final = AddressSet()


def union(sets: Iterable[AddressSet]) -> AddressSet:
    """Return the addresses that are in any of the sets."""
    sets = list(sets)
    return AddressSet(
        any(each.has_all for each in sets),
        frozenset().union(*(each.single for each in sets)),
        tuple(found for each in sets for found in each.ranges),
    )


def parse_pattern(text: str) -> AddressSet:
    """Read a pattern; an empty one matches no address.

    Raises:
        ConfigError: RocketMQ refuses or misreads it; the text says why.
    """
    try:
        return _parse(text)
    except ValueError as exc:
        raise ConfigError(f"address pattern {text!r}: {exc}") from None


def _parse(text: str) -> AddressSet:
    if not text:
        return NOBODY
    if any(character.isspace() for character in text):
        raise ValueError("blanks are not allowed")
    if text in _EVERYBODY:
        return AddressSet(has_all=True)
    if "/" in text:
        raise ValueError("networks are written with * or a range, not with a mask")
    if text.endswith("}"):
        head, brace, listed = text.removesuffix("}").partition("{")
        if not brace or not head.endswith((".", ":")):
            raise ValueError("a list in braces must be the whole last part")
        return AddressSet(single=frozenset(_read_address(head + part) for part in listed.split(",")))
    if "," not in text and ("*" in text or "-" in text):
        return AddressSet(ranges=(_read_v6_range(text) if ":" in text else _read_v4_range(text),))
    return AddressSet(single=frozenset(map(_read_address, text.split(","))))


@lru_cache(maxsize=4096)  # every request of a client brings the same one
def _read_host(host: str) -> Numbers:
    try:
        return _numbers(host.partition("%")[0])
    except ValueError:
        return ()


def _numbers(text: str) -> Numbers:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return tuple(address.ipv4_mapped.packed)
        packed = address.packed
        return tuple(packed[at] << 8 | packed[at + 1] for at in range(0, len(packed), 2))
    return tuple(address.packed)


def _read_address(text: str) -> Numbers:
    numbers = _numbers(text)
    if "%" in text or (":" in text and len(numbers) == _V4_PARTS):
        raise ValueError("clients are matched without zone, and by their IPv4 address")
    return numbers


def _read_v4_range(text: str) -> _Range:
    parts = text.split(".")
    if len(parts) != _V4_PARTS:
        raise ValueError("an IPv4 address has four parts")
    at = next(index for index, part in enumerate(parts) if "*" in part or "-" in part)
    for part in parts[:at]:
        if not _V4_PART.fullmatch(part) or int(part) > _V4_MAX:
            raise ValueError(f"{part!r} is not a number from 0 to 255 without leading zeros")
    _check_rest(at, parts[at + 1 :])
    low, high = (0, _V4_MAX) if parts[at] == "*" else _read_bounds(_V4_RANGE.fullmatch(parts[at]), 10)
    if high > _V4_MAX:
        raise ValueError(f"{high} is above 255")
    return _Range(_V4_PARTS, tuple(map(int, parts[:at])), low, high)


def _read_v6_range(text: str) -> _Range:
    """Read ``head:*``, ``head:a-b`` and ``head:a-b:*``; with fewer than eight parts ``*`` means all the rest."""
    head, _, last = text.rpartition(":")
    has_rest = last == "*" and "-" in head
    if has_rest:
        head, _, last = head.rpartition(":")
    if not head or head.endswith(":"):
        raise ValueError(":: just before a range or * is read as one part; write all parts")
    numbers = _read_v6_head(head, _V6_PARTS - 1 - has_rest)
    _check_rest(len(numbers), ())
    low, high = (0, 0xFFFF) if last == "*" else _read_bounds(_V6_RANGE.fullmatch(last), 16)
    if len(numbers) >= _V6_PARTS or (last != "*" and not has_rest and len(numbers) != _V6_PARTS - 1):
        raise ValueError("a range must be the last of eight parts, or have :* behind it")
    return _Range(_V6_PARTS, numbers, low, high)


def _read_v6_head(head: str, length: int) -> Numbers:
    """Read the parts before a range; ``::`` means as many zeros as ``length`` needs."""
    before, gap, after = (part.split(":") if part.strip(":") else part for part in head.partition("::"))
    parts = [*before, *after]
    if gap:
        parts[len(before) : len(before)] = ["0"] * (length - len(parts))
    if not all(re.fullmatch(r"[0-9a-fA-F]{1,4}", part) for part in parts) or (
        gap and len(before) + len(after) >= length
    ):
        raise ValueError("this is no IPv6 address in front of a range or *")
    return tuple(int(part, 16) for part in parts)


def _check_rest(at: int, rest: Iterable[str]) -> None:
    if not at:
        raise ValueError("the first part must be a number; write * for everybody")
    if any(part != "*" for part in rest):
        raise ValueError("parts after a range or * are ignored; write *")


def _read_bounds(found: "re.Match[str] | None", base: int) -> tuple[int, int]:
    if found is None:
        raise ValueError("write a range as a-b, and * as a whole part")
    low, high = int(found[1], base), int(found[2], base)
    if not low <= high or not high:
        raise ValueError(f"{found[0]} is no range that RocketMQ reads")
    return low, high
