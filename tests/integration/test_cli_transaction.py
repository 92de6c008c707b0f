"""``triomq transaction`` against a running broker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cli_tools import complaint, ok
from tests.processes import Broker, start_triomq
from triomq.cli.errors import ExitCode
from triomq.client import Message, MessageExt, TransactionState
from triomq.client.sync import TransactionProducer


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    options = ("--transaction-timeout", "1", "--transaction-check-interval", "1", "--transaction-check-max", "1")
    with start_triomq(tmp_path_factory.mktemp("broker"), *options) as broker:
        yield broker


def undecided(namesrv: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ok("transaction", "list", "--json", namesrv=namesrv).splitlines()]


def unknown(_message: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN


def consumed(namesrv: str) -> list[str]:
    text = ok("consume", "orders", "--from", "earliest", "--timeout", "1", namesrv=namesrv)
    return text.splitlines()


def test_transactions_are_listed_and_decided_by_hand(broker: Broker) -> None:
    namesrv = broker.namesrv
    assert undecided(namesrv) == []
    with TransactionProducer("shop", namesrv=namesrv, check=unknown) as producer:
        ids = [producer.begin(Message("orders", body)).id for body in (b"one", b"two", b"three")]
    found = {each["id"]: each for each in undecided(namesrv)}
    assert list(found) == ids
    assert {(each["group"], each["topic"]) for each in found.values()} == {("shop", "orders")}
    table = ok("transaction", "list", namesrv=namesrv)
    assert table.splitlines()[0].split() == ["SENT", "AGE_S", "CHECKS", "GROUP", "TOPIC", "ID"]
    assert ids[2] in table
    assert ok("transaction", "commit", ids[0], namesrv=namesrv) == f"{ids[0]} committed\n"
    assert json.loads(ok("transaction", "rollback", ids[1], "--json", namesrv=namesrv)) == {
        "id": ids[1],
        "state": "rollback",
    }
    assert [each["id"] for each in undecided(namesrv)] == [ids[2]]
    assert consumed(namesrv) == ["one"]
    assert "is not undecided" in complaint(ExitCode.FAILED, "transaction", "commit", ids[1], namesrv=namesrv)


def test_transaction_that_was_given_up_is_checked_again(broker: Broker) -> None:
    namesrv = broker.namesrv
    answers: list[TransactionState] = []

    def check(_message: MessageExt) -> TransactionState:
        return answers[0] if answers else TransactionState.UNKNOWN

    with TransactionProducer("shop", namesrv=namesrv, check=check) as producer:
        begun = producer.begin(Message("orders", b"late"))
        while undecided(namesrv):
            pass
        answers.append(TransactionState.COMMIT)
        ok("transaction", "check", begun.id, namesrv=namesrv)
        while undecided(namesrv):
            pass
    assert consumed(namesrv) == ["late"]
