"""A cluster in memory, and an instance that reaches it."""

import pytest

from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance
from triomq.client.instance import ClientInstance


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def instance(cluster: FakeCluster) -> ClientInstance:
    return as_instance(FakeInstance(cluster))
