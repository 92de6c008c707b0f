"""A lite pull consumer on the cluster in memory."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from trio.testing import wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import FakeCluster, offsets_of
from tests.unit.client.consumer.push_bench import QUEUE
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.protocol.message_queue import MessageQueue

G = "G"


@asynccontextmanager
async def assigned(
    instance: ClientInstance, *queues: MessageQueue, expressions: dict[str, str] | None = None, **options: Any
) -> AsyncGenerator[LitePullConsumer, None]:
    async with LitePullConsumer(G, instance=instance, start="earliest", **options) as consumer:
        await consumer.assign(queues or (QUEUE,), expressions)
        yield consumer


def fill(cluster: FakeCluster, count: int, queue: MessageQueue = QUEUE) -> None:
    cluster.send(queue, *(b"%d" % number for number in range(count)))


async def poll_all(consumer: LitePullConsumer) -> list[int]:
    """Poll until nothing comes; the queue offsets."""
    await wait_all_tasks_blocked()
    got: list[int] = []
    while messages := await consumer.poll(0):
        got += offsets_of(messages)
        await wait_all_tasks_blocked()
    return got
