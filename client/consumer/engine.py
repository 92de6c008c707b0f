"""What every consumer that holds queues consists of, and the requests of brokers that reach it.

A kind of consumer gives its consume service, which takes the messages, and its plan.

Source: behaviour.md B.5 (start, subscribing while running, suspend and resume), B.17 (requests of brokers).
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.config import ClientConfig
from triomq.client.consumer.assignment.locks import LockKeeper
from triomq.client.consumer.assignment.rebalancer import Rebalancer
from triomq.client.consumer.assignment.strategies import AllocateStrategy
from triomq.client.consumer.config import PullConfig, StartPolicy
from triomq.client.consumer.handlers import FilterHook
from triomq.client.consumer.offsets.first_offsets import FirstOffsets
from triomq.client.consumer.offsets.local_offsets import open_offsets
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.pulling.pull_context import ConsumeService, PullContext
from triomq.client.consumer.topics import SAMPLE_INTERVAL_S, Subscriptions
from triomq.client.environment import wall_clock_ms
from triomq.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeType,
    MessageModel,
)
from triomq.protocol.errors import ClientClosedError
from triomq.protocol.filters.filter_types import SUBSCRIBE_ALL, FilterExpression
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import validate_topic
from triomq.protocol.record.message import MessageExt


@dataclass(frozen=True, slots=True)
class Plan:
    """What a user asked for, checked."""

    group: str
    subscriptions: Subscriptions
    start: StartPolicy
    model: MessageModel
    strategy: AllocateStrategy
    config: PullConfig
    orderly: bool = False
    filters: Sequence[FilterHook] = ()

    @property
    def is_broadcast(self) -> bool:
        """Whether each member has all queues."""
        return self.model is MessageModel.BROADCASTING


@asynccontextmanager
async def open_group(
    plan: Plan, namesrv: str | Sequence[str] | None, config: ClientConfig | None, instance: ClientInstance | None
) -> AsyncGenerator[tuple[ClientInstance, OffsetStore], None]:
    """Borrow the given instance or open one, and open the place where the group's progress is kept.

    Raises:
        ConfigError: instance and name server are both given, or neither is; or the folder of offsets cannot be used.
        IllegalNameError: with the namespace, the name of a topic or of the retry topic is too long.
        ClientError: another consumer of this machine has the file of offsets.
        ProtocolError: the file of offsets cannot be read.
    """
    if plan.is_broadcast and instance is None:
        config = config or ClientConfig()  # the file of offsets is found by the client id
        config = replace(config, instance_name=config.instance_name or _BROADCASTING_INSTANCE)
    async with (
        use_instance(namesrv, config, instance) as used,
        open_offsets(used, plan.group, plan.model, plan.config.local_offset_dir) as offsets,
    ):
        for topic in plan.subscriptions.topics:
            validate_topic(used.requests.namespace.wrap(topic))
        yield used, offsets


#: Name of instances in broadcasting; in clustering Java puts the process id in its place.  Source: ClientConfig.java.
_BROADCASTING_INSTANCE: Final = "DEFAULT"
#: Java's format of versions, which its tools parse.
_CLIENT_VERSION: Final = "V4_9_7"
#: How often progress is stored that no pull has carried to the broker.
_CHANGES_INTERVAL_S: Final = 0.5
#: Time to store the last offsets when a consumer ends, and to leave the group after that.
_LAST_COMMIT_LIMIT_S: Final = 3.0
_LEAVE_LIMIT_S: Final = 2.0
#: Time for all of :meth:`Engine.leave`.
END_LIMIT_S: Final = _LAST_COMMIT_LIMIT_S + 2 * _LEAVE_LIMIT_S


class Engine:
    """Holds and pulls the queues of one consumer, stores its offsets, and answers brokers.

    Attributes:
        rebalancer: the queues held.
    """

    def __init__(
        self,
        instance: ClientInstance,
        plan: Plan,
        offsets: OffsetStore,
        service: ConsumeService,
        locks: LockKeeper | None = None,
        chosen: dict[str, frozenset[MessageQueue]] | None = None,
    ) -> None:
        """Compose the parts; nothing happens before :meth:`join`.

        Args:
            instance: an open instance.
            plan: what the user asked for.
            offsets: where progress is kept.
            service: takes the messages.
            locks: the broker's queue locks, of orderly consumption.
            chosen: queues by topic that the user chose, see :meth:`assign`; ``None``: the group shares them.
        """
        self._instance = instance
        self._plan = plan
        self._locks = locks
        self._chosen = chosen
        self._started_ms = wall_clock_ms()
        self._changing = trio.Lock()
        self._unannounced = trio.Event()
        requests = QueueRequests(instance, plan.group)
        self._context = PullContext(
            requests, offsets, service, plan.config, lambda: self._unannounced.set(), plan.orderly, plan.filters
        )
        is_lite = self._context.is_lite
        self._consume_type = ConsumeType.CONSUME_ACTIVELY if is_lite else ConsumeType.CONSUME_PASSIVELY
        retry_topic = plan.subscriptions.retry_topic
        first_offsets = FirstOffsets(requests, offsets, plan.start, retry_topic, is_stored=chosen is None)
        strategy = None if plan.is_broadcast else plan.strategy
        self.rebalancer = Rebalancer(
            instance, self._context, plan.subscriptions, first_offsets, strategy, locks, chosen
        )

    def join(self) -> None:
        """Become a member of the group: brokers learn it from the next heartbeat.

        Raises:
            ClientError: the group is on this instance already.
        """
        self._instance.groups.add_consumer(self._plan.group, self)

    async def maintain(self) -> None:
        """Do the periodic work; runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._persist_offsets)
            nursery.start_soon(self._sample)
            nursery.start_soon(self._send_announcements)
            if self._locks is not None:
                nursery.start_soon(self._locks.run, self.rebalancer.lose, self.rebalancer.revive)

    async def leave(self) -> None:
        """Store the last offsets, release the locks and leave the group; shield it, for ``END_LIMIT_S``."""
        with trio.move_on_after(_LAST_COMMIT_LIMIT_S):
            self.rebalancer.update_progress()
            if self.rebalancer.is_out_of_date:
                await self._context.offsets.persist(self.rebalancer.held, changed_only=True)
            else:
                await self._context.offsets.persist_now(self.rebalancer.held)
        if self._locks is not None:  # only now: the next owner of a queue begins at the stored offset
            with trio.move_on_after(_LEAVE_LIMIT_S):
                await self._locks.release_all()
        with trio.move_on_after(_LEAVE_LIMIT_S):
            await self._instance.groups.remove_consumer(self._plan.group)

    async def _persist_offsets(self) -> None:
        """Store all offsets once per interval and changes sooner, so that a crash or a new member redelivers less."""
        interval_s = self._instance.config.persist_offset_interval_s
        next_full = trio.current_time() + interval_s
        while True:
            await trio.sleep(min(interval_s, _CHANGES_INTERVAL_S))
            full = trio.current_time() >= next_full
            if full:
                next_full += interval_s
            self.rebalancer.update_progress()
            # must not set back what a new member has stored of a queue that is still held here
            changed_only = not full or self.rebalancer.is_out_of_date
            await self._context.offsets.persist(tuple(self.rebalancer.loops), changed_only=changed_only)

    async def _sample(self) -> None:
        while True:
            for counted in self.rebalancer.counters.values():
                counted.sample(trio.current_time())
            await trio.sleep(SAMPLE_INTERVAL_S)

    async def _send_announcements(self) -> None:
        while True:
            await self._unannounced.wait()
            self._unannounced = trio.Event()
            await self._instance.groups.beat()

    async def subscribe(self, topic: str, expression: FilterExpression) -> None:
        """Add a topic, or change its expression; see :meth:`PushConsumer.subscribe`."""
        async with self._changing:
            subscription, is_changed = self._plan.subscriptions.put(topic, expression)
            await self._context.requests.check_filter(subscription.data())
            await self._instance.groups.beat()
            subscription.announced()
            if is_changed:
                self.rebalancer.pull_anew(topic)
            await self.rebalancer.wait_next_round()

    async def unsubscribe(self, topic: str) -> None:
        """Remove a topic; see :meth:`PushConsumer.unsubscribe`."""
        async with self._changing:
            self._plan.subscriptions.remove(topic)
            await self.rebalancer.wait_next_round()
            await self._instance.groups.beat()

    async def assign(self, queues: Collection[MessageQueue], expressions: Mapping[str, FilterExpression]) -> None:
        """Hold these queues and no others; returns when they are held."""
        assert self._chosen is not None
        subscriptions, rebalancer = self._plan.subscriptions, self.rebalancer
        chosen = {queue.topic: frozenset(one for one in queues if one.topic == queue.topic) for queue in queues}
        for topic in chosen:
            await self._instance.routes.topic_route(topic)
        for topic in subscriptions.topics:
            if topic not in chosen:
                subscriptions.remove(topic)
        for topic in chosen:
            subscription, is_changed = subscriptions.put(topic, expressions.get(topic, SUBSCRIBE_ALL))
            await self._context.requests.check_filter(subscription.data())
            if is_changed:
                rebalancer.pull_anew(topic)
        self._chosen.clear()
        self._chosen.update(chosen)
        await self._instance.groups.beat()
        await rebalancer.wait_next_round()
        while not rebalancer.loops.keys() >= frozenset().union(*self._chosen.values()):
            if rebalancer.is_over:
                raise ClientClosedError("the consumer was left before its queues were held")
            await trio.sleep(self._plan.config.retry_interval_s)
            await rebalancer.wait_next_round()

    def suspend(self) -> None:
        """Pull nothing and rebalance nothing until :meth:`resume`."""
        self._context.suspended = True
        self.rebalancer.pull_anew()

    def resume(self) -> None:
        """Pull again, and rebalance at once."""
        self._context.suspended = False
        self.rebalancer.pull_anew()
        self.rebalancer.wake()

    @property
    def is_suspended(self) -> bool:
        """Whether nothing is pulled until :meth:`resume`."""
        return self._context.suspended

    def common_statistics(self) -> dict[str, Any]:
        """Return the fields that the statistics of all kinds of consumers have."""
        loops, counters = self.rebalancer.loops, self.rebalancer.counters.values()
        queues = {queue: loop.statistics() for queue, loop in loops.items()}
        return {
            "filtered": sum(counted.filtered for counted in counters),
            "cached_messages": sum(queue.cached_messages for queue in queues.values()),
            "cached_bytes": sum(queue.cached_bytes for queue in queues.values()),
            "pulls": sum(counted.pulls for counted in counters),
            "rebalances": self.rebalancer.rounds,
            "offset_corrections": self._context.corrections,
            "queues": queues,
        }

    def heartbeat_data(self) -> ConsumerData:
        """Return the group and its subscriptions; a user who chose queues subscribes to nothing."""
        plan = self._plan
        return ConsumerData(
            group_name=plan.group,
            consume_type=self._consume_type,
            message_model=plan.model,
            consume_from_where=plan.start.consume_from_where,
            subscription_data_set=plan.subscriptions.data() if self._chosen is None else [],
        )

    def subscribed_topics(self) -> Collection[str]:
        """Return all topics, the retry topic included."""
        return self._plan.subscriptions.topics

    def route_changed(self, _topic: str) -> None:
        """Rebalance at once."""
        self.rebalancer.wake()

    def members_changed(self) -> None:
        """Rebalance at once."""
        self.rebalancer.wake()

    def connection_lost(self, address: str) -> None:
        """Expect that others take over the broker's queues; pulls, which have failed, reconnect."""
        broker_name, _ = self._instance.brokers.addresses().get(address, ("", 0))
        self.rebalancer.broker_lost(broker_name)

    def reset_offsets(self, _topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue from these offsets in the queues held, and store them; Java's lite pull consumer ignores this."""
        self.rebalancer.reset(offsets)

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets in memory."""
        self.rebalancer.update_progress()
        return self._context.offsets.snapshot(topic)

    def running_info(self) -> bytes:
        """Return the consumer's settings, subscriptions and queues, encoded for request 307."""
        now, wall_ms = trio.current_time(), wall_clock_ms()
        properties = {
            "PROP_CLIENT_VERSION": _CLIENT_VERSION,
            "PROP_CONSUMEORDERLY": "true" if self._plan.orderly else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": self._consume_type.value,
            "PROP_NAMESERVER_ADDR": ";".join(self._instance.requests.name_servers.addresses),
        }
        if (concurrency := self._context.service.concurrency) is not None:
            properties["PROP_THREADPOOL_CORE_SIZE"] = str(concurrency)
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=self._plan.subscriptions.data(),
            mq_table={
                queue: loop.process_queue.running_info(loop.statistics().committed_offset, now, wall_ms)
                for queue, loop in self.rebalancer.loops.items()
            },
            status_table={topic: counted.rates(now) for topic, counted in self.rebalancer.counters.items()},
        ).encode()

    async def consume_directly(self, message: MessageExt, broker_name: str) -> bytes:
        """Call the handler with one message; its result moves no offset and sends nothing back."""
        started = trio.current_time()
        queue = MessageQueue(message.topic, broker_name, message.queue_id)
        result, remark = await self._context.service.consume_directly(message, queue)
        return ConsumeMessageDirectlyResult(
            order=self._plan.orderly,
            consume_result=result,
            remark=remark or None,
            spent_time_mills=round((trio.current_time() - started) * 1000),
        ).encode()
