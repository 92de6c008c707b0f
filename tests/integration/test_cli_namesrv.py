"""``triomq namesrv`` as a process."""

import json
import signal
from pathlib import Path

import pytest

from tests.integration.cli_tools import ok, read_line, running

COMMAND = ("namesrv", "--listen", "127.0.0.1:0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_prints_address_and_exits_0_on_signal(tmp_path: Path, number: signal.Signals) -> None:
    with running(*COMMAND, "--store", str(tmp_path), "--metrics", "off", "--json") as process:
        ready = json.loads(read_line(process))
        assert "metrics" not in ready
        assert (ready["event"], ready["store"], ready["pid"]) == ("ready", str(tmp_path), process.pid)
        assert json.loads(ok("topic", "list", "--json", namesrv=ready["namesrv"]) or "[]") == []
        process.send_signal(number)
        rest, _ = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, b"")


def test_the_readable_line_names_address_and_folder(tmp_path: Path) -> None:
    with running(*COMMAND, "--store", str(tmp_path)) as process:
        line = read_line(process)
        process.terminate()
        process.communicate(timeout=30)
    assert "is ready: name server 127.0.0.1:" in line
    assert f", store {tmp_path}, pid {process.pid}" in line
