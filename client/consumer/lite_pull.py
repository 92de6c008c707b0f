"""The lite pull consumer: its user polls; queues are assigned by the group, or by the user.

Source: behaviour.md B.15, DefaultLitePullConsumer.java.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.config import ClientConfig
from triomq.client.consumer.assignment.strategies import AllocateStrategy, allocate_averagely
from triomq.client.consumer.config import LitePullConfig, StartOffset, StartPolicy
from triomq.client.consumer.engine import END_LIMIT_S, Engine, Plan, open_group
from triomq.client.consumer.handlers import ConsumeObserver
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.pull import QueueQueries
from triomq.client.consumer.pulling.pull_context import PollBuffer
from triomq.client.consumer.pulling.pull_loop import PullLoop
from triomq.client.consumer.topics import LitePullStatistics, Subscriptions
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import open_service_nursery
from triomq.client.producer.tracing import open_tracer, trace_topic
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.errors import ClientError, ConfigError
from triomq.protocol.filters.filter_types import SUBSCRIBE_ALL, FilterExpression, filter_of
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.names import validate_group, validate_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.typed import checked

ToCommit: TypeAlias = Mapping[MessageQueue, int] | Iterable[MessageQueue] | None
"""Offsets to commit, or queues whose polled messages are committed; ``None``: all queues held."""


class LitePullConsumer(QueueQueries):
    """Returns messages when it is polled, each one once while it holds the queue.

    ::

        async with LitePullConsumer("group", namesrv="127.0.0.1:9876", start="earliest") as consumer:
            await consumer.subscribe("Topic", "TagA || TagB")
            while True:
                for message in await consumer.poll():
                    print(message.topic, message.body)

    Either :meth:`subscribe`, and share the queues with the other members of the group, or :meth:`assign` queues of
    your choice, which are shared with no member; not both.

    Messages are pulled ahead within the limits of the settings.  The *position* of a queue is the first message that
    was not polled; a commit stores it, so a message that was not polled is never committed.  With ``auto_commit``
    a poll commits, every ``auto_commit_interval_s``, what earlier polls returned: finish with all messages of one poll
    before the next.  Nothing is committed automatically at the end: after a restart the messages of
    the last polls may be delivered again.

    With ``model=MessageModel.BROADCASTING`` every member gets every message of its subscriptions, and commits go to
    a local file, as those of a push consumer: see there for its place and for the name in ``config``.

    When an administrator resets the group's offsets, its positions move there, as by :meth:`seek`, and are committed.

    There is no retry topic: the user decides about messages that cannot be handled.
    """

    @checked
    def __init__(  # noqa: PLR0913  # all keywords, all with defaults
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
        start: StartOffset = "latest",
        auto_commit: bool = True,
        model: MessageModel = MessageModel.CLUSTERING,
        allocate: AllocateStrategy = allocate_averagely,
        settings: LitePullConfig | None = None,
        trace: bool | str = False,
    ) -> None:
        """Check the settings; nothing happens before the consumer is entered.

        Args:
            group: name of the consumer group; all its members must have the same subscriptions.
            namesrv: name servers, ``"host:port;host:port"`` or a sequence; not with ``instance``.
            instance: connections to share with other clients; must outlive this.
            config: settings of the connections; not with ``instance``.
            start: where a group without committed offsets begins: "earliest", "latest", the first message stored at or
                after a time, or an offset, the same in each queue.  A topic that is created later always begins with
                its first message.
            auto_commit: whether polls commit what earlier polls returned.
            model: whether the members share the queues (CLUSTERING) or each gets every message (BROADCASTING).
            allocate: how queues are shared among members; all members must use the same.  Not used in broadcasting.
            settings: all other settings.
            trace: record polled messages, in ``RMQ_SYS_TRACE_TOPIC`` or the topic named here.

        Raises:
            IllegalNameError, ConfigError: the group's name, or an impossible value.
        """
        validate_group(group)
        self.group = group
        self.auto_commit = auto_commit
        self._settings = settings or LitePullConfig()
        subscriptions = Subscriptions(group, {}, wall_clock_ms, with_retry_topic=False, may_be_empty=True)
        self._plan = Plan(group, subscriptions, StartPolicy.parse(start), model, allocate, self._settings)
        self._open_group = partial(open_group, self._plan, namesrv, config, instance)
        self._trace_topic = trace_topic(trace)
        self._observer: ConsumeObserver
        self._engine: Engine | None = None
        self._assigns: bool  # the user chooses the queues
        self._buffer = PollBuffer()
        self._next_auto_commit = 0.0
        self._nursery: trio.Nursery
        self._offsets: OffsetStore

    async def subscribe(self, topic: str, expression: FilterExpression = SUBSCRIBE_ALL) -> None:
        """Consume a topic as a member of the group, or change the expression of a subscribed topic.

        Returns once the queues are assigned; requests to an unreachable broker are
        repeated, see :meth:`wait_assigned`.  Cached messages of an earlier expression may still be polled.

        Raises:
            IllegalNameError: the topic's name.
            SubscriptionParseError: the expression.
            ClientError: queues are assigned; or the group is on a shared instance already.
        """
        validate_topic(topic)
        filter_of(expression)
        await self._start(assigns=False).subscribe(topic, expression)

    async def unsubscribe(self, topic: str) -> None:
        """Give up a topic; its committed offsets are stored, its cached messages dropped.

        Raises:
            ConfigError: the topic is not subscribed to.
            ClientError: nothing is, or queues are assigned.
        """
        engine = self._started()
        if self._assigns:
            raise ClientError("unsubscribe: queues are assigned; use assign")
        await engine.unsubscribe(topic)

    async def assign(
        self, queues: Iterable[MessageQueue], expressions: Mapping[str, FilterExpression] | None = None
    ) -> None:
        """Consume these queues and no others, whatever other consumers do; returns when they are held.

        Args:
            queues: all of them; those held before and missing here are given up.
            expressions: filters by topic; "*" for topics not named here.

        Raises:
            SubscriptionParseError: an expression.
            NoRouteError: a topic does not exist.
            ClientError: a topic is subscribed to; or the group is on a shared instance already.
        """
        expressions = expressions or {}
        for expression in expressions.values():
            filter_of(expression)
        await self._start(assigns=True).assign(frozenset(queues), expressions)

    async def wait_assigned(self) -> None:
        """Return when the first subscription has been assigned, at every broker.

        A topic that does not exist counts as done.

        Raises:
            ClientError: nothing is subscribed to or assigned.
        """
        await self._started().rebalancer.assigned.wait()
        self._open()  # it may have been left meanwhile

    def assignment(self) -> tuple[MessageQueue, ...]:
        """Return the queues held, sorted."""
        return () if self._engine is None else tuple(sorted(self._engine.rebalancer.loops))

    async def wait_assignment_changed(self, known: Collection[MessageQueue]) -> tuple[MessageQueue, ...]:
        """Return the queues held, sorted, once they differ from those ``known``.

        Raises:
            ClientError: nothing is subscribed to or assigned, or the consumer was left.
        """
        while set(queues := tuple(sorted(self._started().rebalancer.loops))) == set(known):
            await self._started().rebalancer.round_ended.wait()
        return queues

    async def poll(self, wait_s: float = 5.0) -> list[MessageExt]:
        """Return the messages of one pull, all of one queue; none if none arrived in time.

        A cancelled call has taken no message.

        Raises:
            ConfigError: a negative time.
            ClientError: nothing is subscribed to or assigned.
        """
        check_wait(wait_s)
        await trio.lowlevel.checkpoint()
        messages = self.poll_nowait()
        if not messages and wait_s:
            with trio.move_on_after(wait_s):
                while not messages:
                    await self.wait_messages()
                    messages = self.poll_nowait()
        return messages

    def poll_nowait(self) -> list[MessageExt]:
        """Return the messages of one pull, or none, without waiting.

        Raises:
            ClientError: nothing is subscribed to or assigned.
        """
        self._started()
        if self.auto_commit and (now := trio.current_time()) >= self._next_auto_commit:
            self._next_auto_commit = now + self._settings.auto_commit_interval_s
            self.commit_nowait()
        messages = self._buffer.take()
        if messages:
            self._observer.polled(self.group, messages)
        return messages

    async def wait_messages(self) -> None:
        """Return when :meth:`poll_nowait` may return messages."""
        self._started()
        await self._buffer.wait()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling these queues; cached messages can be polled.

        Raises:
            ClientError: a queue is not held.
        """
        for loop in [self._loop(queue) for queue in queues]:
            loop.set_paused(paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull these queues again.

        Raises:
            ClientError: a queue is not held.
        """
        for loop in [self._loop(queue) for queue in queues]:
            loop.set_paused(paused=False)

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset of the first message that was not polled.

        ``None`` while the broker shows an empty queue where the group had progress.

        Raises:
            ClientError: the queue is not held.
        """
        return self._loop(queue).position()

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue with another message; cached messages of the queue are dropped.  The next commit stores it.

        Raises:
            ConfigError: the offset is below the queue's first or above its end.
            ClientError: the queue is not held.
        """
        self._loop(queue)
        low, high = await self.min_offset(queue), await self.max_offset(queue)
        if not low <= queue_offset <= high:
            raise ConfigError(f"seek: {queue}: offset {queue_offset} is not within {low} and {high}")
        self._seek(queue, queue_offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue with the queue's first message.  Raises as :meth:`seek`."""
        self._loop(queue)
        self._seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with the next message to arrive.  Raises as :meth:`seek`."""
        self._loop(queue)
        self._seek(queue, await self.max_offset(queue))

    async def seek_to_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue with the first message stored at or after a time.  Raises as :meth:`seek`."""
        self._loop(queue)
        self._seek(queue, await self.offset_for_timestamp(queue, timestamp_ms))

    async def commit(self, offsets: ToCommit = None) -> None:
        """Commit and wait until the brokers have it, or in broadcasting the file.

        Args:
            offsets: offsets by queue; or queues, whose positions are committed; all queues if not given.

        Raises:
            ConfigError: a negative offset.
            ClientError: a queue is not held, given up meanwhile perhaps; or a broker cannot be reached, the file not
                written.
            BrokerResponseError: a broker refused.
        """
        await self._offsets.commit(self._positions(offsets))

    def commit_nowait(self, offsets: ToCommit = None) -> None:
        """Commit without waiting: offsets are stored with the next pull, or within half a second.

        In broadcasting the file is written every ``persist_offset_interval_s``.

        Raises:
            ConfigError: a negative offset.
            ClientError: a queue is not held.
        """
        for queue, queue_offset in self._positions(offsets).items():
            self._offsets.update(queue, queue_offset, increase_only=False)

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset committed last, here or else by the group; ``None`` without one.

        A broker older than 5.0 may return 0 for a group without offset while the queue's first message is young.
        """
        self._open()
        known = self._offsets.get(queue)
        return await self._offsets.stored(queue) if known is None else known

    def statistics(self) -> LitePullStatistics:
        """Return an immutable snapshot of the statistics, also after the end.

        Raises:
            ClientError: nothing was subscribed to or assigned.
        """
        if self._engine is None:
            raise ClientError("nothing is subscribed to or assigned")
        counters = self._engine.rebalancer.counters.values()
        polled = sum(counted.succeeded for counted in counters)
        return LitePullStatistics(polled=polled, **self._engine.common_statistics())

    def _start(self, *, assigns: bool) -> Engine:
        instance = self._open().instance
        if self._engine is None:
            self._assigns = assigns
            chosen: dict[str, frozenset[MessageQueue]] | None = {} if assigns else None
            engine = Engine(instance, self._plan, self._offsets, self._buffer, chosen=chosen)
            engine.join()
            self._engine = engine
            self._nursery.start_soon(engine.maintain)
            self._nursery.start_soon(engine.rebalancer.run)
        elif self._assigns is not assigns:
            raise ClientError("subscribe and assign are mutually exclusive: use another consumer for the other")
        return self._engine

    def _started(self) -> Engine:
        self._open()
        if self._engine is None:
            raise ClientError("nothing is subscribed to or assigned: call subscribe or assign first")
        return self._engine

    def _loop(self, queue: MessageQueue) -> PullLoop:
        return self._started().rebalancer.loop(queue)

    def _seek(self, queue: MessageQueue, queue_offset: int) -> None:
        self._loop(queue).move(QueueOffset(queue_offset))

    def _positions(self, offsets: ToCommit) -> dict[MessageQueue, QueueOffset]:
        loops = self._started().rebalancer.loops
        if isinstance(offsets, Mapping):
            for queue, queue_offset in offsets.items():
                self._loop(queue)
                if queue_offset < 0:
                    raise ConfigError(f"commit: {queue}: offset {queue_offset} must not be negative")
            return {queue: QueueOffset(queue_offset) for queue, queue_offset in offsets.items()}
        queues: Collection[MessageQueue] = loops if offsets is None else tuple(offsets)
        positions = {queue: self._loop(queue).position() for queue in queues}
        return {queue: position for queue, position in positions.items() if position is not None}

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with (
            self._open_group() as (instance, self._offsets),
            open_tracer(instance, self.group, self._trace_topic, "CONSUME") as tracer,
            open_service_nursery() as self._nursery,
        ):
            self._observer = ConsumeObserver(tracer, instance.telemetry, self._plan.model)
            self._requests = QueueRequests(instance, self.group)
            try:
                yield
            finally:
                self._requests = None
                if self._engine is not None:
                    self._buffer.close()
                    with trio.move_on_after(END_LIMIT_S, shield=True):
                        await self._engine.leave()


def check_wait(wait_s: float) -> None:
    """Check a time to wait.

    Raises:
        ConfigError: a negative time.
    """
    if wait_s < 0:
        raise ConfigError(f"poll: wait_s {wait_s} must not be negative")
