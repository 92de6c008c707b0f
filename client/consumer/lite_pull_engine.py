"""What runs inside a lite pull consumer from its first subscription or assignment on.

Queues are held and pulled as in a push consumer; what they bring waits in a buffer until it is polled.  Offsets move
only when somebody commits.

Source: behaviour.md B.15, DefaultLitePullConsumerImpl.java.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.assignment.rebalancer import Rebalancer
from triomq.client.consumer.assignment.strategies import AllocateStrategy
from triomq.client.consumer.config import LitePullConfig, StartPolicy
from triomq.client.consumer.controls import Controls
from triomq.client.consumer.maintenance import Upkeep
from triomq.client.consumer.offsets.first_offsets import FirstOffsets
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.pulling.flow_control import FlowLimits
from triomq.client.consumer.pulling.poll_buffer import PollBuffer
from triomq.client.consumer.pulling.pull_context import PullContext
from triomq.client.consumer.pulling.pull_loop import PullLoop
from triomq.client.consumer.requests.queue_requests import QueueRequests
from triomq.client.consumer.running_info import running_info
from triomq.client.consumer.statistics import LitePullStatistics
from triomq.client.consumer.subscription import Subscriptions
from triomq.client.nursery import open_service_nursery
from triomq.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumeResult,
    ConsumeType,
    MessageModel,
)
from triomq.protocol.errors import ClientClosedError, ClientError
from triomq.protocol.filters.tags import SUBSCRIBE_ALL
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt
from triomq.protocol.units import QueueOffset


@dataclass(frozen=True, slots=True)
class LitePullPlan:
    """What a user asked for, checked."""

    group: str
    start: StartPolicy
    strategy: AllocateStrategy
    config: LitePullConfig
    model: MessageModel = MessageModel.CLUSTERING


class LitePullEngine:
    """The services of one lite pull consumer on an open instance; also what brokers' requests reach.

    Attributes:
        buffer: what can be polled.
        assigned: whether its queues are chosen by the user, not shared out in the group.
        controls: what the user may change of the subscriptions.
    """

    def __init__(self, instance: ClientInstance, plan: LitePullPlan, offsets: OffsetStore, *, assigned: bool) -> None:
        """Join the group.

        Raises:
            ClientError: the group is on this instance already.
        """
        self.buffer = PollBuffer()
        self.assigned = assigned
        self._instance = instance
        self._plan = plan
        self._started_ms = time.time_ns() // 1_000_000
        self._offsets = offsets
        self._upkeep = Upkeep(instance, plan.group, offsets)
        requests = QueueRequests(instance, plan.group)
        self._context = PullContext(
            requests,
            offsets,
            self.buffer,
            plan.config,
            FlowLimits.of(plan.config, 1),
            self._upkeep.announce,
            lite=True,
        )
        self._subscriptions = Subscriptions(
            plan.group, {}, lambda: time.time_ns() // 1_000_000, with_retry_topic=False, may_be_empty=True
        )
        first_offsets = FirstOffsets(
            requests, offsets, plan.start, self._subscriptions.retry_topic, is_stored=not assigned
        )
        self._chosen: dict[str, frozenset[MessageQueue]] = {}
        self._rebalancer = Rebalancer(
            instance,
            self._context,
            self._subscriptions,
            first_offsets,
            None if plan.model is MessageModel.BROADCASTING else plan.strategy,
            chosen=self._chosen if assigned else None,
        )
        self.controls: Final = Controls(instance, self._subscriptions, self._context, self._rebalancer)
        instance.groups.add_consumer(plan.group, self)

    async def run(self) -> None:
        """Hold and pull queues until cancelled.

        Raises:
            BrokerResponseError: an offset was refused, and ``out_of_range`` is "raise".
        """
        async with open_service_nursery() as services:
            services.start_soon(self._upkeep.run, self._rebalancer)
            await self._rebalancer.run()

    async def leave(self) -> None:
        """Store what was committed and leave the group; shield it, for ``END_LIMIT_S``."""
        await self._upkeep.leave(self._rebalancer)

    async def assign(self, queues: Collection[MessageQueue], expressions: Mapping[str, str]) -> None:
        """Hold these queues and no others; returns when they are held."""
        chosen = {queue.topic: frozenset(one for one in queues if one.topic == queue.topic) for queue in queues}
        for topic in chosen:
            await self._instance.routes.topic_route(topic)
        for topic in self._subscriptions.topics:
            if topic not in chosen:
                self._subscriptions.remove(topic)
        for topic in chosen:
            self._subscriptions.put(topic, expressions.get(topic, SUBSCRIBE_ALL))
            self._rebalancer.pull_anew(topic)
        self._chosen.clear()
        self._chosen.update(chosen)
        await self._rebalancer.wait_next_round()
        while not self._rebalancer.loops.keys() >= frozenset().union(*self._chosen.values()):
            if self._rebalancer.is_over:
                raise ClientClosedError("the consumer was left before its queues were held")
            await trio.sleep(self._plan.config.retry_interval_s)
            await self._rebalancer.wait_next_round()

    async def wait_assigned(self) -> None:
        """Return when all topics that exist have been shared out."""
        await self._rebalancer.wait_assigned()

    async def wait_round_end(self) -> None:
        """Return when queues may have come or gone."""
        await self._rebalancer.wait_round_end()

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are held, sorted."""
        return tuple(sorted(self._rebalancer.loops))

    def loop(self, queue: MessageQueue) -> PullLoop:
        """Return the pull loop of a queue.

        Raises:
            ClientError: the queue is not held.
        """
        loop = self._rebalancer.loops.get(queue)
        if loop is None:
            raise ClientError(f"{queue} is not assigned to this consumer")
        return loop

    def commit_nowait(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        """Note progress; it is stored with the next pull or timer."""
        for queue, queue_offset in offsets.items():
            self._offsets.update(queue, queue_offset, increase_only=False)

    async def commit(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        """Note progress, store it, and wait until it is stored."""
        await self._offsets.commit(offsets)

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the progress in memory, else what is stored."""
        known = self._offsets.get(queue)
        return await self._offsets.stored(queue) if known is None else known

    def statistics(self) -> LitePullStatistics:
        """Return a picture of now."""
        counters = self._rebalancer.counters.values()
        queues = {queue: loop.statistics() for queue, loop in self._rebalancer.loops.items()}
        return LitePullStatistics(
            polled=sum(counted.succeeded for counted in counters),
            filtered=sum(counted.filtered for counted in counters),
            cached_messages=sum(queue.cached_messages for queue in queues.values()),
            cached_bytes=sum(queue.cached_bytes for queue in queues.values()),
            pulls=sum(counted.pulls for counted in counters),
            rebalances=self._rebalancer.rounds,
            offset_corrections=self._context.corrections,
            queues=queues,
        )

    def heartbeat_data(self) -> ConsumerData:
        """Say what the group is and wants; who chose queues subscribes to nothing."""
        return ConsumerData(
            group_name=self._plan.group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=self._plan.model,
            consume_from_where=self._plan.start.consume_from_where,
            subscription_data_set=[] if self.assigned else self._subscriptions.data(),
        )

    def subscribed_topics(self) -> Collection[str]:
        """Return all topics."""
        return self._subscriptions.topics

    def route_changed(self, _topic: str) -> None:
        """Share out the new queues at once."""
        self._rebalancer.wake()

    def connection_lost(self, address: str) -> None:
        """Leave it to the pulls: they failed, try again, and connect by that."""
        broker_name, _ = self._instance.brokers.addresses().get(address, ("", 0))
        self._rebalancer.broker_lost(broker_name)

    def members_changed(self) -> None:
        """Share out anew at once."""
        self._rebalancer.wake()

    def reset_offsets(self, _topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on from these offsets in the queues that are held, and store them; Java's lite pull ignores this."""
        self._rebalancer.reset(offsets)

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets in memory."""
        return self._offsets.snapshot(topic)

    def running_info(self) -> bytes:
        """Return all that is known, encoded."""
        return running_info(
            self._subscriptions,
            self._rebalancer.loops,
            self._rebalancer.counters,
            self._instance.requests.name_servers.addresses,
            self._started_ms,
        ).encode()

    async def consume_directly(self, _message: MessageExt, _broker_name: str) -> bytes:
        """Say that there is no handler."""
        await trio.lowlevel.checkpoint()
        return ConsumeMessageDirectlyResult(
            consume_result=ConsumeResult.CR_THROW_EXCEPTION,
            remark="a lite pull consumer has no handler: its user polls",
        ).encode()
