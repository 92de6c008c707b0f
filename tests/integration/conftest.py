"""A broker in the process of the test, and its administration; modules that start processes have their own."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.integration.broker_wire import namesrv_address, running
from triomq.broker.server import Broker
from triomq.client import Admin


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"


@pytest.fixture
async def broker(root: Path) -> AsyncGenerator[Broker, None]:
    async with running(root) as started:
        yield started


@pytest.fixture
def namesrv(broker: Broker) -> str:
    """The address of its name server."""
    return namesrv_address(broker)


@pytest.fixture
async def admin(namesrv: str) -> AsyncGenerator[Admin, None]:
    """An administration; there is a topic ``T`` of two queues."""
    async with Admin(namesrv=namesrv) as made:
        await made.create_topic("T", queues=2)
        yield made
