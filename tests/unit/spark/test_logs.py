import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
import triomq.client  # adds a handler that drops everything, as libraries do
from triomq.spark.logs import show_warnings
{before}
show_warnings()
show_warnings()
logging.getLogger("triomq.spark.loss").warning("messages lost queue=%s", "T@b:0")
logging.getLogger("triomq.spark.writer").info("written")
"""


def stderr_of(before: str) -> str:
    program = PROGRAM.format(before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    return done.stderr


def test_warnings_reach_stderr_once_where_nobody_set_up_logging() -> None:
    (line,) = stderr_of("").splitlines()
    assert line.endswith(" WARNING triomq.spark.loss messages lost queue=T@b:0")


@pytest.mark.parametrize("logger", ["", "triomq"])
def test_who_set_up_logging_keeps_it(logger: str) -> None:
    before = f"logging.getLogger({logger!r}).addHandler(logging.StreamHandler(sys.stdout))"
    assert stderr_of(before) == ""
