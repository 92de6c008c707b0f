"""A broker under load from several processes, killed again and again on one store.

Run by ``python -m tests.kills.sender NAMESRV TOPIC PREFIX``, each sender prints the body of every message the broker
has acknowledged.  After the last kill a broker started on the same store must deliver all of them.
"""

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Final, NamedTuple

from tests.processes import Broker, start_triomq
from triomq.client import Message, MessageExt, TransactionState
from triomq.client.sync import PushConsumer, TransactionProducer

TOPIC: Final = "kills"
SENDERS: Final = 3
_SMALL_FILES: Final = ("--commit-log-file-size", "262144", "--consume-queue-file-size", "2000")
_FIRST_ANSWER_S: Final = 30


_QUICK_CHECKS: Final = ("--transaction-timeout", "1", "--transaction-check-interval", "1")
_CHECKED: Final = "TRANSACTION_CHECK_TIMES"
_DELIVERED_S: Final = 60


class Outcome(NamedTuple):
    """What some rounds gave."""

    kills: int
    acknowledged: int
    delivered: int
    missing: list[str]


def kill_often(folder: Path, kills: int, seed: int, durability: str) -> Outcome:
    """Start, load and kill a broker ``kills`` times, then consume everything."""
    random = Random(seed)
    options = ("--durability", durability, *_SMALL_FILES)
    acknowledged: list[str] = []
    for number in range(kills):
        with start_triomq(folder, *options) as broker:
            acknowledged += _one_round(broker, f"{number}", random.uniform(0.05, 0.8))
    with start_triomq(folder, *options) as broker:
        delivered = _consume(broker.namesrv)
    return Outcome(kills, len(acknowledged), len(delivered), sorted(set(acknowledged) - set(delivered)))


def kill_with_half_message(folder: Path, durability: str) -> list[int]:
    """Kill a broker that holds a half message, start it again, and commit when it checks.

    Returns:
        The numbers of the checks up to the delivery of the message.

    Raises:
        queue.Empty: the message is not delivered.
    """
    options = ("--durability", durability, *_QUICK_CHECKS)
    checks: list[int] = []
    delivered: SimpleQueue[bytes] = SimpleQueue()

    def commit(half: MessageExt) -> TransactionState:
        checks.append(int(half.properties[_CHECKED]))
        return TransactionState.COMMIT

    with start_triomq(folder, *options) as broker:
        with TransactionProducer("P", namesrv=broker.namesrv, check=commit) as producer:
            producer.begin(Message(TOPIC, b"half"))
            broker.kill()
    with start_triomq(folder, *options) as broker:
        with (
            TransactionProducer("P", namesrv=broker.namesrv, check=commit, topics=(TOPIC,)),
            PushConsumer(
                "G",
                namesrv=broker.namesrv,
                on_message=lambda message: delivered.put(message.body),
                subscriptions={TOPIC: "*"},
                start="earliest",
            ),
        ):
            assert delivered.get(timeout=_DELIVERED_S) == b"half"
    return checks


def _one_round(broker: Broker, prefix: str, seconds: float) -> list[str]:
    with _senders(broker.namesrv, prefix) as senders:
        for sender in senders:
            assert sender.stdout is not None
            readable, _, _ = select.select([sender.stdout], [], [], _FIRST_ANSWER_S)
            assert readable, "a sender had no answer in time"
            assert sender.poll() is None, "a sender ended by itself"
        time.sleep(seconds)  # the test varies the moment of the kill; no condition names it
        broker.kill()
    return [line for sender in senders for line in _printed(sender)]


@contextmanager
def _senders(namesrv: str, prefix: str) -> Iterator[list[subprocess.Popen[str]]]:
    senders = [
        subprocess.Popen(
            (sys.executable, "-m", "tests.kills.sender", namesrv, TOPIC, f"{prefix}-{number}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in range(SENDERS)
    ]
    try:
        yield senders
    finally:
        for sender in senders:
            sender.kill()


def _printed(sender: subprocess.Popen[str]) -> list[str]:
    output, _ = sender.communicate(timeout=_FIRST_ANSWER_S)
    return [line for line in output.splitlines(keepends=True) if line.endswith("\n")]


def _consume(namesrv: str) -> list[str]:
    done = subprocess.run(
        (sys.executable, "-m", "triomq.cli", "consume", TOPIC, "--namesrv", namesrv, "--json", "--timeout", "2"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["body"] + "\n" for line in done.stdout.splitlines()]
