"""``triomq message`` against a running broker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cli_tools import complaint, ok
from tests.processes import Broker, start_triomq


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a topic of three queues and 200 messages, every tenth with two keys."""
    broker = start_triomq(tmp_path_factory.mktemp("broker"))
    ok("topic", "create", "orders", "--queues", "3", namesrv=broker.namesrv)
    for begin in range(0, 200, 100):
        lines = [
            {"body": f"order {number}", "tags": "paid", "keys": [f"o-{number}", "tens"] if number % 10 == 0 else []}
            for number in range(begin, begin + 100)
        ]
        text = "\n".join(map(json.dumps, lines)).encode()
        ok("produce", "orders", "--json-lines", namesrv=broker.namesrv, stdin=text)
    yield broker
    broker.stop()


@pytest.fixture
def namesrv(broker: Broker) -> str:
    return broker.namesrv


def find(namesrv: str, *words: str) -> list[dict[str, Any]]:
    return find_in("orders", namesrv, *words)


def find_in(topic: str, namesrv: str, *words: str) -> list[dict[str, Any]]:
    text = ok("message", "find", "--topic", topic, "--json", *words, namesrv=namesrv)
    return [json.loads(line) for line in text.splitlines()]


def test_messages_are_found_by_key(namesrv: str) -> None:
    (found,) = find(namesrv, "--key", "o-50")
    assert (found["body"], found["keys"], found["tags"]) == ("order 50", ["o-50", "tens"], "paid")
    newest = [one["body"] for one in find(namesrv, "--key", "tens", "--count", "2")]
    assert len(newest) == 2
    assert set(newest) <= {f"order {number}" for number in range(100, 200, 10)}  # queues have no common order
    assert find(namesrv, "--key", "o-51") == []


def test_messages_are_found_and_shown_by_their_ids(namesrv: str) -> None:
    (one,) = find(namesrv, "--key", "o-50")
    assert find(namesrv, "--unique-key", one["message_id"]) == [one]
    shown = ok("message", "show", one["offset_message_id"], "--json", namesrv=namesrv)
    assert json.loads(shown) | {"broker": one["broker"]} == one
    shown = ok("message", "show", one["message_id"], "--topic", "orders", "--json", namesrv=namesrv)
    assert json.loads(shown) == one
    text = ok("message", "show", one["message_id"], "--topic", "orders", namesrv=namesrv)
    assert f"message id         {one['message_id']}\n" in text
    assert "property KEYS      o-50 tens\n" in text
    assert text.endswith("order 50\n")


def test_messages_are_found_by_time(namesrv: str) -> None:
    everything = find(namesrv, "--count", "500")
    assert sorted(one["body"] for one in everything) == sorted(f"order {number}" for number in range(200))
    times = [one["stored_ms"] for one in everything]
    assert times == sorted(times)
    assert [one["stored_ms"] for one in find(namesrv, "--count", "10")] == times[:10]
    assert len(find(namesrv, "--from", "-10m", "--to", "latest", "--count", "500")) == 200
    assert find(namesrv, "--to", "-10m") == []
    assert len(find(namesrv, "--from", "-10m", "--key", "tens")) == 20
    assert find(namesrv, "--to", "-10m", "--key", "tens") == []
    groups = ok("group", "list", "--all", namesrv=namesrv)
    assert "triomq" not in groups  # looking at messages leaves no trace


def test_the_table_shows_the_begin_of_each_body(namesrv: str) -> None:
    text = ok("message", "find", "--topic", "orders", "--key", "o-50", namesrv=namesrv)
    head, line = text.splitlines()
    assert head.split() == ["STORED", "QUEUE", "MESSAGE", "ID", "TAG", "KEYS", "BODY"]
    assert line.endswith("paid  o-50 tens  order 50")


def test_wrong_message_queries_are_explained(namesrv: str) -> None:
    assert "add --topic TOPIC" in complaint(1, "message", "show", "no-id", namesrv=namesrv)
    words = ("message", "find", "--topic", "orders", "--key", "a", "--unique-key", "b")
    assert "cannot be used together" in complaint(2, *words, namesrv=namesrv)
    assert "has no route" in complaint(1, "message", "find", "--topic", "ordres", "--key", "a", namesrv=namesrv)


def test_the_way_of_a_message_is_traced(namesrv: str) -> None:
    ok("topic", "create", "traced", namesrv=namesrv)
    ok("produce", "traced", "--key", "t-1", "--tag", "A", "--trace", namesrv=namesrv, stdin=b"first\nsecond\n")
    ok("consume", "traced", "--group", "auditors", "--count", "2", "--trace", namesrv=namesrv)
    (first, _) = sorted(find_in("traced", namesrv, "--key", "t-1"), key=lambda one: str(one["body"]))
    text = ok("message", "trace", first["message_id"], "--json", namesrv=namesrv)
    steps = [json.loads(line) for line in text.splitlines()]
    assert [(step["what"], step["group"], step["result"]) for step in steps] == [
        ("sent", "triomq-produce", "ok"),
        ("consumed", "auditors", "ok"),
    ]
    assert {(step["message_id"], step["topic"]) for step in steps} == {(first["message_id"], "traced")}
    sent, consumed = steps
    assert (sent["broker"].partition(":")[0], consumed["try"]) == ("127.0.0.1", 1)
    assert ok("message", "trace", "t-1", namesrv=namesrv).count("auditors") == 2
    assert "no trace of 'nothing'" in complaint(1, "message", "trace", "nothing", namesrv=namesrv)


def test_a_namespace_keeps_equal_topics_apart(namesrv: str) -> None:
    for tenant in ("one", "two"):
        ok("topic", "create", "shared", "--namespace", tenant, namesrv=namesrv)
        ok("produce", "shared", "--namespace", tenant, namesrv=namesrv, stdin=f"of {tenant}\n".encode())
    for tenant in ("one", "two"):
        words = ("consume", "shared", "--group", "g", "--count", "1", "--json", "--namespace", tenant)
        got = json.loads(ok(*words, namesrv=namesrv))
        assert (got["topic"], got["body"]) == ("shared", f"of {tenant}")
        shown = ok("group", "show", "g", "--namespace", tenant, "--json", namesrv=namesrv)
        assert "shared" in shown
        assert f"{tenant}%" not in shown
    assert {"one%shared", "two%shared"} <= set(ok("topic", "list", namesrv=namesrv).split())
