"""What runs inside a push consumer while it is open.

The order of the end is the nesting of :meth:`Engine.serve`: pulling stops first, then what no handler has begun
is forgotten, running handlers end, offsets are stored, the group is left.

Source: behaviour.md B.5 (start), B.17 (requests of brokers), B.18 (shutdown).
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.assignment.locks import LockKeeper
from triomq.client.consumer.assignment.rebalancer import Rebalancer
from triomq.client.consumer.assignment.strategies import AllocateStrategy
from triomq.client.consumer.config import ConsumerConfig, StartPolicy
from triomq.client.consumer.controls import PushControls
from triomq.client.consumer.handlers import Handler
from triomq.client.consumer.hooks import FilterHook
from triomq.client.consumer.maintenance import END_LIMIT_S, Upkeep
from triomq.client.consumer.offsets.first_offsets import FirstOffsets
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.processing.concurrently import ConcurrentService
from triomq.client.consumer.processing.orderly import OrderlyService
from triomq.client.consumer.processing.send_back import PassOver, SendBack
from triomq.client.consumer.processing.workers import concurrent_service
from triomq.client.consumer.pulling.flow_control import FlowLimits
from triomq.client.consumer.pulling.pull_context import PullContext
from triomq.client.consumer.requests.queue_requests import QueueRequests
from triomq.client.consumer.running_info import running_info
from triomq.client.consumer.statistics import ConsumerStatistics
from triomq.client.consumer.subscription import Subscriptions
from triomq.client.nursery import open_service_nursery
from triomq.protocol.bodies.client import ConsumeMessageDirectlyResult, ConsumerData, ConsumeType, MessageModel
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

LOGGER: Final = logging.getLogger("triomq.client.consumer")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a user asked for, checked."""

    group: str
    subscriptions: Subscriptions
    handler: Handler
    start: StartPolicy
    model: MessageModel
    strategy: AllocateStrategy
    config: ConsumerConfig
    orderly: bool = False
    filters: Sequence[FilterHook] = ()

    @property
    def is_broadcast(self) -> bool:
        """Whether each member has all queues."""
        return self.model is MessageModel.BROADCASTING


class Engine:
    """The services of one push consumer on an open instance; also what brokers' requests reach.

    Attributes:
        controls: what the user may change while it runs.
    """

    def __init__(self, instance: ClientInstance, plan: Plan, offsets: OffsetStore) -> None:
        self._instance = instance
        self._plan = plan
        self._started_ms = time.time_ns() // 1_000_000
        requests = QueueRequests(instance, plan.group)
        self._sender = PassOver() if plan.is_broadcast else SendBack(instance, plan.group, plan.config)
        self._service: ConcurrentService | OrderlyService
        self._locks: LockKeeper | None = None
        if plan.orderly:
            self._service = OrderlyService(plan.handler, self._sender, plan.config)
            if not plan.is_broadcast:  # nobody to share the queues with
                self._locks = LockKeeper(requests, plan.config)
        else:
            self._service = concurrent_service(plan.handler, self._sender, plan.config)
        self._offsets = offsets
        self._upkeep = Upkeep(instance, plan.group, offsets)
        self._context = PullContext(
            requests,
            self._offsets,
            self._service,
            plan.config,
            FlowLimits.of(plan.config, 1, orderly=plan.orderly),
            self._upkeep.announce,
            plan.orderly,
            plan.filters,
        )
        first_offsets = FirstOffsets(requests, offsets, plan.start, plan.subscriptions.retry_topic)
        strategy = None if plan.is_broadcast else plan.strategy
        self._rebalancer = Rebalancer(instance, self._context, plan.subscriptions, first_offsets, strategy, self._locks)
        self.controls: Final = PushControls(
            instance, plan.subscriptions, self._context, self._rebalancer, self._service
        )
        self._handlers_scope = trio.CancelScope()

    async def learn_routes(self) -> None:
        """Ask for the routes of all topics.

        Raises:
            NameServerError: no name server answered.
        """
        for topic in self._plan.subscriptions.topics:
            await self._instance.routes.find(topic)

    async def serve(self, stopping: trio.Event, on_start: Callable[[], None]) -> None:
        """Join the group, consume until ``stopping`` is set, then end in order.

        Args:
            stopping: when it is time to end.
            on_start: called once brokers were told of the consumer; before that a cancellation just ends it.

        Raises:
            ClientError: the group is on this instance already.
            BrokerResponseError: an offset was refused, and ``out_of_range`` is "raise".
        """
        self._instance.groups.add_consumer(self._plan.group, self)
        try:
            await self._instance.groups.beat()
            await trio.lowlevel.checkpoint_if_cancelled()
            on_start()
            async with open_service_nursery() as services:
                services.start_soon(self._service.maintain)
                services.start_soon(self._upkeep.run, self._rebalancer)
                if self._locks is not None:
                    services.start_soon(self._locks.run, self._rebalancer.lose, self._rebalancer.revive)
                await self._consume(stopping)
        finally:
            with trio.move_on_after(END_LIMIT_S, shield=True):
                await self._upkeep.leave(self._rebalancer, self._locks)

    def cancel_handlers(self) -> None:
        """Do not wait for running handlers any longer."""
        self._handlers_scope.cancel()

    async def wait_assigned(self) -> None:
        """Return when the first rebalance is done."""
        await self._rebalancer.wait_assigned()

    def statistics(self) -> ConsumerStatistics:
        """Return a picture of now."""
        loops, counters = self._rebalancer.loops, self._rebalancer.counters.values()
        queues = {queue: loop.statistics() for queue, loop in loops.items()}
        return ConsumerStatistics(
            succeeded=sum(counted.succeeded for counted in counters),
            failed=sum(counted.failed for counted in counters),
            sent_back=self._sender.sent,
            filtered=sum(counted.filtered for counted in counters),
            in_flight=self._service.in_flight(),
            cached_messages=sum(queue.cached_messages for queue in queues.values()),
            cached_bytes=sum(queue.cached_bytes for queue in queues.values()),
            pulls=sum(counted.pulls for counted in counters),
            rebalances=self._rebalancer.rounds,
            offset_corrections=self._context.corrections,
            is_suspended=self._context.suspended,
            queues=queues,
        )

    def heartbeat_data(self) -> ConsumerData:
        """Say what the group is and wants."""
        return ConsumerData(
            group_name=self._plan.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self._plan.model,
            consume_from_where=self._plan.start.consume_from_where,
            subscription_data_set=self._plan.subscriptions.data(),
        )

    def subscribed_topics(self) -> Collection[str]:
        """Return all topics, the retry topic included."""
        return self._plan.subscriptions.topics

    def route_changed(self, _topic: str) -> None:
        """Share out the new queues at once."""
        self._rebalancer.wake()

    def connection_lost(self, address: str) -> None:
        """Leave it to the pulls: they failed, try again, and connect by that.

        Locks may be free at once, so orderly queues are taken anew.
        """
        broker_name, _ = self._instance.brokers.addresses().get(address, ("", 0))
        self._rebalancer.broker_lost(broker_name)
        if self._locks is not None:
            self._rebalancer.lose_connection(self._locks.forget_broker(broker_name))

    def members_changed(self) -> None:
        """Share out anew at once."""
        self._rebalancer.wake()

    def reset_offsets(self, _topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on from these offsets in the queues that are held; each queue's own task does it."""
        self._rebalancer.reset(offsets)

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets in memory."""
        self._rebalancer.note_progress()
        return self._offsets.snapshot(topic)

    def running_info(self) -> bytes:
        """Return all that is known, encoded."""
        plan, rebalancer = self._plan, self._rebalancer
        return running_info(
            plan.subscriptions,
            rebalancer.loops,
            rebalancer.counters,
            self._instance.requests.name_servers.addresses,
            self._started_ms,
            concurrency=self._service.concurrency,
            orderly=plan.orderly,
        ).encode()

    async def consume_directly(self, message: MessageExt, broker_name: str) -> bytes:
        """Call the handler with one message; its result moves no offset and sends nothing back."""
        started = trio.current_time()
        queue = MessageQueue(message.topic, broker_name, message.queue_id)
        result, remark = await self._service.consume_directly(message, queue)
        return ConsumeMessageDirectlyResult(
            order=self._plan.orderly,
            consume_result=result,
            remark=remark or None,
            spent_time_mills=round((trio.current_time() - started) * 1000),
        ).encode()

    async def _consume(self, stopping: trio.Event) -> None:
        config = self._plan.config
        with self._handlers_scope:
            async with trio.open_nursery() as handlers:
                handlers.start_soon(self._service.run)
                async with open_service_nursery() as pulls:
                    pulls.start_soon(self._rebalancer.run)
                    await stopping.wait()
                self._service.stop()
                self._handlers_scope.deadline = min(self._handlers_scope.deadline, trio.current_time() + config.grace_s)
        if self._handlers_scope.cancelled_caught:
            LOGGER.warning(
                "handlers were cancelled, their messages come again group=%s grace_s=%s",
                self._plan.group,
                config.grace_s,
            )
