import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
import triomq.client  # adds a handler that drops everything, as libraries do
from triomq.spark.connections import show_warnings
{before}
show_warnings()
show_warnings()
logging.getLogger("triomq.spark.reading.loss").warning("messages lost queue=%s", "T@b:0")
{after}
logging.getLogger("triomq.spark.writing.writer").info("written")
"""


def stderr_of(before: str, after: str = "") -> str:
    program = PROGRAM.format(before=before, after=after)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    return done.stderr


def test_warnings_reach_stderr_once_without_logging_config() -> None:
    (line,) = stderr_of("").splitlines()
    assert line.endswith(" WARNING triomq.spark.reading.loss messages lost queue=T@b:0")


def test_throttling_keeps_all_warnings_of_lost_messages() -> None:
    loop = "for number in range(100): logging.getLogger('triomq.spark.reading.{}').warning('text %d', number)"
    lines = stderr_of("", f"{loop.format('loss')}\n{loop.format('driver')}").splitlines()
    assert sum("spark.reading.loss text" in line for line in lines) == 100
    assert sum("spark.reading.driver text" in line for line in lines) == 20


@pytest.mark.parametrize("logger", ["", "triomq"])
def test_configured_logging_is_kept(logger: str) -> None:
    before = f"logging.getLogger({logger!r}).addHandler(logging.StreamHandler(sys.stdout))"
    assert stderr_of(before) == ""
