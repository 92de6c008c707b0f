from datetime import UTC, datetime

import pytest

from tests.unit.client.consumer.fake_cluster import FakeCluster
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.config import StartPolicy
from triomq.client.consumer.offsets.first_offsets import FirstOffsets
from triomq.client.consumer.offsets.offset_store import RemoteOffsetStore
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue, QueueOffset

RETRY = "%RETRY%G"


def ms(timestamp: int) -> datetime:
    return datetime.fromtimestamp(timestamp / 1000, UTC)


@pytest.fixture
def requests(cluster: FakeCluster) -> QueueRequests:
    return QueueRequests(cluster.instance, "G")


@pytest.fixture
def queues(cluster: FakeCluster) -> tuple[MessageQueue, ...]:
    """Ten messages, stored at 1000, 1010, ... 1090, in offsets 5 to 14 of the first of two queues."""
    made = cluster.add_topic("T", 2)
    cluster.min_offsets[made[0]] = 5
    for number in range(10):
        cluster.send(made[0], b"x", store_timestamp=1_000 + number * 10)
    return made


async def find(
    requests: QueueRequests,
    start: str | datetime | int,
    *queues: MessageQueue,
    known: tuple[MessageQueue, ...] | None = None,
) -> dict[MessageQueue, QueueOffset]:
    return await FirstOffsets(requests, RemoteOffsetStore(requests), StartPolicy.parse(start), RETRY).find(
        queues, queues if known is None else known
    )


@pytest.mark.parametrize(("start", "expected"), [(0, 5), (9, 9), (15, 15), (99, 15)])
async def test_group_starts_at_an_offset_or_the_nearest(
    requests: QueueRequests, queues: tuple[MessageQueue, ...], start: int, expected: int
) -> None:
    assert await find(requests, start, queues[0]) == {queues[0]: expected}


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


async def test_first_of_many_messages_in_a_millisecond(cluster: FakeCluster, requests: QueueRequests) -> None:
    (queue,) = cluster.add_topic("T")
    for timestamp in (1, *[2] * 50, *[3] * 50):
        cluster.send(queue, b"x", store_timestamp=timestamp)
    cluster.handlers[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda command: command.reply(
        ext_fields={"offset": "7" if command.ext_fields["timestamp"] == "2" else "70"}
    )  # a binary search may hit any of them
    assert await find(requests, ms(3), queue) == {queue: 51}


async def test_stored_zero_differs_from_none(cluster: FakeCluster, requests: QueueRequests) -> None:
    first, second = cluster.add_topic("T", 2)
    cluster.zero_if_none = True
    cluster.send(first, b"a", b"b")
    cluster.send(second, b"a", b"b")
    cluster.committed["G", first] = 0
    assert await find(requests, "latest", first, second) == {first: 0, second: 2}
    assert len(cluster.of(RequestCode.GET_ALL_CONSUMER_OFFSET)) == 1  # one for all queues of a broker


async def test_offset_table_is_fetched_only_if_needed(cluster: FakeCluster, requests: QueueRequests) -> None:
    full, empty = cluster.add_topic("T", 2)
    cluster.zero_if_none = True
    cluster.send(full, b"a")
    assert await find(requests, "earliest", full, empty) == {full: 0, empty: 0}
    assert await find(requests, "latest", empty) == {empty: 0}
    cluster.version = 413  # 5.0 distinguishes 0 from none
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


async def test_unavailable_offset_table_postpones_the_queue(cluster: FakeCluster, requests: QueueRequests) -> None:
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
