"""A cluster in memory, and a pull loop on it."""

from pathlib import Path

import pytest

from tests.unit.client.consumer.benches import Bench, Machine, files_take_no_time
from tests.unit.client.consumer.fake_cluster import FakeCluster

__all__ = ["files_take_no_time"]


@pytest.fixture
def cluster() -> FakeCluster:
    """A cluster with the topic "T", which has one queue."""
    made = FakeCluster()
    made.add_topic("T")
    return made


@pytest.fixture
def bench(cluster: FakeCluster) -> Bench:
    return Bench(cluster, cluster.instance)


@pytest.fixture
def machine(cluster: FakeCluster, tmp_path: Path) -> Machine:
    return Machine(cluster, tmp_path)
