"""Files of offsets, as tests of broadcasting consumers need them: without threads, and looked at from outside."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.client.consumer.offsets import local_offsets
from triomq.client.consumer.offsets.local_offsets import OffsetsFile
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import MessageQueue

#: What no broadcasting consumer asks of a broker.
COMMITTING = (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.LOCK_BATCH_MQ)


@pytest.fixture
def files_take_no_time() -> Iterator[None]:
    """Without threads: the clock would jump while one works."""

    async def call(function: Callable[..., object], *arguments: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_offsets, "run_in_thread", call)
        yield


class Machine:
    """A machine with members of the group "G"."""

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def instance(self, name: str) -> ClientInstance:
        return as_instance(FakeInstance(self.cluster, name, ClientConfig(instance_name=name)))

    def offsets(self, name: str = "one") -> dict[MessageQueue, int]:
        """What the file has; read it while no consumer has it open."""
        file = OffsetsFile.open(self.folder, name, "G")
        try:
            return dict(file.load())
        finally:
            file.close()
