"""The demo, and the example of docs/testing.md with a Spark job."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_testing_examples import LIMIT_S, run_example


def test_pipeline_totals_equal_those_of_file() -> None:
    """Scenario 52 with the first flights of the file; ``make spark-demo`` takes all."""
    done = subprocess.run(
        [sys.executable, "-m", "triomq.demo.pipeline", "--flights", "5000"],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "takes about" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("RIGHT: checked 5000 flights of 15 carriers: "), done.stdout


@pytest.mark.timeout(LIMIT_S + 10)
def test_testing_example_passes(tmp_path: Path) -> None:
    run_example("pyspark_job", tmp_path)
