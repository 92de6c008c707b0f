import logging
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import FakeCluster
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.offsets.offset_store import RemoteOffsetStore
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.wire.command import RemotingCommand


@pytest.fixture
def requests(cluster: FakeCluster) -> QueueRequests:
    return QueueRequests(cluster.instance, "G")


@pytest.fixture
def queues(cluster: FakeCluster) -> tuple[MessageQueue, ...]:
    return cluster.add_topic("T", 2)


def test_progress_only_goes_up_unless_it_is_set(requests: QueueRequests) -> None:
    store, queue = RemoteOffsetStore(requests), MessageQueue("T", "b", 0)
    store.update(queue, QueueOffset(5), increase_only=True)
    store.update(queue, QueueOffset(3), increase_only=True)
    assert store.get(queue) == 5
    store.update(queue, QueueOffset(3), increase_only=False)
    assert store.snapshot("T") == {queue: 3}
    assert store.snapshot("U") == {}
    store.forget(queue)
    assert store.get(queue) is None


async def test_only_changes_are_stored_between_full_rounds(
    cluster: FakeCluster, requests: QueueRequests, queues: tuple[MessageQueue, ...]
) -> None:
    store = RemoteOffsetStore(requests)
    await requests.min_offset(queues[0])  # the route is known now
    for queue in queues:
        store.update(queue, QueueOffset(5), increase_only=True)
    store.confirmed(queues[1], QueueOffset(5))
    await store.persist(queues, changed_only=True)
    assert cluster.committed == {("G", queues[0]): 5}
    await store.persist(queues, changed_only=True)
    assert len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1
    await store.persist(queues, changed_only=False)
    assert len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 3


async def test_progress_follows_the_broker_that_stores_it(
    cluster: FakeCluster,
    requests: QueueRequests,
    queues: tuple[MessageQueue, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its slave while the master is away, and the master when it is back: each may lack what the other was given."""
    store, queue = RemoteOffsetStore(requests), queues[0]
    await requests.min_offset(queue)  # the route is known now
    store.update(queue, QueueOffset(5), increase_only=True)
    for number, keeper in enumerate(("master", "slave", "master"), 1):
        monkeypatch.setattr(requests, "keeper", lambda _queue, keeper=keeper: keeper)
        assert store.for_pull(queue) == 5
        for _ in range(2):
            await store.persist([queue], changed_only=True)
        assert len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == number
        assert store.for_pull(queue) is None


async def test_offsets_that_cannot_be_stored_are_tried_again(
    cluster: FakeCluster, requests: QueueRequests, queues: tuple[MessageQueue, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = RemoteOffsetStore(requests)
    for outage in (1, 2):
        store.update(queues[0], QueueOffset(outage), increase_only=True)
        cluster.down = True
        for _ in range(3):
            await store.persist(queues, changed_only=True)
        assert caplog.text.count("offsets not stored") == outage  # stored once
        await store.persist_now(queues)
        cluster.down = False
        await store.persist(queues, changed_only=True)
        assert cluster.committed == {("G", queues[0]): outage}


async def test_pull_carries_only_unreported_progress(requests: QueueRequests, queues: tuple[MessageQueue, ...]) -> None:
    store, queue = RemoteOffsetStore(requests), queues[0]
    store.update(queue, QueueOffset(5), increase_only=True)
    assert store.for_pull(queue) == 5
    assert store.for_pull(queue) == 5  # the first one was not answered
    store.confirmed(queue, QueueOffset(5))
    assert store.for_pull(queue) is None
    store.update(queue, QueueOffset(6), increase_only=True)
    assert store.for_pull(queue) == 6


@pytest.mark.parametrize("newest", [9, 5], ids=["older offset of a late pull", "lost by the broker"])
async def test_progress_replaced_meanwhile_is_committed_again(
    autojump_clock: MockClock, cluster: FakeCluster, requests: QueueRequests, nursery: trio.Nursery,
    queues: tuple[MessageQueue, ...], newest: int,
) -> None:  # fmt: skip
    """Found with Apache 5.5.0 under load: its pull threads may be later than those that store offsets.

    A broker that answers QUERY_NOT_FOUND has lost the offset, although the client committed it.
    """
    store, queue = RemoteOffsetStore(requests), queues[0]
    store.update(queue, QueueOffset(5), increase_only=True)
    late = store.for_pull(queue)
    assert late == 5
    store.update(queue, QueueOffset(newest), increase_only=True)

    async def disturb() -> None:
        await trio.sleep(0.05)
        if newest == late:
            del cluster.committed["G", queue]
        else:
            cluster.committed["G", queue] = late

    nursery.start_soon(disturb)
    await store.persist_now([queue])
    assert trio.current_time() > 0.05
    assert cluster.committed["G", queue] == newest


async def test_late_write_after_set_aside_is_the_members(
    cluster: FakeCluster,
    requests: QueueRequests,
    queues: tuple[MessageQueue, ...],
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for the new connection; taken for another member's, it would repeat messages."""
    store, queue = RemoteOffsetStore(requests), queues[0]
    connected = trio.Event()

    async def late(_queue: MessageQueue, queue_offset: QueueOffset) -> None:
        await connected.wait()
        cluster.committed["G", queue] = queue_offset

    monkeypatch.setattr(requests, "commit_oneway", late)
    store.confirmed(queue, QueueOffset(5))
    store.update(queue, QueueOffset(7), increase_only=True)
    nursery.start_soon(partial(store.persist, [queue], changed_only=True))
    await wait_all_tasks_blocked()
    store.update(queue, QueueOffset(9), increase_only=True)
    store.set_aside(queue)
    connected.set()
    await wait_all_tasks_blocked()
    assert cluster.committed["G", queue] == 7
    assert await store.stored(queue) == 9
    assert cluster.committed["G", queue] == 9


async def test_first_offset_of_a_topic_is_stored_alone(cluster: FakeCluster, requests: QueueRequests) -> None:
    """Apache's brokers lose one of two that come at once; seen under load."""
    store, queues = RemoteOffsetStore(requests), cluster.add_topic("U", 4)
    under_way = 0
    orders: list[int] = []

    async def slow(command: RemotingCommand) -> RemotingCommand:
        nonlocal under_way
        under_way += 1
        orders.append(under_way)
        await wait_all_tasks_blocked()
        under_way -= 1
        return command.reply()

    cluster.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = slow
    for queue in queues:
        store.update(queue, QueueOffset(5), increase_only=True)
    await store.persist_now(queues)
    assert orders == [1, 1, 2, 3]
    orders.clear()
    assert set(await store.store_first(dict.fromkeys(queues, QueueOffset(5)))) == set(queues)
    assert orders == [1, 1, 2, 3]
