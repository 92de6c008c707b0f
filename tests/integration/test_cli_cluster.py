"""``triomq cluster`` as processes: it begins as one, and ends as one."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_tools import LIMIT_S, complaint, ok, read_line, running
from tests.processes import ANY_DISK

FREE = ("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0")


@contextmanager
def cluster(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    with running("cluster", *FREE, "--store", str(folder), "--json", *words) as process:
        yield process, json.loads(read_line(process))


def broker_pids(process: subprocess.Popen[bytes]) -> list[int]:
    children = (path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/children"))
    return [int(pid) for text in children for pid in text.split()]


def wait_ended(pids: list[int]) -> None:
    """Wait for processes that are not our children."""
    deadline = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_brokers_share_topics_and_end_with_it(tmp_path: Path, number: signal.Signals) -> None:
    with cluster(tmp_path, "--brokers", "3", "--", "--durability", "sync", *ANY_DISK) as (process, ready):
        assert list(ready["brokers"]) == list(ready["metrics"]) == ["broker-a", "broker-b", "broker-c"]
        assert len(set(ready["metrics"].values())) == 3
        namesrv = ready["namesrv"]
        ok("topic", "create", "T", "--queues", "1", namesrv=namesrv)
        ok("produce", "T", "--count", "6", namesrv=namesrv)
        shown = json.loads(ok("topic", "show", "T", "--json", namesrv=namesrv))
        assert {queue["broker"] for queue in shown["queues"]} == set(ready["brokers"])
        pids = broker_pids(process)
        process.send_signal(number)
        rest, log = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, rest) == (0, b"")
    assert len(pids) == 3
    wait_ended(pids)
    assert b"unregistered" not in log
    assert all("stopped" in (tmp_path / f"{name}.log").read_text() for name in ready["brokers"])


def test_dead_broker_ends_cluster_with_error(tmp_path: Path) -> None:
    with cluster(tmp_path) as (process, _):
        pids = broker_pids(process)
        os.kill(pids[1], signal.SIGKILL)
        _, log = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert log.decode().splitlines()[-1].startswith("triomq cluster: broker-")
    assert b" ended with SIGKILL; its log is " in log
    wait_ended(pids)


def test_brokers_end_in_order_when_it_is_killed(tmp_path: Path) -> None:
    with cluster(tmp_path) as (process, ready):
        pids = broker_pids(process)
        process.kill()
        wait_ended(pids)
    assert all("stopping reason=stdin ended" in (tmp_path / f"{name}.log").read_text() for name in ready["brokers"])


def test_broker_that_cannot_start_ends_cluster(tmp_path: Path) -> None:
    (tmp_path / "broker-b").touch()  # no folder
    with running("cluster", *FREE, "--store", str(tmp_path)) as process:
        rest, log = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, rest) == (1, b"")
    assert "broker-b ended with exit code 1" in log.decode().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--brokers", "27"), "at most 26"),
        (("--", "--store", "x"), "--store: it differs from broker to broker"),
        (("--", "status"), "only options of triomq broker"),
        (("--", "--durability", "none"), "triomq broker: argument --durability"),
        (("--listen", "0.0.0.0:0", "--namesrv-listen", "0.0.0.0:0"), "--insecure"),
    ],
)
def test_impossible_clusters_are_refused(tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    assert text in complaint(2, "cluster", "--store", str(tmp_path), *words)
