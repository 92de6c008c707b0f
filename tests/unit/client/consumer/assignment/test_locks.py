"""Queue locks of an orderly consumer: asked for before the first pull, renewed, given back, noticed when lost."""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.fake_cluster import BROKER, FakeCluster
from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.assignment.locks import LockKeeper
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.processing.process_queue import QueueLock
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import MessageQueue

Q0, Q1 = (MessageQueue("T", BROKER, queue_id) for queue_id in range(2))


class Bench:
    def __init__(self, cluster: FakeCluster, instance: ClientInstance) -> None:
        self.cluster = cluster
        self.keeper = LockKeeper(QueueRequests(instance, "G"), ConsumerConfig())
        self.lost: list[MessageQueue] = []
        self.revived: list[MessageQueue] = []

    @asynccontextmanager
    async def renewing(self) -> AsyncGenerator[None, None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keeper.run, self._lose, self.revived.append)
            yield
            nursery.cancel_scope.cancel()

    def _lose(self, queues: Collection[MessageQueue]) -> None:
        self.lost += queues

    @property
    def requests(self) -> int:
        return len(self.cluster.of(RequestCode.LOCK_BATCH_MQ))


@pytest.fixture
async def bench(cluster: FakeCluster) -> Bench:
    cluster.add_topic("T", 2)
    await cluster.instance.routes.find("T")
    return Bench(cluster, cluster.instance)


def life(lock: QueueLock) -> float:
    return lock.ends - trio.current_time()


async def test_locks_are_renewed_every_20_s(bench: Bench, autojump_clock: MockClock) -> None:
    granted = await bench.keeper.acquire([Q0, Q1])
    async with bench.renewing():
        await trio.sleep(61)
    assert bench.requests == 1 + 3
    assert [life(lock) for lock in granted.values()] == [29, 29]
    assert not bench.lost
    assert not bench.revived


@pytest.mark.parametrize(
    ("down_s", "up_s", "is_revived", "is_lost"),
    [(19, 23.5, False, False), (0, 34.5, True, False), (0, 64.5, False, True)],
    ids=["within the 30 s of a lock", "after them", "beyond the broker's timeout"],
)
async def test_failed_renewal_is_retried_after_a_second(
    bench: Bench, autojump_clock: MockClock, down_s: float, up_s: float, is_revived: bool, is_lost: bool
) -> None:
    """C.2 scenario 56."""
    granted = await bench.keeper.acquire([Q0])
    async with bench.renewing():
        await trio.sleep(down_s)
        bench.cluster.down = True
        await trio.sleep(up_s - down_s)
        assert life(granted[Q0]) == 30 - up_s
        bench.cluster.down = False
        await trio.sleep(1)
    assert bench.revived == [Q0] * is_revived
    assert bench.lost == [Q0] * is_lost
    assert bench.keeper.holds(Q0) == (life(granted[Q0]) >= 29) == (not is_lost)


async def test_lock_of_another_member_is_lost(bench: Bench, autojump_clock: MockClock) -> None:
    granted = await bench.keeper.acquire([Q0, Q1])
    bench.cluster.locks["G", Q0] = "another"
    async with bench.renewing():
        await trio.sleep(20.5)
    assert bench.lost == [Q0]
    assert granted[Q0].ends == 0.0
    assert life(granted[Q1]) > 29


async def test_renewal_and_release_at_once_lock_nothing(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.acquire([Q0])
    async with bench.renewing():
        await trio.sleep(20)
        await bench.keeper.release([Q0])
    assert not bench.cluster.locks
    assert not bench.lost


async def test_a_broker_that_cannot_be_reached_grants_nothing(bench: Bench, autojump_clock: MockClock) -> None:
    bench.cluster.down = True
    assert await bench.keeper.acquire([Q0]) == {}
    await bench.keeper.release([Q0])
    assert await bench.keeper.acquire([]) == {}


async def test_lost_connection_ends_locks_of_its_broker(bench: Bench, autojump_clock: MockClock) -> None:
    granted = await bench.keeper.acquire([Q0])
    assert bench.keeper.forget_broker("another") == []
    assert bench.keeper.forget_broker(BROKER) == [Q0]
    assert granted[Q0].ends == 0.0
