"""A cluster in memory, a connected instance, and consumers on them."""

import pytest

from tests.unit.client.consumer.benches import QUEUE, Bench, files_take_no_time
from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance
from triomq.client.cluster.instance import ClientInstance
from triomq.protocol.message_queue import MessageQueue

__all__ = ["files_take_no_time"]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def instance(cluster: FakeCluster) -> ClientInstance:
    return as_instance(FakeInstance(cluster))


@pytest.fixture
def bench(cluster: FakeCluster, instance: ClientInstance) -> Bench:
    return Bench(cluster, instance)


@pytest.fixture
def topic(cluster: FakeCluster) -> MessageQueue:
    """The topic "T" with one queue."""
    cluster.add_topic("T")
    return QUEUE
