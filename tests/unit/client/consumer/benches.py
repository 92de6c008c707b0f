"""Push consumers on the cluster in memory."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import BROKER, FakeCluster, FakeInstance, as_instance, offsets_of
from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.config import ClientConfig
from triomq.client.consumer.config import ConsumerConfig, LitePullConfig
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.offsets import local_offsets
from triomq.client.consumer.offsets.local_offsets import OffsetsFile
from triomq.client.consumer.offsets.offset_store import RemoteOffsetStore
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.pulling.pull_context import PullContext
from triomq.client.consumer.pulling.pull_loop import PullLoop
from triomq.client.consumer.push import PushConsumer
from triomq.client.consumer.topics import Subscriptions
from triomq.protocol.bodies.client import ConsumeResult, MessageModel
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.record.message import MessageExt
from triomq.protocol.wire.command import RemotingCommand

QUEUE = MessageQueue("T", BROKER, 0)


class Inbox:
    """A handler that records its messages, and may be slow."""

    def __init__(self, busy_s: float = 0.0) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self._busy_s = busy_s

    async def take(self, message: MessageExt) -> None:
        self.begun.append(message.queue_offset)
        try:
            if self._busy_s:
                await trio.sleep(self._busy_s)
        except trio.Cancelled:
            self.cancelled.append(message.queue_offset)
            raise
        self.ended.append(message.queue_offset)


def consumer(inbox: Inbox, instance: ClientInstance | None, **more: object) -> PushConsumer:
    arguments: dict[str, object] = {"subscriptions": {"T": "*"}, "start": "earliest", "on_message": inbox.take}
    return PushConsumer("G", instance=instance, **(arguments | more))  # type: ignore[arg-type]


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
    """A machine with members of the group "G" in broadcasting."""

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def instance(self, name: str) -> ClientInstance:
        return as_instance(FakeInstance(self.cluster, name, ClientConfig(instance_name=name)))

    def push(self, inbox: Inbox, **more: object) -> PushConsumer:
        settings = ConsumerConfig(local_offset_dir=self.folder, orderly_max_reconsume_times=2)
        return consumer(inbox, self.instance("one"), model=MessageModel.BROADCASTING, settings=settings, **more)

    def lite(self) -> LitePullConsumer:
        return LitePullConsumer(
            G,
            instance=self.instance("one"),
            model=MessageModel.BROADCASTING,
            settings=LitePullConfig(local_offset_dir=self.folder),
            start="earliest",
            auto_commit=False,
        )

    def offsets(self) -> dict[MessageQueue, int]:
        """What the file has; read it while no consumer has it open."""
        file = OffsetsFile.open(self.folder, "one", "G")
        try:
            return dict(file.load())
        finally:
            file.close()


class Service:
    """Keeps submitted messages; tests consume them."""

    concurrency = 1

    def __init__(self) -> None:
        self.got: list[tuple[ProcessQueue, MessageExt]] = []
        self.busy = 0

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self.got += [(process_queue, message) for message in messages]

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        return self.busy

    async def consume_directly(self, message: MessageExt, queue: MessageQueue) -> tuple[ConsumeResult, str]:
        raise NotImplementedError

    def consume(self, count: int = 2**31) -> None:
        for process_queue, message in self.got[:count]:
            process_queue.remove(message)
        del self.got[:count]

    @property
    def offsets(self) -> list[int]:
        return offsets_of([message for _, message in self.got])


class Bench:
    def __init__(self, cluster: FakeCluster, instance: ClientInstance) -> None:
        self.cluster = cluster
        self.instance = instance
        self.service = Service()
        self.announced = 0
        (self.queue,) = cluster.add_topic("T")
        self.loop: PullLoop
        self.context: PullContext

    @asynccontextmanager
    async def pulling(
        self, first_offset: int = 0, expression: str = "*", topic: str = "T", **settings: object
    ) -> AsyncGenerator[PullLoop, None]:
        config = ConsumerConfig(**settings)  # type: ignore[arg-type]  # names are checked by the class
        requests = QueueRequests(self.instance, "G")
        offsets = RemoteOffsetStore(requests)
        self.context = PullContext(requests, offsets, self.service, config, self._announce)
        subscription = Subscriptions("G", {"T": expression}, lambda: 77)[topic]
        self.loop = PullLoop(self.context, subscription, ProcessQueue(self.queue), QueueOffset(first_offset))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.loop.run)
            yield self.loop
            nursery.cancel_scope.cancel()

    def _announce(self) -> None:
        self.announced += 1

    @property
    def pulls(self) -> list[RemotingCommand]:
        return self.cluster.of(RequestCode.PULL_MESSAGE)

    def pulled_offsets(self) -> list[int]:
        return [int(command.ext_fields["queueOffset"]) for command in self.pulls]
