import pytest

from tests.unit.client.consumer.benches import QUEUE
from tests.unit.client.consumer.fake_cluster import (
    BROKER,
    FakeCluster,
    FakeInstance,
    as_instance,
    pull_answer,
)
from triomq.client.cluster.pull import PullRequest, PullStatus
from triomq.client.cluster.queue_requests import QueueRequests, offset_entries
from triomq.client.config import ClientConfig
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import (
    ConnectError,
    NoRouteError,
)
from triomq.protocol.message_queue import MessageQueue, QueueOffset

ZERO = QueueOffset(0)


@pytest.fixture
def requests(cluster: FakeCluster) -> QueueRequests:
    return QueueRequests(cluster.instance, "G")


async def test_a_pull_says_what_the_broker_needs(cluster: FakeCluster, requests: QueueRequests) -> None:
    cluster.send(QUEUE, b"a", b"b")
    result = await requests.pull(
        QUEUE, PullRequest(ZERO, 32, sub_version=7, commit_offset=QueueOffset(5), suspend_s=15.0)
    )
    assert result.status is PullStatus.FOUND
    assert [message.body for message in result.messages] == [b"a", b"b"]
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (2, 0, 2)
    assert cluster.of(RequestCode.PULL_MESSAGE)[0].ext_fields == {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "3",
        "commitOffset": "5",
        "suspendTimeoutMillis": "15000",
        "subVersion": "7",
        "expressionType": "TAG",
    }


async def test_messages_have_the_limit_of_their_client(cluster: FakeCluster) -> None:
    cluster.send(QUEUE, b"a")
    instance = as_instance(FakeInstance(cluster, config=ClientConfig(max_body_bytes=5000)))
    result = await QueueRequests(instance, "G").pull(QUEUE, PullRequest(ZERO, 32))
    assert [message.max_body_bytes for message in result.messages] == [5000]


async def test_only_who_takes_more_says_so(cluster: FakeCluster, requests: QueueRequests) -> None:
    await requests.pull_raw(QUEUE, PullRequest(ZERO, 512))
    await requests.pull_raw(QUEUE, PullRequest(ZERO, 512, max_bytes=2**20))
    plain, long = (pull.ext_fields for pull in cluster.of(RequestCode.PULL_MESSAGE))
    assert "triomqMaxTransferBytes" not in plain
    assert long == plain | {"triomqMaxTransferBytes": "1048576"}


async def test_a_pull_from_a_slave_commits_nothing(cluster: FakeCluster, requests: QueueRequests) -> None:
    await requests.pull(QUEUE, PullRequest(ZERO, 8, commit_offset=QueueOffset(5), broker_id=1))
    assert cluster.of(RequestCode.PULL_MESSAGE)[0].ext_fields["sysFlag"] == "0"


async def test_slave_alone_serves_messages_but_not_bounds(cluster: FakeCluster) -> None:
    cluster.send(QUEUE, b"a")
    instance = FakeInstance(cluster)
    await instance.routes.find("T")
    real = instance.brokers.find

    def only_a_slave(broker_name: str, broker_id: int = 0, only_this: bool = False) -> str | None:
        return None if only_this else real(broker_name, broker_id)

    requests = QueueRequests(as_instance(instance), "G")
    master = [await requests.pull_raw(QUEUE, PullRequest(QueueOffset(offset), 8)) for offset in (0, 1)]
    instance.brokers.find = only_a_slave  # type: ignore[method-assign]
    slave = [await requests.pull_raw(QUEUE, PullRequest(QueueOffset(offset), 8)) for offset in (0, 1)]
    assert [answer.status for answer in slave] == [PullStatus.FOUND, PullStatus.NO_NEW_MESSAGE]
    assert [answer.is_from_slave for answer in master + slave] == [False, False, False, True]
    with pytest.raises(NoRouteError, match="its broker is in no known route"):
        await requests.topic_offsets("T", BROKER)
    assert not cluster.of(RequestCode.GET_TOPIC_STATS_INFO)


async def test_broker_unreachable_for_bounds_is_looked_up_again(cluster: FakeCluster) -> None:
    instance = FakeInstance(cluster)
    looked_up: list[str] = []

    def refresh_unpolled_route(topic: str) -> None:
        looked_up.append(topic)

    instance.routes.refresh_unpolled = refresh_unpolled_route  # type: ignore[method-assign]
    cluster.down = True
    with pytest.raises(ConnectError):
        await QueueRequests(as_instance(instance), "G").topic_offsets("T", BROKER)
    assert looked_up == ["T"]


@pytest.mark.parametrize("status", list(PullStatus))
async def test_each_pull_status_is_answered(cluster: FakeCluster, requests: QueueRequests, status: PullStatus) -> None:
    cluster.handlers[RequestCode.PULL_MESSAGE] = lambda command: pull_answer(
        command, status.value, 9, min_offset=3, max_offset=20
    )
    result = await requests.pull(QUEUE, PullRequest(ZERO, 8))
    assert result == (status, [], 9, 3, 20, 0)


@pytest.mark.parametrize(
    "body",
    [
        b'{"offsetTable":{"X@G":{7:1},"T@G":{0:1,12:34},"T@H":{9:1}}}',
        b'{"offsetTable":{"T@G":{"0":1,"12":34}},"dataVersion":{"counter":1}}',
        b'{ "offsetTable": { "T@G": { 0 : 1 , 12 : 34 } } }'.replace(b'": {', b'":{'),
    ],
)
def test_offset_entries_read_both_spellings_of_number_keys(body: bytes) -> None:
    assert offset_entries(body, "T", "G") == {0, 12}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"offsetTable":{"TT@G":{0:1}}}',
        b'{"offsetTable":{"T@G":{}}}',
        b'{"offsetTable":{"T@G":{' + b"9" * 2_000_000 + b":1}}}",
    ],
)
def test_offset_entries_find_nothing_where_nothing_is(body: bytes) -> None:
    assert offset_entries(body, "T", "G") == frozenset()


async def test_unknown_broker_of_a_queue_is_an_error(requests: QueueRequests) -> None:
    with pytest.raises(NoRouteError, match="gone"):
        await requests.min_offset(MessageQueue("T", "gone", 0))
