"""Fixtures: fake brokers, and cancelling at every await."""

import threading
from collections.abc import Iterator

import pytest
import trio

from tests.unit.client.broker_thread import BrokerThread
from tests.unit.client.fake_broker import BrokerFactory, CancelledAtEveryAwait, FakeBroker, run_cancelled_at_every_await
from triomq.client.facades import portal


@pytest.fixture
def cancelled_at_every_await() -> CancelledAtEveryAwait:
    """A generator that runs a function again and again, cancelled before it starts, at its 1st pause, its 2nd, ...

    It yields after each run, for looking at what is left behind, and ends when a run was not stopped any more.
    """
    return run_cancelled_at_every_await


@pytest.fixture
def make_broker(nursery: trio.Nursery) -> BrokerFactory:
    """A function that starts one more fake broker with a name."""

    async def make(name: str) -> FakeBroker:
        broker = FakeBroker(nursery, name)
        await broker.start()
        return broker

    return make


@pytest.fixture
async def fake_broker(make_broker: BrokerFactory) -> FakeBroker:
    """A running fake broker "broker-a" with the topic "Topic" (4 queues)."""
    broker = await make_broker("broker-a")
    broker.add_topic("Topic")
    return broker


@pytest.fixture
def remote() -> Iterator[BrokerThread]:
    """A fake broker "broker-a" with the topic "Topic", in a thread of its own."""
    with BrokerThread.running() as broker:
        yield broker


@pytest.fixture
def no_thread_is_left_behind() -> Iterator[None]:
    """After the test the thread of the faces must have ended."""
    yield
    assert portal._portal is None
    assert "triomq" not in {thread.name for thread in threading.enumerate()}
