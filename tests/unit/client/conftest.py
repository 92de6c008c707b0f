"""Fixtures: fake brokers, and cancelling at every await."""

import threading
from collections.abc import Iterator

import pytest
import trio

from tests.unit.client.fake_broker import BrokerFactory, CancelledAtEveryAwait, FakeBroker, run_cancelled_at_every_await
from triomq.client import portal


@pytest.fixture
def cancelled_at_every_await() -> CancelledAtEveryAwait:
    """Returns a generator that runs a function repeatedly, cancelled before it starts, at its 1st pause, its 2nd, ...

    It yields after each run, so that a test can look for leftovers, and ends when a run completes uncancelled.
    """
    return run_cancelled_at_every_await


@pytest.fixture
def make_broker(nursery: trio.Nursery) -> BrokerFactory:
    """Returns a function that starts another fake broker."""

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
def no_thread_is_left_behind() -> Iterator[None]:
    """Check that the thread of the facades has ended after the test."""
    yield
    assert portal._portal is None
    assert "triomq" not in {thread.name for thread in threading.enumerate()}
