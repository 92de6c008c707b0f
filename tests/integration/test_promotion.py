"""A pair as processes: the master is killed, and ``triomq replica promote`` makes the slave the master."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_tools import complaint, ok
from tests.processes import ANY_DISK, Broker, start_member, start_name_server

MASTER = ("--ha-listen", "127.0.0.1:0")
SLAVE = (*MASTER, "--role", "slave", "--broker-id", "1")


def status(namesrv: str) -> dict[int, dict[str, Any]]:
    """Return the output of ``replica status``, by broker id."""
    lines = map(json.loads, ok("replica", "status", "--json", namesrv=namesrv).splitlines())
    return {line["broker_id"]: line for line in lines}


def has_copied(namesrv: str) -> Callable[[], bool]:
    def check() -> bool:
        found = status(namesrv)
        return bool(found.keys() == {0, 1} and found[1]["lag_bytes"] == 0 and found[1]["end"])

    return check


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


@pytest.mark.timeout(300)
def test_slave_replaces_killed_master_for_good(tmp_path: Path) -> None:
    with ExitStack() as stack:
        namesrv = stack.enter_context(start_name_server(tmp_path / "n")).namesrv

        def start(name: str, *options: str) -> Broker:
            return stack.enter_context(start_member(tmp_path / name, "pair", namesrv, *options))

        master, slave = start("one", *MASTER), start("two", *SLAVE)
        ok("produce", "orders", namesrv=namesrv, stdin=b"1\n2\n")
        wait_until(has_copied(namesrv))
        assert f"its master {master.ha} lives" in complaint(1, "replica", "promote", namesrv=namesrv)
        master.kill()
        promoted = json.loads(ok("replica", "promote", "--json", "--broker", slave.broker, namesrv=namesrv))
        assert promoted == {"broker": slave.broker, "role": "async-master"}
        ok("produce", "orders", namesrv=namesrv, stdin=b"3\n")

        slave.kill()
        second = start("two", *SLAVE)  # as a supervisor does
        assert status(namesrv)[0]["address"] == second.broker
        former = ("broker", "--listen", "127.0.0.1:0", *ANY_DISK, "--broker-name", "pair", "--register", namesrv)
        text = complaint(2, *former, "--store", master.store, *MASTER, "--log-level", "error")
        assert f"{second.broker}, which was promoted at" in text
        assert "start this broker as its slave" in text
        start("one", *SLAVE)
        wait_until(has_copied(namesrv))
        consumed = ok("consume", "orders", "--group", "g", "--count", "3", namesrv=namesrv)
        assert sorted(consumed.split()) == ["1", "2", "3"]
