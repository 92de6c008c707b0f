"""A broker under load from several processes, killed again and again on one store.

After the last kill a broker started on the same store must deliver all messages that were acknowledged.
"""

import time
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Final

from tests.kills.load import SMALL_FILES, TOPIC, Load, Outcome, consume
from tests.processes import start_triomq
from triomq.client import Message, MessageExt, TransactionState
from triomq.client.sync import PushConsumer, TransactionProducer

_QUICK_CHECKS: Final = ("--transaction-timeout", "1", "--transaction-check-interval", "1")
_CHECKED: Final = "TRANSACTION_CHECK_TIMES"
_DELIVERED_S: Final = 60


def kill_often(folder: Path, kills: int, seed: int, durability: str) -> Outcome:
    """Start, load and kill a broker ``kills`` times, then consume everything."""
    random = Random(seed)
    options = ("--durability", durability, *SMALL_FILES)
    acknowledged: set[str] = set()
    for number in range(kills):
        with start_triomq(folder, *options) as broker, Load(broker.namesrv, folder, f"{number}") as load:
            load.wait_acknowledged()
            time.sleep(random.uniform(0.05, 0.8))  # the test varies the moment of the kill; no condition names it
            broker.kill()
        acknowledged |= load.acknowledged()
    with start_triomq(folder, *options) as broker:
        delivered = consume(broker.namesrv)
    missing = [f"missing: {body}" for body in sorted(acknowledged - set(delivered))]
    return Outcome(kills, len(acknowledged), len(delivered), missing)


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
