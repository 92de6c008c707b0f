import pytest
from trio.testing import MockClock

from tests.unit.client.consumer.fake_cluster import FakeCluster
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.pull import PullConsumer
from triomq.client.consumer.queries import QueueQueries
from triomq.protocol.errors import ClientClosedError, IllegalNameError, NoRouteError

pytestmark = pytest.mark.parametrize("kind", [PullConsumer, LitePullConsumer])


async def test_a_change_of_the_queues_is_told(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, kind: type[QueueQueries]
) -> None:
    two = cluster.add_topic("T", 2)
    async with kind("G", instance=instance) as consumer:  # type: ignore[call-arg]  # both kinds take these
        assert await consumer.wait_queues_changed("T", ()) == two
        assert await consumer.wait_queues_changed("T", two[:1]) == two
        assert autojump_clock.current_time() == 0
        cluster.routes["T"].queue_datas[0].read_queue_nums = 3
        assert len(await consumer.wait_queues_changed("T", two)) == 3
        with pytest.raises(NoRouteError):
            await consumer.wait_queues_changed("Missing", ())
        with pytest.raises(IllegalNameError):
            await consumer.wait_queues_changed("a b", ())


async def test_offset_for_time_is_first_message_at_or_after_it(
    cluster: FakeCluster, instance: ClientInstance, kind: type[QueueQueries]
) -> None:
    (queue,) = cluster.add_topic("T")
    for stored in (10, 20, 20, 20, 30):
        cluster.send(queue, b"x", store_timestamp=stored)
    async with kind("G", instance=instance) as consumer:  # type: ignore[call-arg]
        found = [await consumer.offset_for_timestamp(queue, time) for time in (0, 10, 11, 20, 21, 30, 31)]
    assert found == [0, 0, 1, 1, 4, 4, 5]


async def test_nothing_is_asked_before_and_after(cluster: FakeCluster, kind: type[QueueQueries]) -> None:
    (queue,) = cluster.add_topic("T")
    consumer = kind("G", namesrv="127.0.0.1:1")  # type: ignore[call-arg]
    with pytest.raises(ClientClosedError):
        await consumer.min_offset(queue)
    with pytest.raises(ClientClosedError):
        await consumer.queues("T")
