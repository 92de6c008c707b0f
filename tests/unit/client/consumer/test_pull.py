import pytest
from trio.testing import MockClock

from tests.unit.client.consumer.benches import QUEUE
from tests.unit.client.consumer.fake_cluster import BROKER, FakeCluster, FakeInstance, as_instance, pull_answer
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.pull import PullConsumer, PullStatus, QueueQueries
from triomq.protocol.bodies.statistics import TopicOffset, TopicStatsTable
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    ClientClosedError,
    ClientError,
    ConfigError,
    ConnectError,
    IllegalNameError,
    NoRouteError,
    SubscriptionParseError,
)
from triomq.protocol.message_queue import MessageQueue


@pytest.fixture
def cluster_with_messages(cluster: FakeCluster) -> FakeCluster:
    cluster.add_topic("T", 2)
    for number in range(6):
        cluster.send(QUEUE, b"%d" % number, properties={"TAGS": "Aa" if number % 2 else "BB"}, store_timestamp=number)
    return cluster


async def test_offset_out_of_range_is_returned(cluster_with_messages: FakeCluster, cluster: FakeCluster) -> None:
    async with PullConsumer("G", instance=cluster.instance) as consumer:
        result = await consumer.pull(QUEUE, 99)
    assert (result.status, result.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 6)
    assert not cluster_with_messages.committed


async def test_the_suggested_broker_is_asked_next(cluster_with_messages: FakeCluster) -> None:
    fake = FakeInstance(cluster_with_messages)
    asked: list[int] = []
    real = fake.brokers.find

    def broker_address(broker_name: str, broker_id: int = 0, only_this: bool = False) -> str | None:
        if not only_this:
            asked.append(broker_id)
        return real(broker_name, broker_id, only_this)

    fake.brokers.find = broker_address  # type: ignore[method-assign]
    answer = {"suggestWhichBrokerId": "1"}
    cluster_with_messages.handlers[RequestCode.PULL_MESSAGE] = lambda command: command.reply(
        ResponseCode.PULL_NOT_FOUND,
        pull_answer(command, 0, 6, min_offset=0, max_offset=6).ext_fields | answer,
    )
    async with PullConsumer("G", instance=as_instance(fake)) as consumer:
        await consumer.queues("T")
        await consumer.pull(QUEUE, 6)
        await consumer.pull(QUEUE, 6)
        await consumer.pull(QUEUE._replace(queue_id=1), 0)
        cluster_with_messages.down = True
        with pytest.raises(ConnectError):
            await consumer.pull(QUEUE, 6)
        cluster_with_messages.down = False
        await consumer.pull(QUEUE, 6)
    assert asked == [0, 1, 0, 1, 0]


async def test_offsets_can_be_asked_and_stored(cluster_with_messages: FakeCluster, cluster: FakeCluster) -> None:
    times = ["-1", "5"]
    cluster_with_messages.handlers[RequestCode.GET_EARLIEST_MSG_STORETIME] = lambda command: command.reply(
        ext_fields={"timestamp": times.pop()}
    )
    async with PullConsumer("G", instance=cluster.instance) as consumer:
        assert await consumer.queues("T") == (QUEUE, QUEUE._replace(queue_id=1))
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 6)
        assert await consumer.search_offset(QUEUE, 3) == 3
        assert [await consumer.earliest_store_time(QUEUE) for _ in range(2)] == [5, None]
        assert await consumer.committed(QUEUE) is None
        await consumer.commit(QUEUE, 4)
        assert await consumer.committed(QUEUE) == 4


@pytest.mark.parametrize("arguments", [{"queue_offset": -1}, {"max_messages": 0}, {"wait_s": -1.0}])
async def test_impossible_pulls_are_refused(arguments: dict[str, int], cluster: FakeCluster) -> None:
    async with PullConsumer("G", instance=cluster.instance) as consumer:
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            await consumer.pull(QUEUE, **({"queue_offset": 0} | arguments))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="negative"):
            await consumer.commit(QUEUE, -1)
        with pytest.raises(SubscriptionParseError):
            await consumer.pull(QUEUE, 0, "||")
        with pytest.raises(IllegalNameError):
            await consumer.queues("a b")
    with pytest.raises(ClientClosedError):
        await consumer.min_offset(QUEUE)
    with pytest.raises(IllegalNameError):
        PullConsumer("a b")


async def test_send_back_raises_when_not_stored(cluster_with_messages: FakeCluster, cluster: FakeCluster) -> None:
    async with PullConsumer("G", instance=cluster.instance) as consumer:
        (message, *_) = (await consumer.pull(QUEUE, 3)).messages
        await consumer.send_back(message, delay_level=2)
        (sent,) = cluster_with_messages.of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert (sent.ext_fields["offset"], sent.ext_fields["delayLevel"]) == (str(message.physical_offset), "2")
        assert sent.ext_fields["maxReconsumeTimes"] == "16"
        cluster_with_messages.down = True
        with pytest.raises(ClientError, match="could not be stored"):
            await consumer.send_back(message)


async def test_bounds_include_queues_that_are_read_only(
    cluster_with_messages: FakeCluster, cluster: FakeCluster
) -> None:
    """A topic gets fewer queues in two steps: first they are not written, and once they are empty, not read."""
    written = MessageQueue("T", BROKER, 1)
    table = TopicStatsTable({written: TopicOffset(0, 9, 0)})
    cluster_with_messages.handlers[RequestCode.GET_TOPIC_STATS_INFO] = lambda command: command.reply(
        body=table.encode()
    )
    async with PullConsumer("G", instance=cluster.instance) as consumer:
        bounds = await consumer.bounds("T")
    assert bounds == ({written: TopicOffset(0, 9, 0), QUEUE: TopicOffset(0, 6)}, {})
    assert len(cluster_with_messages.requests) == 3


async def test_bounds_name_the_unreachable_broker(cluster_with_messages: FakeCluster, cluster: FakeCluster) -> None:
    async with PullConsumer("G", instance=cluster.instance) as consumer:
        cluster_with_messages.down = True
        bounds = await consumer.bounds("T")
    assert bounds.offsets == {}
    assert isinstance(bounds.errors[BROKER], ConnectError)


async def test_oneway_commit_stores_offsets_of_several_queues(
    cluster_with_messages: FakeCluster, cluster: FakeCluster
) -> None:
    other = MessageQueue("T", BROKER, 1)
    async with PullConsumer("G", instance=cluster.instance) as consumer:
        await consumer.commit_oneway({QUEUE: 3, other: 4})
    assert cluster_with_messages.committed == {("G", QUEUE): 3, ("G", other): 4}


both_kinds = pytest.mark.parametrize("kind", [PullConsumer, LitePullConsumer])


@both_kinds
async def test_change_of_queues_is_reported(
    autojump_clock: MockClock, cluster: FakeCluster, kind: type[QueueQueries]
) -> None:
    two = cluster.add_topic("T", 2)
    async with kind("G", instance=cluster.instance) as consumer:  # type: ignore[call-arg]  # both kinds take these
        assert await consumer.wait_queues_changed("T", ()) == two
        assert await consumer.wait_queues_changed("T", two[:1]) == two
        assert autojump_clock.current_time() == 0
        cluster.routes["T"].queue_datas[0].read_queue_nums = 3
        assert len(await consumer.wait_queues_changed("T", two)) == 3
        with pytest.raises(NoRouteError):
            await consumer.wait_queues_changed("Missing", ())
        with pytest.raises(IllegalNameError):
            await consumer.wait_queues_changed("a b", ())


@both_kinds
async def test_offset_for_time_is_at_or_after_it(cluster: FakeCluster, kind: type[QueueQueries]) -> None:
    (queue,) = cluster.add_topic("T")
    for stored in (10, 20, 20, 20, 30):
        cluster.send(queue, b"x", store_timestamp=stored)
    async with kind("G", instance=cluster.instance) as consumer:  # type: ignore[call-arg]
        found = [await consumer.offset_for_timestamp(queue, time) for time in (0, 10, 11, 20, 21, 30, 31)]
    assert found == [0, 0, 1, 1, 4, 4, 5]


@both_kinds
async def test_nothing_is_asked_before_and_after(cluster: FakeCluster, kind: type[QueueQueries]) -> None:
    (queue,) = cluster.add_topic("T")
    consumer = kind("G", namesrv="127.0.0.1:1")  # type: ignore[call-arg]
    with pytest.raises(ClientClosedError):
        await consumer.min_offset(queue)
    with pytest.raises(ClientClosedError):
        await consumer.queues("T")
