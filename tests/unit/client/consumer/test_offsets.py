from datetime import UTC, datetime

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import FakeCluster
from triomq.client.consumer.config import StartPolicy
from triomq.client.consumer.offsets import FirstOffsets, RemoteOffsetStore
from triomq.client.consumer.remote import QueueRequests
from triomq.client.instance import ClientInstance
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.command import RemotingCommand
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.units import QueueOffset

RETRY = "%RETRY%G"


def ms(timestamp: int) -> datetime:
    return datetime.fromtimestamp(timestamp / 1000, UTC)


@pytest.fixture
def requests(instance: ClientInstance) -> QueueRequests:
    return QueueRequests(instance, "G")


@pytest.fixture
def queues(cluster: FakeCluster) -> tuple[MessageQueue, ...]:
    """Ten messages, stored at 1000, 1010, ... 1090, in offsets 5 to 14 of the first of two queues."""
    made = cluster.add_topic("T", 2)
    cluster.min_offsets[made[0]] = 5
    for number in range(10):
        cluster.send(made[0], b"x", store_timestamp=1_000 + number * 10)
    return made


async def find(
    requests: QueueRequests, start: str | datetime, *queues: MessageQueue, known: tuple[MessageQueue, ...] | None = None
) -> dict[MessageQueue, QueueOffset]:
    return await FirstOffsets(requests, RemoteOffsetStore(requests), StartPolicy.parse(start), RETRY).find(
        queues, queues if known is None else known
    )


@pytest.mark.parametrize("start", ["earliest", "latest", ms(1_050)])
async def test_a_stored_offset_always_wins(
    cluster: FakeCluster, requests: QueueRequests, queues: tuple[MessageQueue, ...], start: str
) -> None:
    cluster.committed["G", queues[0]] = 8
    assert await find(requests, start, queues[0]) == {queues[0]: 8}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", 5),
        ("latest", 15),
        (ms(0), 5),
        (ms(1_000), 5),
        (ms(1_001), 6),
        (ms(1_049), 10),
        (ms(1_050), 10),
        (ms(1_051), 11),
        (ms(1_090), 14),
        (ms(1_091), 15),
        (ms(9_999), 15),
    ],
)
@pytest.mark.parametrize("young", [False, True])
async def test_a_group_without_offsets_starts_where_it_wants(
    cluster: FakeCluster,
    requests: QueueRequests,
    queues: tuple[MessageQueue, ...],
    start: str | datetime,
    expected: int,
    young: bool,
) -> None:
    """Also on a queue so young that a 4.9 broker says 0 of such a group.

    C.2 scenario 39: Java's clients read all of a young queue whatever their policy; here the policy holds.
    """
    shift = 0
    if young:
        cluster.zero_if_none = True
        shift, cluster.min_offsets[queues[0]] = 5, 0
        records = cluster.records[queues[0]][:]
        cluster.records[queues[0]].clear()
        for number in range(len(records)):
            cluster.send(queues[0], b"x", store_timestamp=1_000 + number * 10)
    assert await find(requests, start, queues[0]) == {queues[0]: expected - shift}


async def test_of_many_messages_in_the_wanted_millisecond_none_is_missed(
    cluster: FakeCluster, requests: QueueRequests
) -> None:
    (queue,) = cluster.add_topic("T")
    for timestamp in (1, *[2] * 50, *[3] * 50):
        cluster.send(queue, b"x", store_timestamp=timestamp)
    cluster.handlers[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda command: command.reply(
        ext_fields={"offset": "7" if command.ext_fields["timestamp"] == "2" else "70"}
    )  # a binary search may hit any of them
    assert await find(requests, ms(3), queue) == {queue: 51}


async def test_what_the_policy_decided_is_stored_at_once(
    cluster: FakeCluster, requests: QueueRequests, queues: tuple[MessageQueue, ...]
) -> None:
    await find(requests, "latest", *queues)
    assert cluster.committed == {("G", queues[0]): 15, ("G", queues[1]): 0}


async def test_a_stored_zero_is_told_from_none(cluster: FakeCluster, requests: QueueRequests) -> None:
    first, second = cluster.add_topic("T", 2)
    cluster.zero_if_none = True
    cluster.send(first, b"a", b"b")
    cluster.send(second, b"a", b"b")
    cluster.committed["G", first] = 0
    assert await find(requests, "latest", first, second) == {first: 0, second: 2}
    assert len(cluster.of(RequestCode.GET_ALL_CONSUMER_OFFSET)) == 1  # one for all queues of a broker


async def test_the_whole_table_is_not_asked_for_where_zero_is_right_anyway(
    cluster: FakeCluster, requests: QueueRequests
) -> None:
    full, empty = cluster.add_topic("T", 2)
    cluster.zero_if_none = True
    cluster.send(full, b"a")
    assert await find(requests, "earliest", full, empty) == {full: 0, empty: 0}
    assert await find(requests, "latest", empty) == {empty: 0}
    cluster.version = 413  # 5.0 says what it means
    assert await find(requests, "latest", full) == {full: 0}
    assert not cluster.of(RequestCode.GET_ALL_CONSUMER_OFFSET)


async def test_a_broker_without_the_table_is_believed(cluster: FakeCluster, requests: QueueRequests) -> None:
    (queue,) = cluster.add_topic("T")
    cluster.zero_if_none = True
    cluster.send(queue, b"a")
    cluster.handlers[RequestCode.GET_ALL_CONSUMER_OFFSET] = lambda command: command.reply(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    )
    assert await find(requests, "latest", queue) == {queue: 0}


async def test_a_table_that_cannot_be_had_leaves_the_queue_for_later(
    cluster: FakeCluster, requests: QueueRequests
) -> None:
    (queue,) = cluster.add_topic("T")
    cluster.zero_if_none = True
    cluster.send(queue, b"a")
    cluster.handlers[RequestCode.GET_ALL_CONSUMER_OFFSET] = lambda command: command.reply(ResponseCode.SYSTEM_BUSY)
    assert await find(requests, "latest", queue) == {}


@pytest.mark.parametrize(
    "code",
    [RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET],
)
async def test_a_broker_error_is_no_answer(
    cluster: FakeCluster, requests: QueueRequests, queues: tuple[MessageQueue, ...], code: RequestCode
) -> None:
    cluster.handlers[code] = lambda command: (
        command.reply(ResponseCode.SYSTEM_BUSY) if command.ext_fields["queueId"] == "0" else None
    )
    assert await find(requests, "latest", *queues) == {queues[1]: 0}
    assert ("G", queues[0]) not in cluster.committed


async def test_a_queue_that_came_later_begins_at_its_first_message(
    requests: QueueRequests, queues: tuple[MessageQueue, ...]
) -> None:
    assert await find(requests, "latest", *queues, known=()) == {queues[0]: 5, queues[1]: 0}


async def test_the_retry_topic_begins_at_its_first_message(cluster: FakeCluster, requests: QueueRequests) -> None:
    (queue,) = cluster.add_topic(RETRY)
    cluster.zero_if_none = True
    cluster.send(queue, b"failed")
    assert await find(requests, ms(9_999), queue) == {queue: 0}


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


async def test_only_what_changed_is_stored_between_the_full_rounds(
    cluster: FakeCluster, requests: QueueRequests, queues: tuple[MessageQueue, ...]
) -> None:
    store = RemoteOffsetStore(requests)
    await requests.min_offset(queues[0])  # the route is known now
    for queue in queues:
        store.update(queue, QueueOffset(5), increase_only=True)
    store.told(queues[1], QueueOffset(5))
    await store.persist(queues, changed_only=True)
    assert cluster.committed == {("G", queues[0]): 5}
    await store.persist(queues, changed_only=True)
    assert len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1
    await store.persist(queues, changed_only=False)
    assert len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 3


async def test_offsets_that_cannot_be_stored_are_tried_again(
    cluster: FakeCluster, requests: QueueRequests, queues: tuple[MessageQueue, ...], caplog: pytest.LogCaptureFixture
) -> None:
    store = RemoteOffsetStore(requests)
    for outage in (1, 2):
        store.update(queues[0], QueueOffset(outage), increase_only=True)
        cluster.down = True
        for _ in range(3):
            await store.persist(queues, changed_only=True)
        assert caplog.text.count("offsets not stored") == outage  # told once
        await store.persist_now(queues)
        cluster.down = False
        await store.persist(queues, changed_only=True)
        assert cluster.committed == {("G", queues[0]): outage}


async def test_persist_now_waits_for_the_broker(
    cluster: FakeCluster, requests: QueueRequests, queues: tuple[MessageQueue, ...]
) -> None:
    store = RemoteOffsetStore(requests)
    store.update(queues[1], QueueOffset(9), increase_only=True)
    await store.persist_now(queues)
    assert cluster.committed == {("G", queues[1]): 9}


async def test_a_pull_carries_only_progress_that_the_broker_was_not_told(
    requests: QueueRequests, queues: tuple[MessageQueue, ...]
) -> None:
    store, queue = RemoteOffsetStore(requests), queues[0]
    store.update(queue, QueueOffset(5), increase_only=True)
    assert store.for_pull(queue) == 5
    assert store.for_pull(queue) == 5  # the first one was not answered
    store.told(queue, QueueOffset(5))
    assert store.for_pull(queue) is None
    store.update(queue, QueueOffset(6), increase_only=True)
    assert store.for_pull(queue) == 6


async def test_the_last_progress_outlasts_a_pull_that_the_broker_handles_after_it(
    autojump_clock: MockClock,
    cluster: FakeCluster,
    requests: QueueRequests,
    queues: tuple[MessageQueue, ...],
    nursery: trio.Nursery,
) -> None:
    """Found with Apache 5.5.0 under load: its pull threads may be later than those that store offsets."""
    store, queue = RemoteOffsetStore(requests), queues[0]
    store.update(queue, QueueOffset(5), increase_only=True)
    late = store.for_pull(queue)
    assert late == 5

    async def handle_late() -> None:
        await trio.sleep(0.05)
        cluster.committed["G", queue] = late

    store.update(queue, QueueOffset(9), increase_only=True)
    nursery.start_soon(handle_late)
    await store.persist_now([queue])
    assert trio.current_time() > 0.05
    assert cluster.committed["G", queue] == 9


async def test_a_broker_that_goes_back_again_and_again_does_not_hold_the_consumer(
    autojump_clock: MockClock, cluster: FakeCluster, requests: QueueRequests, queues: tuple[MessageQueue, ...]
) -> None:
    store, queue = RemoteOffsetStore(requests), queues[0]
    store.update(queue, QueueOffset(5), increase_only=True)
    store.for_pull(queue)
    cluster.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(ext_fields={"offset": "3"})
    await store.persist_now([queue])
    assert len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 4
    assert trio.current_time() < 1


async def test_the_first_offset_of_a_topic_is_stored_alone(cluster: FakeCluster, requests: QueueRequests) -> None:
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
