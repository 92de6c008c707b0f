"""Compares header classes with tables of names, kinds and optional fields copied from wire.md, not from the classes.

A line of a table is wire names in the order of the class, each with its kind; ``?`` may be absent.
"""

from types import ModuleType
from typing import Final

import pytest

from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.headers import Header

GOOD: Final = {"str": "text", "int": "2147483647", "long": "9223372036854775807", "bool": "true"}
BAD: Final = {"int": "2147483648", "long": "9223372036854775808"}


def header_classes(module: ModuleType) -> dict[str, type[Header]]:
    """Return the headers that ``module`` defines, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Header) and value is not Header
    }


def rows(line: str) -> list[tuple[str, str, bool]]:
    """Return wire name, kind and whether it is required."""
    cells = (cell.split(":") for cell in line.split())
    return [(wire, kind.rstrip("?"), not kind.endswith("?")) for wire, kind in cells]


def full(line: str) -> dict[str, str]:
    """Return every field of the line, each with the greatest value of its kind."""
    return {wire: GOOD[kind] for wire, kind, _ in rows(line)}


def check_names(cls: type[Header], line: str) -> None:
    encoded = cls.decode(full(line)).encode()
    assert encoded == full(line)
    assert list(encoded) == [wire for wire, _, _ in rows(line)]


def check_kinds(cls: type[Header], line: str) -> None:
    """An ``int`` of Java ends at 2**31 - 1, a ``long`` at 2**63 - 1; any text is text; a bool knows no error."""
    for wire, kind, _ in rows(line):
        if kind in BAD:
            with pytest.raises(ProtocolError, match=f"{cls.__name__}: field '{wire}' is out of range"):
                cls.decode(full(line) | {wire: BAD[kind]})
        else:
            encoded = cls.decode(full(line) | {wire: "a"}).encode()
            assert encoded[wire] == ("a" if kind == "str" else "false")


def check_required(cls: type[Header], line: str) -> None:
    for wire, _, required in rows(line):
        fields = {other: text for other, text in full(line).items() if other != wire}
        if required:
            with pytest.raises(ProtocolError, match=f"{cls.__name__}: field '{wire}' is missing"):
                cls.decode(fields)
        else:
            cls.decode(fields)
