"""``triomq dashboard`` and ``triomq broker --dashboard`` as processes: ready line, signals, taken ports, log."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

from tests.integration.cli_tools import LIMIT_S, read_line, running, triomq
from tests.processes import ANY_DISK
from triomq.testing import RunningBroker

ANY_PORTS = ("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--metrics", "off")


def ready_line(process: subprocess.Popen[bytes]) -> dict[str, str]:
    ready: dict[str, str] = json.loads(read_line(process))
    return ready


def status_of(link: str) -> int:
    try:
        with urllib.request.urlopen(link, timeout=LIMIT_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def wait_closed(link: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            status_of(link)
        except (URLError, ConnectionError):
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_dashboard_and_log_has_no_token(rocketmq: RunningBroker, number: signal.Signals) -> None:
    words = ("dashboard", "--listen", "127.0.0.1:0", "--log-level", "debug", "--json")
    with running(*words, namesrv=rocketmq.namesrv) as process:
        link = ready_line(process)["dashboard"]
        page, _, token = link.partition("?token=")
        assert [status_of(page), status_of(link), status_of(link), status_of(page + "nothing")] == [401, 200, 401, 404]
        address = page.removeprefix("http://").removesuffix("/").split(":")
        with socket.create_connection((address[0], int(address[1]))) as half:  # a request that never ends
            half.sendall(b"GET /?token=" + token.encode() + b" HTTP/1.1\r\nhost: x")
            with socket.socket() as deaf:  # it never reads
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect((address[0], int(address[1])))
                deaf.sendall(b"GET /static/htmx-2.0.11.min.js HTTP/1.1\r\nhost: x\r\n\r\n" * 500)
                assert status_of(page) == 401
                process.send_signal(number)
                rest, log = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, rest) == (0, b"")
    assert b"Traceback" not in log
    assert token.encode() not in log


def test_taken_port_is_refused_or_another_one_is_used(rocketmq: RunningBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = triomq("dashboard", "--listen", address, namesrv=rocketmq.namesrv)
        assert done.returncode == 2
        assert done.stderr.decode() == f"triomq dashboard: cannot listen on {address}: Address already in use\n"
    with running("dashboard", "--json", namesrv=rocketmq.namesrv) as first:
        one = ready_line(first)["dashboard"]
        with running("dashboard", "--json", namesrv=rocketmq.namesrv) as second:
            other = ready_line(second)["dashboard"]
            assert one.partition("?")[0] != other.partition("?")[0]
            assert status_of(one) == status_of(other) == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_dashboard_of_broker_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    words = ("broker", "--dashboard", "--json", "--store", str(tmp_path), *ANY_PORTS, *ANY_DISK)
    with running(*words) as process:
        link = ready_line(process)["dashboard"]
        assert status_of(link) == 200
        os.kill(process.pid, number)
        process.wait(LIMIT_S)
        wait_closed(link)
    assert process.returncode == (0 if number is signal.SIGTERM else -signal.SIGKILL)
