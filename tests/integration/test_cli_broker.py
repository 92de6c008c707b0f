"""``triomq broker`` and ``triomq namesrv`` as processes: ready lines, ends, complaints."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.cli_tools import complaint, ok, read_line, running
from tests.processes import ANY_DISK, start_triomq

ON_FREE_PORTS = ("broker", "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", *ANY_DISK)
NAME_SERVER = ("namesrv", "--listen", "127.0.0.1:0")


def test_ready_line_format_is_stable(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running(*ON_FREE_PORTS, "--store", str(store), "--json") as broker:
        line = read_line(broker)
        broker.terminate()
        rest, _ = broker.communicate(timeout=30)
    address = r"127\.0\.0\.1:[1-9]\d+"
    assert re.fullmatch(
        rf'{{"event":"ready","broker":"({address})","namesrv":"({address})",'
        rf'"store":"{store}","durability":"async","role":"async-master","metrics":"({address})","pid":{broker.pid}}}\n',
        line,
    )
    assert rest == b""


def test_the_readable_line_names_the_durability(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(f"flushDiskType = SYNC_FLUSH\nstorePathRootDir = {tmp_path / 's'}\n")
    with running(*ON_FREE_PORTS, "--config", str(config)) as broker:
        line = read_line(broker)
        broker.terminate()
        broker.communicate(timeout=30)
    assert f"store {tmp_path / 's'}, durability sync (acknowledged messages are on the disk), pid {broker.pid}" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_despite_a_held_pull(tmp_path: Path, number: signal.Signals) -> None:
    with running(*ON_FREE_PORTS, "--store", str(tmp_path / "s"), "--json") as broker:
        namesrv = json.loads(read_line(broker))["namesrv"]
        ok("produce", "orders", namesrv=namesrv, stdin=b"one\n")
        with running("consume", "orders", "--group", "g", namesrv=namesrv) as consumer:
            assert read_line(consumer) == "one\n"
            broker.send_signal(number)
            broker.communicate(timeout=10)  # the consumer's pull would be held for 15 s
            assert broker.returncode == 0


def test_second_broker_on_a_store_names_owner(tmp_path: Path) -> None:
    first = start_triomq(tmp_path)
    line = complaint(1, *ON_FREE_PORTS, "--store", first.store, "--log-level", "warning")
    assert first.store in line
    assert str(first.pid) in line
    first.stop()


def test_a_port_in_use_leaves_no_new_store(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        for words in (
            (*ON_FREE_PORTS, "--namesrv-listen"),
            (*ON_FREE_PORTS, "--admin-listen"),
            (*ON_FREE_PORTS, "--listen"),
            ("namesrv", "--listen"),
        ):
            line = complaint(2, *words, at, "--store", str(tmp_path / "store"), "--log-level", "error")
            assert "is in use" in line
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("path", [__file__, "/proc/triomq"], ids=["a file", "not even for root"])
def test_store_that_is_no_directory_is_named(path: str) -> None:
    assert path in complaint(1, *ON_FREE_PORTS, "--store", path, "--log-level", "warning")


def test_each_listener_advertises_its_address(tmp_path: Path) -> None:
    listener = "outside,namesrv=127.0.0.1:0,broker=127.0.0.1:0,advertise=localhost"
    with running(*ON_FREE_PORTS, "--store", str(tmp_path / "s"), "--json", "--listener", listener) as broker:
        ready = json.loads(read_line(broker))
        outside = ready["listeners"]["outside"]
        addresses = []
        for namesrv in (ready["namesrv"], outside["namesrv"]):
            ok("produce", "orders", namesrv=namesrv, stdin=b"one\n")
            (told,) = json.loads(ok("ping", "--json", namesrv=namesrv))["brokers"]
            addresses.append(told["address"])
    assert addresses == [ready["broker"], outside["broker"].replace("127.0.0.1", "localhost")]


def test_readable_line_names_ports_of_every_listener(tmp_path: Path) -> None:
    listener = "outside,namesrv=127.0.0.1:0,broker=127.0.0.1:0"
    with running(*ON_FREE_PORTS, "--store", str(tmp_path / "s"), "--listener", listener) as broker:
        line = read_line(broker)
    assert re.search(
        r"; listener outside: broker 127\.0\.0\.1:[1-9]\d+, name server 127\.0\.0\.1:[1-9]\d+; metrics http", line
    )


def test_sigint_ignored_at_start_stays_ignored(tmp_path: Path) -> None:
    options = " ".join((*ON_FREE_PORTS, "--store", str(tmp_path / "s")))
    command = f'trap "" INT; exec {sys.executable} -m triomq.cli {options}'
    with subprocess.Popen(("sh", "-c", command), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert b"is ready" in broker.stdout.readline()
        broker.send_signal(signal.SIGINT)
        broker.send_signal(signal.SIGTERM)
        _, log = broker.communicate(timeout=30)
    assert broker.returncode == 0
    assert b"stopping signal=SIGTERM" in log


def test_sighup_reopens_the_log_file(tmp_path: Path) -> None:
    path = tmp_path / "triomq.log"
    broker = start_triomq(tmp_path, "--log-file", str(path), "--log-format", "json")
    path.rename(tmp_path / "old.log")
    broker.process.send_signal(signal.SIGHUP)
    while not path.exists() or not path.read_text():
        time.sleep(0.01)
    broker.stop()
    assert broker.log.read_text() == ""
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert (events[0], events[-1]) == ("log-file-reopened", "stopped")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_prints_address_and_ends_on_signal(tmp_path: Path, number: signal.Signals) -> None:
    with running(*NAME_SERVER, "--store", str(tmp_path), "--metrics", "off", "--json") as process:
        ready = json.loads(read_line(process))
        assert "metrics" not in ready
        assert (ready["event"], ready["store"], ready["pid"]) == ("ready", str(tmp_path), process.pid)
        assert json.loads(ok("topic", "list", "--json", namesrv=ready["namesrv"]) or "[]") == []
        process.send_signal(number)
        rest, _ = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, b"")


def test_ready_line_of_name_server_names_folder(tmp_path: Path) -> None:
    with running(*NAME_SERVER, "--store", str(tmp_path)) as process:
        line = read_line(process)
        process.terminate()
        process.communicate(timeout=30)
    assert "is ready: name server 127.0.0.1:" in line
    assert f", store {tmp_path}, pid {process.pid}" in line
