"""Scenario 52 with the first flights of the file; ``make spark-demo`` takes all."""

import subprocess
import sys


def test_pipeline_totals_equal_those_of_file() -> None:
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
