from pathlib import Path

import pytest

from triomq.demo import pipeline
from triomq.demo.pipeline import Totals, compare, totals_of_file


def test_missing_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda _: None)
    assert pipeline.main([]) == 1
    assert "pip install 'triomq[spark]'" in capsys.readouterr().err


def test_totals_of_carriers_are_sums(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text("carrier,dep_delay\nUA,5\nDL,NA\nUA,-2\nUA,NA\n")
    assert totals_of_file(path) == {"UA": [3, 2, 3.0], "DL": [1, 0, 0.0]}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({"UA": [2, 1, 3.0]}, None),
        ({"UA": [2, 1, 4.0]}, "UA: "),
        ({}, "UA: None"),
        ({"UA": [2, 1, 3.0], "DL": [1, 0, 0]}, "DL: "),
    ],
)
def test_any_difference_is_reported(found: Totals, problem: str | None) -> None:
    problems = compare({"UA": [2, 1, 3.0]}, found)
    assert len(problems) == (problem is not None)
    assert "".join(problems).startswith(problem or "")
