"""A pull loop on the cluster in memory; tests play the consume service."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import trio

from tests.unit.client.consumer.fake_cluster import FakeCluster, offsets_of
from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.offsets.offset_store import RemoteOffsetStore
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.pulling.progress import HandlerProgress
from triomq.client.consumer.pulling.pull_context import PullContext
from triomq.client.consumer.pulling.pull_loop import PullLoop
from triomq.client.consumer.statistics import TopicCounters
from triomq.client.consumer.subscription import Subscriptions
from triomq.protocol.codes import RequestCode
from triomq.protocol.record.message import MessageExt
from triomq.protocol.units import QueueOffset
from triomq.protocol.wire.command import RemotingCommand


class Service:
    """Keeps what it gets; tests consume it."""

    def __init__(self) -> None:
        self.got: list[tuple[ProcessQueue, MessageExt]] = []
        self.busy = 0

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self.got += [(process_queue, message) for message in messages]

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        return self.busy

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
        self.context = PullContext(requests, offsets, HandlerProgress(offsets), self.service, config, self._announce)
        subscription = Subscriptions("G", {"T": expression}, lambda: 77)[topic]
        self.loop = PullLoop(self.context, subscription, self.queue, QueueOffset(first_offset), TopicCounters())
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
