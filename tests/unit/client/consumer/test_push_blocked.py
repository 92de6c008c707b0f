"""A handler that blocks, asleep or at work, delays neither heartbeats nor commits nor lock renewals."""

import threading
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.fake_cluster import BROKER, FakeCluster
from tests.unit.client.consumer.push_bench import Inbox, consumer
from tests.unit.client.fake_broker import FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.client.consumer.config import ConsumerConfig
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

LIMIT_S = 50.0  # for all of a test on the real clock, and the only time that decides: a machine may be busy
CLIENT = ClientConfig(
    client_ip="127.0.0.1",
    instance_name="1",
    heartbeat_interval_s=0.05,
    persist_offset_interval_s=0.05,
    poll_namesrv_interval_s=0.05,
    api_timeout_s=LIMIT_S,
)
ANSWERED_BY_THE_CLUSTER = (
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
)


@pytest.mark.parametrize("orderly", [False, True])
async def test_three_minutes_of_sleep_stop_nothing_else(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, orderly: bool
) -> None:
    """The thread waits in earnest while the clock jumps."""
    blocked, free = cluster.add_topic("T", 2)
    wake, ended = threading.Event(), threading.Event()

    def handle(message: MessageExt) -> None:
        if message.queue_id == blocked.queue_id:
            wake.wait(20)
            ended.set()

    cluster.send(blocked, b"x")
    async with consumer(Inbox(), instance, on_message=handle, orderly=orderly) as push:
        await push.wait_assigned()
        for minute in (1, 2, 3):
            cluster.send(free, b"y")
            await trio.sleep(60)
            await _until(lambda: cluster.committed.get(("G", free)) == minute)  # noqa: B023  # called at once
        locks, pulls = (len(cluster.of(code)) for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.PULL_MESSAGE))
        assert not ended.is_set()
        assert pulls >= 2 * 180 / 15
        assert (locks >= 180 / 20) is orderly
        assert cluster.committed.get(("G", blocked)) == 0
        wake.set()
        await trio.to_thread.run_sync(ended.wait, 20)
        await _until(lambda: cluster.committed.get(("G", blocked)) == 1)


async def _until(condition: Callable[[], bool]) -> None:
    """Wait for what a thread does; the clock jumps meanwhile."""
    for _ in range(2_000):
        if condition():
            return
        await trio.to_thread.run_sync(threading.Event().wait, 0.005)
        await trio.sleep(1)
    raise AssertionError("it did not become so")


def answer_by_cluster(fake_broker: FakeBroker, cluster: FakeCluster) -> None:
    for code in ANSWERED_BY_THE_CLUSTER:
        fake_broker.on(code, cluster.answer)


@pytest.mark.parametrize("kind", ["asleep", "at work"])
async def test_blocking_handlers_do_not_stall_the_event_loop(
    fake_broker: FakeBroker, cluster: FakeCluster, kind: str
) -> None:
    """On the real clock and sockets: the handlers end only when the broker has heard enough."""
    begun, heard_enough = threading.Semaphore(0), threading.Event()

    def handle(message: MessageExt) -> None:
        if message.queue_id == 3:  # one queue moves on
            return
        begun.release()
        if kind == "asleep" or message.queue_id:
            heard_enough.wait(LIMIT_S)
        while not heard_enough.is_set():
            sum(range(1_000))

    queues = [MessageQueue("T", BROKER, queue_id) for queue_id in range(4)]
    fake_broker.add_topic("T", 4)
    fake_broker.consumer_ids["G"] = ["127.0.0.1@1"]
    answer_by_cluster(fake_broker, cluster)
    for queue in queues[:3]:
        cluster.send(queue, b"x")
    settings = ConsumerConfig(lock_interval_s=0.05, lock_timeout_s=LIMIT_S)
    with trio.fail_after(LIMIT_S):
        async with consumer(
            Inbox(),
            None,
            namesrv=fake_broker.address,
            config=CLIENT,
            on_message=handle,
            orderly=True,
            settings=settings,
        ) as push:
            try:
                for _ in queues[:3]:
                    await trio.to_thread.run_sync(begun.acquire, abandon_on_cancel=True)
                told = (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ)
                before = {code: len(fake_broker.of(code)) for code in told}
                for number in range(3):
                    cluster.send(queues[3], b"y")
                    while cluster.committed.get(("G", queues[3])) != number + 1:
                        count = len(fake_broker.of(RequestCode.UPDATE_CONSUMER_OFFSET))
                        await fake_broker.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, count + 1)
                for code, count in before.items():
                    await fake_broker.wait_for(code, count + 3)
                assert push.statistics().in_flight == 3
            finally:
                heard_enough.set()
    assert [cluster.committed["G", queue] for queue in queues] == [1, 1, 1, 3]
