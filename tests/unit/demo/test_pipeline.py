from pathlib import Path

import pytest

from triomq.demo import pipeline
from triomq.demo.pipeline import Carrier, compare, totals_of_file


def test_missing_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda _: None)
    assert pipeline.main([]) == 1
    assert "pip install 'triomq[spark]'" in capsys.readouterr().err


def test_a_carriers_flights_departures_and_delays_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text("carrier,dep_delay\nUA,5\nDL,NA\nUA,-2\nUA,NA\n")
    assert totals_of_file(path) == {"UA": Carrier(3, 2, 3.0), "DL": Carrier(1, 0, 0.0)}


@pytest.mark.parametrize(
    ("found", "stored", "problem"),
    [
        ({"UA": Carrier(2, 1, 3.0)}, 2, None),
        ({"UA": Carrier(2, 1, 4.0)}, 2, "UA: "),
        ({}, 2, "UA: None"),
        ({"UA": Carrier(2, 1, 3.0), "DL": Carrier(1)}, 2, "DL: "),
        ({"UA": Carrier(2, 1, 3.0)}, 3, "the broker stored 3 of 2 flights"),
    ],
)
def test_any_difference_is_told(found: dict[str, Carrier], stored: int, problem: str | None) -> None:
    problems = compare({"UA": Carrier(2, 1, 3.0)}, found, stored)
    assert len(problems) == (problem is not None)
    assert "".join(problems).startswith(problem or "")
