"""The client commands against a running broker."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from tests.integration.cli_tools import COMMAND, complaint, ok, read_line, running, triomq
from tests.processes import Broker, start_triomq
from triomq.client import MessageExt, Responder
from triomq.client.sync import PushConsumer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for all tests of this file."""
    broker = start_triomq(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def namesrv(broker: Broker) -> str:
    return broker.namesrv


@pytest.fixture
def topic(namesrv: str) -> str:
    """A topic of one queue, so that order can be compared."""
    name = f"topic-{token_hex(4)}"
    ok("topic", "create", name, "--queues", "1", namesrv=namesrv)
    return name


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def unused_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


# --- produce and consume -------------------------------------------------------------------------------------


def test_a_full_disk_costs_a_group_no_message(namesrv: str, topic: str) -> None:
    """The messages have not failed: none of them is on its way to the dead letters."""
    ok("produce", topic, "--count", "100", namesrv=namesrv)
    command = [*COMMAND, "consume", topic, "--group", "full", "--timeout", "20", "--namesrv", namesrv]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr
    state = json.loads(ok("group", "show", "full", "--json", namesrv=namesrv))
    assert sum(queue["max_offset"] for queue in state["queues"] if queue["topic"] == "%RETRY%full") == 0
    assert ok("consume", topic, "--group", "full", "--count", "100", "--timeout", "20", namesrv=namesrv)


def test_lines_come_out_as_they_went_in(namesrv: str, topic: str) -> None:
    lines = b"one\n\ntw\xff\nthree"
    assert ok("produce", topic, namesrv=namesrv, stdin=lines).startswith("sent 3 messages, 11 bytes, in ")
    done = triomq("consume", topic, "--count", "3", namesrv=namesrv)
    assert (done.returncode, done.stdout) == (0, b"one\ntw\xff\nthree\n")


def test_the_summary_of_produce_is_one_object(namesrv: str, topic: str) -> None:
    words = ("produce", topic, "--count", "300", "--size", "100", "--batch", "7", "--in-flight", "3", "--json")
    (summary,) = objects(ok(*words, "--rate", "500/s", namesrv=namesrv))
    assert summary["seconds"] >= 0.5
    assert (summary["topic"], summary["sent"], summary["failed"], summary["bytes"]) == (topic, 300, 0, 30_000)
    assert summary["requests"] == 43
    assert 0 < summary["p50_ms"] <= summary["p99_ms"]
    shown = json.loads(ok("topic", "show", topic, "--json", namesrv=namesrv))
    assert shown["messages"] == 300


def test_messages_are_copied_from_topic_to_topic(namesrv: str, topic: str) -> None:
    words = ("--tag", "t", "--key", "k1", "--key", "k2", "--property", "color=red")
    ok("produce", topic, *words, namesrv=namesrv, stdin=b"text\n\xff\n")
    written = ok("consume", topic, "--json", "--count", "2", namesrv=namesrv)
    other = f"{topic}-copy"
    ok("produce", other, "--json-lines", namesrv=namesrv, stdin=written.encode())
    copies = objects(ok("consume", other, "--json", "--count", "2", namesrv=namesrv))
    wanted = ("body", "body_base64", "tags", "keys", "properties")
    assert sorted([[copy.get(name) for name in wanted] for copy in copies], key=str) == sorted(
        [[one.get(name) for name in wanted] for one in objects(written)], key=str
    )
    assert {copy["topic"] for copy in copies} == {other}


def test_tags_are_filtered(namesrv: str, topic: str) -> None:
    for tag in ("a", "b", "c"):
        ok("produce", topic, "--tag", tag, namesrv=namesrv, stdin=f"of {tag}\n".encode())
    assert ok("consume", topic, "--tag", "a || c", "--count", "2", namesrv=namesrv) == "of a\nof c\n"
    words = ("consume", topic, "--tag", "a || c", "--count", "2", "--group", f"group-{topic}")
    assert ok(*words, namesrv=namesrv) == "of a\nof c\n"


def test_consuming_starts_at_the_given_time(namesrv: str, topic: str) -> None:
    ok("produce", topic, namesrv=namesrv, stdin=b"old\n")
    (old,) = objects(ok("consume", topic, "--json", "--count", "1", namesrv=namesrv))
    after = datetime.fromtimestamp((old["stored_ms"] + 1) / 1000, UTC).isoformat()
    ok("produce", topic, namesrv=namesrv, stdin=b"new\n")
    assert ok("consume", topic, "--from", after, "--count", "1", namesrv=namesrv) == "new\n"
    assert ok("consume", topic, "--from", "-10m", "--count", "2", namesrv=namesrv) == "old\nnew\n"
    assert ok("consume", topic, "--from", "latest", "--timeout", "0.5", namesrv=namesrv) == ""


def test_consume_resumes_group_and_commits_printed_messages(namesrv: str, topic: str) -> None:
    ok("produce", topic, namesrv=namesrv, stdin=b"1\n2\n3\n4\n5\n")
    words = ("consume", topic, "--group", f"group-{topic}")
    assert ok(*words, "--count", "2", namesrv=namesrv) == "1\n2\n"
    assert ok(*words, "--count", "1", namesrv=namesrv) == "3\n"
    assert ok(*words, "--timeout", "1.5", namesrv=namesrv) == "4\n5\n"
    shown = json.loads(ok("group", "show", f"group-{topic}", "--topic", topic, "--json", namesrv=namesrv))
    assert [(row["committed_offset"], row["lag"]) for row in shown["queues"]] == [(5, 0)]


def test_orderly_members_follow_each_other_in_order(namesrv: str, topic: str) -> None:
    ok("produce", topic, namesrv=namesrv, stdin=b"1\n2\n3\n")
    words = ("consume", topic, "--group", f"group-{topic}", "--orderly")
    with running(*words, namesrv=namesrv) as process:
        assert [read_line(process) for _ in range(3)] == ["1\n", "2\n", "3\n"]
        ok("produce", topic, namesrv=namesrv, stdin=b"4\n")
        assert read_line(process) == "4\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == (b"", b"")
    ok("produce", topic, namesrv=namesrv, stdin=b"5\n")
    assert ok(*words, "--count", "1", namesrv=namesrv) == "5\n"


def test_broadcasting_members_get_all_messages_and_resume(
    namesrv: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C.2 scenario 38, with processes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    ok("produce", topic, namesrv=namesrv, stdin=b"1\n2\n")
    group = f"group-{topic}"
    words = ("consume", topic, "--group", group, "--broadcast")
    for other in ((), ("--instance-name", "other")):
        assert ok(*words, *other, "--count", "2", namesrv=namesrv) == "1\n2\n"
    ok("produce", topic, namesrv=namesrv, stdin=b"3\n")
    with running(*words, namesrv=namesrv) as process:
        assert read_line(process) == "3\n"
        assert "instance_name" in complaint(1, *words, namesrv=namesrv)
    assert ok(*words, "--instance-name", "other", "--count", "1", namesrv=namesrv) == "3\n"
    assert len(list(tmp_path.glob(f".rocketmq_offsets/*/{group}/offsets.json"))) == 2


def test_count_not_reached_is_a_failure(namesrv: str, topic: str) -> None:
    ok("produce", topic, namesrv=namesrv, stdin=b"1\n")
    done = triomq("consume", topic, "--count", "2", "--timeout", "0.5", namesrv=namesrv)
    assert (done.returncode, done.stdout) == (1, b"1\n")
    assert done.stderr == b"triomq consume: only 1 of 2 messages arrived, none in the last 0.5 s\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("in_group", [True, False])
def test_consume_commits_offsets_on_signal(
    namesrv: str, topic: str, number: signal.Signals, code: int, in_group: bool
) -> None:
    group = f"group-{topic}"
    with running("consume", topic, *(("--group", group) if in_group else ()), namesrv=namesrv) as process:
        ok("produce", topic, namesrv=namesrv, stdin=b"1\n2\n")
        assert read_line(process) + read_line(process) == "1\n2\n"
        process.send_signal(number)
        rest, errors = process.communicate(timeout=30)
        assert (process.returncode, rest, errors) == (code, b"", b"")
    if in_group:
        shown = json.loads(ok("group", "show", group, "--topic", topic, "--json", namesrv=namesrv))
        assert (shown["lag"], shown["members"]) == (0, [])


def test_produce_prints_its_summary_on_signal(namesrv: str, topic: str) -> None:
    with running("produce", topic, "--json", namesrv=namesrv) as process:
        assert process.stdin is not None
        process.stdin.write(b"1\n2\n")
        process.stdin.flush()
        assert ok("consume", topic, "--count", "2", namesrv=namesrv) == "1\n2\n"
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)  # stdin stays open: it is the signal that ends it
        written, errors = process.communicate()
        assert (process.returncode, errors) == (130, b"")
        assert json.loads(written)["sent"] == 2


def test_consume_exits_silently_when_reader_closes_pipe(namesrv: str, topic: str) -> None:
    ok("produce", topic, "--count", "5000", "--size", "1000", namesrv=namesrv)
    with running("consume", topic, namesrv=namesrv) as process:
        read_line(process)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=30) == 141
        assert process.stderr.read() == b""


def answer(message: MessageExt) -> bytes | None:
    return None if message.body == b"silence" else b"re: " + message.body + (message.tags or "").encode()


def test_request_writes_the_reply(namesrv: str, topic: str) -> None:
    with PushConsumer(
        f"group-{topic}", namesrv=namesrv, on_message=Responder(answer), subscriptions={topic: "*"}
    ) as consumer:
        consumer.wait_assigned()
        ask = ("request", topic, "what?", "--timeout", "20")
        assert ok(*ask, namesrv=namesrv) == "re: what?\n"
        assert json.loads(ok(*ask, "--tag", "!", "--json", namesrv=namesrv))["body"] == "re: what?!"
        assert "no reply" in complaint(3, "request", topic, "silence", "--timeout", "0.5", namesrv=namesrv)


# --- topics and groups ---------------------------------------------------------------------------------------


def test_topics_are_created_listed_shown_and_deleted(namesrv: str) -> None:
    name = f"topic-{token_hex(4)}"
    text = ok("topic", "create", name, "--queues", "3", "--permission", "r", "--dry-run", namesrv=namesrv)
    assert text == f"topic {name} would be created: 3 queues on each broker, permission r\n"
    assert name not in ok("topic", "list", namesrv=namesrv)
    text = ok("topic", "create", name, "--queues", "3", "--permission", "r", namesrv=namesrv)
    assert text == f"topic {name} created: 3 queues on each broker, permission r\n"
    (shown,) = objects(ok("topic", "show", name, "--json", namesrv=namesrv))
    (there,) = shown["brokers"]
    assert (there["permission"], there["read_queues"], there["broker"]) == ("r", 3, "broker-a")
    assert [queue["queue_id"] for queue in shown["queues"]] == [0, 1, 2]
    result = json.loads(ok("topic", "create", name, "--json", namesrv=namesrv))
    assert result == {"topic": name, "queues": 3, "permission": "r", "dry_run": False, "existed": True}
    assert "topic update" in complaint(2, "topic", "create", name, "--queues", "4", namesrv=namesrv)
    assert {"topic": name, "kind": "normal"} in objects(ok("topic", "list", "--json", namesrv=namesrv))
    assert ok("topic", "delete", name, "--dry-run", namesrv=namesrv) == f"topic {name} would be deleted\n"
    assert ok("topic", "delete", name, namesrv=namesrv) == f"topic {name} deleted\n"
    assert name not in ok("topic", "list", "--all", namesrv=namesrv)


def test_a_topic_update_changes_the_given_settings(namesrv: str, topic: str) -> None:
    words = ("topic", "update", topic)
    text = "broker-a: read_queues 1 -> 2, write_queues 1 -> 3"
    odd = f"{text}; nobody consumes what is sent to queue 2: more write than read queues\n"
    assert ok(*words, "--queues", "3", "--read-queues", "2", "--dry-run", namesrv=namesrv) == odd
    assert ok(*words, "--queues", "3", "--read-queues", "2", namesrv=namesrv) == odd
    assert ok(*words, "--permission", "r", "--write-queues", "2", namesrv=namesrv) == (
        "broker-a: write_queues 3 -> 2, permission rw -> r\n"
    )
    assert ok(*words, "--permission", "r", namesrv=namesrv) == "broker-a: nothing to change\n"
    result = json.loads(ok(*words, "--permission", "rw", "--json", namesrv=namesrv))
    after = {"read_queues": 2, "write_queues": 2, "permission": "rw", "order": False, "type": None}
    before = {**after, "permission": "r"}
    assert result["brokers"] == [{"broker": "broker-a", "before": before, "after": after, "hidden_messages": 0}]
    ok("produce", topic, namesrv=namesrv, stdin=b"".join(b"%d\n" % n for n in range(8)))
    assert "hide messages from consumers: 4 (broker-a 4)" in complaint(2, *words, "--queues", "1", namesrv=namesrv)
    text = ok(*words, "--queues", "1", "--force", namesrv=namesrv)
    assert text == "broker-a: read_queues 2 -> 1, write_queues 2 -> 1; hidden from consumers: 4 messages\n"
    assert "--queues 8" in complaint(2, *words, namesrv=namesrv)
    assert "'broker-x'; its brokers: broker-a" in complaint(
        1, *words, "--queues", "2", "--broker", "broker-x", namesrv=namesrv
    )
    done = triomq(*words, "--type", "fifo", namesrv=namesrv)
    assert (done.returncode, b"do not keep --order or --type: broker-a" in done.stderr) == (1, True)


def test_system_topics_are_listed_on_request(namesrv: str) -> None:
    assert "TBW102" not in ok("topic", "list", namesrv=namesrv)
    assert {"topic": "TBW102", "kind": "system"} in objects(ok("topic", "list", "--all", "--json", namesrv=namesrv))


def test_group_shows_members_subscription_and_lag(namesrv: str, topic: str) -> None:
    group = f"group-{topic}"
    ok("produce", topic, "--tag", "a", namesrv=namesrv, stdin=b"1\n")
    with running("consume", topic, "--group", group, "--tag", "a || b", namesrv=namesrv) as process:
        assert read_line(process) == "1\n"
        shown = json.loads(ok("group", "show", group, "--json", namesrv=namesrv))
        (member,) = shown["members"]
        assert f"@{process.pid}" in member["client_id"]
        assert {"topic": topic, "expression": "a || b"} in shown["subscriptions"]
        assert f"{group}" in ok("group", "list", namesrv=namesrv)
        assert "1 member, lag" in ok("group", "show", group, namesrv=namesrv)
        assert "1 member online" in complaint(2, "group", "delete", group, namesrv=namesrv)
        assert f"; similar groups: {group}" in complaint(1, "group", "show", f"{group}s", namesrv=namesrv)
        words = ("group", "reset-offset", group, "--topic", topic, "--to", "2999-01-01T00:00")
        assert "is in the future" in complaint(2, *words, namesrv=namesrv)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    ok("produce", topic, "--tag", "a", namesrv=namesrv, stdin=b"2\n3\n")
    (row,) = [row for row in objects(ok("group", "list", "--json", namesrv=namesrv)) if row["group"] == group]
    assert row == {"group": group, "members": 0, "lag": 2}


def test_groups_are_created_changed_and_deleted(namesrv: str) -> None:
    group = f"group-{token_hex(4)}"
    assert "would be created" in ok("group", "create", group, "--dry-run", namesrv=namesrv)
    assert ok("group", "create", group, namesrv=namesrv) == f"group {group} created: 16 retries\n"
    text = ok("group", "create", group, "--retries", "1", "--disable", namesrv=namesrv)
    assert text == f"group {group} changed: 1 retry, consuming disabled\n"
    assert ok("group", "create", group, namesrv=namesrv) == text  # an option that is not given changes nothing
    text = ok("group", "create", group, "--enable", namesrv=namesrv)
    assert text == f"group {group} changed: 1 retry\n"
    (row,) = [row for row in objects(ok("group", "list", "--json", namesrv=namesrv)) if row["group"] == group]
    assert row == {"group": group, "members": 0, "lag": 0}
    result = json.loads(ok("group", "delete", group, "--dry-run", "--json", namesrv=namesrv))
    assert result == {"group": group, "keep_offsets": False, "dry_run": True}
    assert ok("group", "delete", group, namesrv=namesrv) == f"group {group} deleted\n"
    assert "was not created" in complaint(1, "group", "delete", group, namesrv=namesrv)


def test_a_delay_above_the_limit_names_the_option(namesrv: str, topic: str) -> None:
    line = complaint(1, "produce", topic, "--delay", "4d", namesrv=namesrv, stdin=b"1\n")
    assert "line 1: " in line
    assert "--timer-max-delay" in line


def test_lines_keep_their_order_in_each_queue(namesrv: str) -> None:
    name = f"topic-{token_hex(4)}"
    ok("topic", "create", name, "--queues", "3", namesrv=namesrv)
    text = ok("produce", name, "--batch", "50", namesrv=namesrv, stdin=b"".join(b"%d\n" % n for n in range(5000)))
    assert text.startswith("sent 5000 messages")
    queues: dict[int, list[int]] = {}
    for found in objects(ok("consume", name, "--json", "--count", "5000", namesrv=namesrv)):
        queues.setdefault(found["queue_id"], []).append(int(found["body"]))
    assert sorted(number for queue in queues.values() for number in queue) == list(range(5000))
    assert [sorted(queue) for queue in queues.values()] == list(queues.values())
    assert len(queues) == 3


def test_ping_shows_versions_and_addresses(broker: Broker) -> None:
    (found,) = objects(ok("ping", "--json", "--namesrv", broker.namesrv))
    (told,) = found["brokers"]
    assert (found["healthy"], found["namesrv"], told["address"]) == (True, broker.namesrv, broker.broker)
    assert told["latency_ms"] > 0
    assert broker.broker in ok("ping", namesrv=broker.namesrv)


def test_ping_works_despite_unreachable_advertised_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # no server answers at this address of the loopback network
    with start_triomq(tmp_path, "--listen", f"127.0.0.1:{port}", "--advertise", "127.0.0.99") as broker:
        (found,) = objects(ok("ping", "--json", namesrv=broker.namesrv))
        (told,) = found["brokers"]
        assert (found["healthy"], told["address"]) == (True, f"127.0.0.99:{port}")
        assert f"answers at 127.0.0.1:{port} only" in told["note"]
        ok("produce", "orders", "--as-dialled", namesrv=broker.namesrv, stdin=b"1\n")
        line = complaint(3, "produce", "orders", namesrv=broker.namesrv, stdin=b"1\n")
        assert f"127.0.0.99:{port}" in line
        assert "--advertise" in line


# --- complaints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("ping",),
        ("topic", "list"),
        ("topic", "show", "orders"),
        ("group", "list"),
        ("produce", "orders"),
        ("consume", "orders"),
    ],
)
def test_unreachable_name_server_is_named(words: tuple[str, ...]) -> None:
    address = unused_address()
    line = complaint(3, *words, namesrv=address, stdin=b"1\n")
    assert line.startswith(f"triomq {' '.join(words[:2]) if words[0] in ('topic', 'group') else words[0]}: ")
    assert address in line


def test_a_server_that_speaks_another_protocol_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with running("ping", namesrv=address) as process:
            peer, _ = server.accept()
            with peer:
                peer.recv(1)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                _, errors = process.communicate(timeout=30)
            assert process.returncode == 3
    assert errors.count(b"\n") == 1
    assert address.encode() in errors


def test_missing_topic_suggests_names_and_is_not_created(namesrv: str, topic: str) -> None:
    typo = topic[:-1] + "_"
    for words in (("consume", typo), ("topic", "show", typo), ("topic", "delete", typo)):
        line = complaint(1, *words, namesrv=namesrv)
        assert topic in line
        assert typo in line
        assert ("create" in line) == (words[1] != "delete")
    assert typo not in ok("topic", "list", namesrv=namesrv)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("produce", "no spaces"), "letters"),
        (("topic", "create", "x" * 128), "127"),
        (("group", "create", "x" * 121), "120"),
        (("consume", "orders", "--group", "bad group"), "letters"),
        (("ping", "--namesrv", "http://x"), "scheme"),
        (("produce", "orders", "--json-lines"), "line 1: "),
    ],
)
def test_wrong_names_and_input_exit_2(namesrv: str, words: tuple[str, ...], told: str) -> None:
    assert told in complaint(2, *words, namesrv=namesrv, stdin=b"{}\n")


def test_bad_line_reports_messages_sent_before_it(namesrv: str, topic: str) -> None:
    lines = b'{"body":"1"}\n{"bodi":"2"}\n{"body":"3"}\n'
    done = triomq("produce", topic, "--json-lines", "--json", namesrv=namesrv, stdin=lines)
    assert done.returncode == 2
    summary = json.loads(done.stdout)
    assert (summary["sent"], summary["failed"]) == (1, 1)
    done = triomq("produce", topic, "--json-lines", "--json", "--keep-going", namesrv=namesrv, stdin=lines)
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["sent"], summary["failed"]) == (2, 2, 1)


def catches(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Whether the process has a handler for a signal."""
    status = Path("/proc", str(process.pid), "status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_a_second_signal_ends_a_command_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with running("produce", "orders", "--count", "1", namesrv=address) as process:
            peer, _ = server.accept()
            with peer:
                peer.recv(1)  # the request, which gets no answer
                process.send_signal(signal.SIGINT)
                while catches(process, signal.SIGINT):
                    pass  # until it has seen the first
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=30) == -signal.SIGINT


# --- resets, dead letters, brokers ---------------------------------------------------------------------------


def test_offsets_of_a_group_without_members_are_reset(namesrv: str, topic: str) -> None:
    group = f"group-{topic}"
    ok("produce", topic, namesrv=namesrv, stdin=b"1\n2\n3\n")
    ok("consume", topic, "--group", group, "--count", "3", namesrv=namesrv)
    reset = ("group", "reset-offset", group, "--topic", topic, "--to")
    (queue,) = json.loads(ok(*reset, "earliest", "--dry-run", "--json", namesrv=namesrv))["queues"]
    assert queue == {"broker": "broker-a", "queue_id": 0, "before": 3, "after": 0}
    assert "resumes there in topic" in ok(*reset, "-1h", namesrv=namesrv)
    assert ok("consume", topic, "--group", group, "--count", "3", namesrv=namesrv) == "1\n2\n3\n"
    assert "does not exist" in complaint(1, "group", "reset-offset", "nobody", *reset[3:], "latest", namesrv=namesrv)


def test_interrupted_redrive_leaves_rest_for_next_run(namesrv: str, topic: str) -> None:
    group, letters = f"group-{topic}", 3000
    ok("topic", "create", f"%DLQ%{group}", "--queues", "1", namesrv=namesrv)
    ok("consume", topic, "--group", group, "--timeout", "0.1", namesrv=namesrv)  # makes the group
    dead = json.dumps({"body": "x", "keys": ["k"]}).encode() + b"\n"
    ok("produce", f"%DLQ%{group}", "--json-lines", namesrv=namesrv, stdin=dead)
    assert objects(ok("dlq", "redrive", group, "--json", namesrv=namesrv)) == [
        {"group": group, "dry_run": False, "sent": 0, "skipped": 1, "left": 0}
    ]
    ok("produce", f"%DLQ%{group}", "--count", str(letters), "--batch", "100", namesrv=namesrv)
    with running("dlq", "redrive", group, "--json", namesrv=namesrv) as process:
        while process.poll() is None and not catches(process, signal.SIGTERM):
            pass  # until it listens to signals
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
    row = next(row for row in objects(ok("dlq", "list", "--json", namesrv=namesrv)) if row["group"] == group)
    done = json.loads(ok("dlq", "redrive", group, "--json", namesrv=namesrv))
    assert done["skipped"] == letters + 1 - row["redriven"]


def test_dead_letters_are_listed(namesrv: str, topic: str) -> None:
    assert "no group has a similar name" in complaint(1, "dlq", "list", "nobody", namesrv=namesrv)
    assert "no group has a similar name" in complaint(1, "dlq", "redrive", "nobody", namesrv=namesrv)
    group = f"group-{topic}"
    ok("consume", topic, "--group", group, "--timeout", "0.1", namesrv=namesrv)
    assert ok("dlq", "list", group, "--json", namesrv=namesrv) == ""
    assert "0 dead letters of group" in ok("dlq", "redrive", group, namesrv=namesrv)
    ok("produce", f"%DLQ%{group}", "--tag", "t", namesrv=namesrv, stdin=b"one\ntwo\n")  # in any queues
    listed = objects(ok("dlq", "list", group, "--json", namesrv=namesrv))
    assert sorted(each["body"] for each in listed) == ["one", "two"]
    assert [(each["original_topic"], each["redriven"]) for each in listed] == [(None, False)] * 2
    assert objects(ok("dlq", "list", group, "--limit", "1", "--json", namesrv=namesrv)) == listed[:1]
    place = ":".join(str(listed[0][field]) for field in ("broker", "queue_id", "queue_offset"))
    chosen = objects(ok("dlq", "redrive", group, "--at", place, "--json", namesrv=namesrv))
    assert [(each["sent"], each["skipped"]) for each in chosen] == [(0, 1)]  # its original topic is unknown
    assert "leave out --again" in complaint(2, "dlq", "redrive", group, "--at", place, "--again", namesrv=namesrv)
    assert "write BROKER:QUEUE:OFFSET" in complaint(2, "dlq", "redrive", group, "--at", "17", namesrv=namesrv)
    assert "REDRIVEN" in ok("dlq", "list", group, namesrv=namesrv)
    assert group in ok("dlq", "list", namesrv=namesrv)


def test_broker_status_shows_settings_and_counters(broker: Broker, namesrv: str) -> None:
    (of_all,) = objects(ok("broker", "status", "--json", namesrv=namesrv))
    (of_one,) = objects(ok("broker", "status", broker.broker, "--json", namesrv="127.0.0.1:1"))
    assert of_all["address"] == of_one["address"] == broker.broker
    assert (of_one["broker"], of_one["durability"]) == ("broker-a", "async")
    assert Path(of_one["store"]).is_dir()
    assert of_one["connections"] >= 1
    assert "async" in ok("broker", "status", namesrv=namesrv)
    complaint(3, "broker", "status", unused_address(), namesrv=namesrv)


def test_broker_set_changes_all_settings_or_none(namesrv: str, broker: Broker) -> None:
    change = {"address": broker.broker, "settings": {"transactionCheckMax": "20"}}
    (changed,) = objects(ok("broker", "set", "transactionCheckMax=20", "--json", namesrv=namesrv))
    assert changed == change
    assert "changed at" in ok("broker", "set", "transactionCheckMax=15", "--broker", broker.broker, namesrv=namesrv)
    assert "storePathRootDir cannot be changed" in complaint(
        1, "broker", "set", "transactionCheckMax=21", "storePathRootDir=/", namesrv=namesrv
    )
    assert "NAME=VALUE" in complaint(2, "broker", "set", "transactionCheckMax", namesrv=namesrv)
