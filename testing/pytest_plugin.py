"""Fixtures of pytest.  Every run of pytest loads this module: it imports nothing before a fixture is used."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from triomq.testing import RunningBroker


@pytest.fixture(scope="session")
def rocketmq_session() -> Iterator["RunningBroker"]:
    """A broker for all tests of the session, also for fixtures that live longer than a test."""
    from triomq.testing import open_broker

    with open_broker() as broker:
        yield broker


@pytest.fixture
def rocketmq(rocketmq_session: "RunningBroker") -> Iterator["RunningBroker"]:
    """The session's broker; take topics from ``new_topic()``.  It refuses nothing after the test."""
    yield rocketmq_session
    rocketmq_session.faults.clear()


@pytest.fixture
def rocketmq_broker() -> Iterator["RunningBroker"]:
    """A broker for one test."""
    from triomq.testing import open_broker

    with open_broker() as broker:
        yield broker
