"""One of two brokers, Apache's or ours, stops and restarts while clients send and consume.

No send raises, so none takes longer than its timeout of 3 s, and all acknowledged messages are consumed.
``python -m bench failover`` measures how long sends really take.
"""

import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio

from tests.interop.broker_pairs import LEAVES, STAYS, Pair, apache_pair, triomq_pair
from tests.interop.suite_tools import Inbox, fresh, push_consumer, until
from triomq.client import (
    Admin,
    ClientInstance,
    Message,
    Producer,
    ProducerConfig,
    TransactionProducer,
    TransactionState,
)

pytestmark = pytest.mark.slow

VERSION: Final = "4.9.7"
LIMIT_S: Final = 120
AWAY_S: Final = 4.0  # longer than a send may take
PAUSE_S: Final = 0.005

SendOne = Callable[[Message], Awaitable[str]]
"""Sends a message; returns the broker that stored it."""


@pytest.fixture(scope="module", params=[pytest.param("apache", marks=pytest.mark.jvm), "triomq"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    if request.param == "triomq":
        running = triomq_pair(folder)
    else:
        running = apache_pair(request.getfixturevalue("apache_brokers"), folder, VERSION)
    with running as made:
        yield made


@asynccontextmanager
async def senders(instance: ClientInstance) -> AsyncGenerator[dict[str, SendOne], None]:
    """Open producers of all kinds; yield a send function for each."""

    def commit(_asked: object) -> TransactionState:
        return TransactionState.COMMIT

    async with (
        Producer(fresh("plain"), instance=instance) as plain,
        Producer(fresh("batching"), instance=instance, settings=ProducerConfig(auto_batch=True)) as batching,
        Producer(fresh("choosy"), instance=instance, settings=ProducerConfig(send_latency_fault_enable=True)) as choosy,
        TransactionProducer(fresh("transactions"), instance=instance, check=commit) as transactions,
    ):

        def by(producer: Producer) -> SendOne:
            async def send(message: Message) -> str:
                return (await producer.send(message)).queue.broker_name

            return send

        async def in_transaction(message: Message) -> str:
            return (await transactions.send(message, commit)).result.queue.broker_name

        yield {
            "plain": by(plain),
            "batching": by(batching),
            "batching too": by(batching),
            "choosy": by(choosy),
            "transactions": in_transaction,
        }


class Senders:
    """Tasks that send until stopped.

    Attributes:
        acknowledged: bodies that a broker stored.
        by_broker: how many of each kind each broker stored.
    """

    def __init__(self, topic: str) -> None:
        self.acknowledged: set[bytes] = set()
        self.by_broker: Counter[tuple[str, str]] = Counter()
        self.stopping = False
        self._topic = topic

    async def run(self, kind: str, send: SendOne) -> None:
        number = 0
        while not self.stopping:
            body = f"{kind} {number}".encode()
            self.by_broker[kind, await send(Message(self._topic, body))] += 1
            self.acknowledged.add(body)
            number += 1
            await trio.sleep(PAUSE_S)

    async def wait_for_each(self, kinds: dict[str, SendOne], *names: str) -> None:
        """Wait until these brokers have stored something more of each kind."""
        before = self.by_broker.copy()
        wanted = [(kind, name) for kind in kinds for name in names]

        async def is_done() -> bool:
            return all(self.by_broker[key] > before[key] for key in wanted)

        await until(is_done)


@pytest.mark.parametrize("cut", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_sends_and_consumption_survive_broker_loss(pair: Pair, cut: signal.Signals) -> None:
    topic = fresh("failover")
    sent, inbox = Senders(topic), Inbox()
    with trio.fail_after(LIMIT_S):
        async with Admin(namesrv=pair.namesrv) as admin:
            await admin.create_topic(topic, queues=2)

        async with (
            ClientInstance(pair.namesrv) as instance,
            push_consumer(pair.namesrv, topic, inbox.take),
            senders(instance) as kinds,
        ):
            await until(lambda: has_brokers(instance, topic, 2))
            async with trio.open_nursery() as nursery:
                for kind, send in kinds.items():
                    nursery.start_soon(sent.run, kind, send)
                await sent.wait_for_each(kinds, STAYS, LEAVES)

                await trio.to_thread.run_sync(pair.signal, cut)
                await trio.sleep(AWAY_S)
                await sent.wait_for_each(kinds, STAYS)

                if cut == signal.SIGKILL:
                    await trio.to_thread.run_sync(pair.restart)
                else:
                    pair.signal(signal.SIGCONT)
                await sent.wait_for_each(kinds, LEAVES)
                sent.stopping = True
            await inbox.wait_for(lambda: sent.acknowledged <= set(inbox.bodies()))


async def has_brokers(instance: ClientInstance, topic: str, count: int) -> bool:
    route = await instance.routes.find(topic, refresh=True)
    return route is not None and len(route.queue_datas) == count
