"""The push consumer: delivers messages to a handler.

Source: behaviour.md B.0 (the pipeline), B.5 (configuration and start), B.18 (shutdown).
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.config import ClientConfig
from triomq.client.consumer.assignment.locks import LockKeeper
from triomq.client.consumer.assignment.strategies import AllocateStrategy, allocate_averagely
from triomq.client.consumer.config import MAX_CONCURRENCY, ConsumerConfig, StartOffset, StartPolicy
from triomq.client.consumer.engine import END_LIMIT_S, Engine, Plan, open_group
from triomq.client.consumer.handlers import (
    ARE_GONE,
    COME_LATER,
    ConsumeHook,
    ConsumeObserver,
    FilterHook,
    Handler,
    OnMessage,
    OnMessages,
)
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.processing.concurrently import ConcurrentService
from triomq.client.consumer.processing.orderly import OrderlyService
from triomq.client.consumer.processing.send_back import PassOver, SendBack
from triomq.client.consumer.topics import ConsumerStatistics, Subscriptions
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import OpenOnce, open_service_nursery, stop_signals
from triomq.client.producer.reply import Replier
from triomq.client.producer.tracing import open_tracer, trace_topic
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.errors import ClientClosedError, ConfigError
from triomq.protocol.filters.filter_types import FilterExpression
from triomq.protocol.names import validate_group
from triomq.protocol.typed import checked

LOGGER: Final = logging.getLogger("triomq.client.consumer")


class PushConsumer(OpenOnce):
    """Consumes topics as a member of a group: each message goes to one member's handler, at least once.

    ::

        async def on_message(message: MessageExt) -> None:
            print(message.topic, message.body)

        async with PushConsumer(
            "group", namesrv="127.0.0.1:9876", on_message=on_message, subscriptions={"Topic": "TagA || TagB"}
        ):
            await trio.sleep_forever()

    A handler that returns ``None`` or ``ConsumeStatus.SUCCESS`` has consumed its message.  After
    ``RECONSUME_LATER`` or an exception the message is redelivered after 10 s, 30 s, 1 min and so on, and after
    the last time goes to the group's dead-letter topic.  A handler may get a message more than once.

    With ``orderly`` the messages of one queue are handled one after another, in their order, even while members
    join and leave; queues are independent.  A failed message then blocks its queue and is redelivered after
    ``settings.suspend_queue_s``, up to ``settings.orderly_max_reconsume_times`` times, by default without
    limit.  Such a handler returns ``ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT``, or raises.

    With ``model=MessageModel.BROADCASTING`` every member gets every message.  A failure is logged and final.  Progress
    is kept on the member's machine, in ``~/.rocketmq_offsets/CLIENT_ID/GROUP/offsets.json`` (see
    ``settings.local_offset_dir``), so a restarted member continues if its client id is the same: by default it is
    the address and ``DEFAULT``, as in Java.  A second member of the group on one machine needs another name,
    ``config=ClientConfig(instance_name=...)``, and is rejected without.

    Leaving the block stops pulling at once, drops messages that no handler has begun, waits for running handlers up to
    the grace time, stores the offsets of consumed messages and leaves the group.  A cancellation or an error does
    the same; a second cancellation, or Ctrl-C meanwhile, cancels the handlers.
    """

    _engine: Engine | None = None
    _is_open = False
    _service: ConcurrentService | OrderlyService
    _sender: SendBack

    @checked
    def __init__(  # noqa: PLR0913  # all keywords, most with defaults
        self,
        group: str,
        *,
        subscriptions: Mapping[str, FilterExpression],
        on_message: OnMessage | None = None,
        on_messages: OnMessages | None = None,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
        start: StartOffset = "latest",
        orderly: bool = False,
        model: MessageModel = MessageModel.CLUSTERING,
        max_concurrency: int | None = None,
        batch_max_size: int | None = None,
        grace_s: float | None = None,
        allocate: AllocateStrategy = allocate_averagely,
        settings: ConsumerConfig | None = None,
        hooks: Sequence[ConsumeHook] = (),
        filters: Sequence[FilterHook] = (),
        trace: bool | str = False,
    ) -> None:
        """Check the settings; nothing happens before the consumer is entered.

        Args:
            group: name of the consumer group; all its members must have the same subscriptions.
            subscriptions: filters by topic: ``"*"``, ``"TagA || TagB"``, or ``Sql("amount > 100")``.
            on_message: handles one message; a plain function runs in a worker thread, or in a process, see
                ``settings.executor``.
            on_messages: handles several messages of one queue, with a ``ConsumeContext``, or an ``OrderlyContext`` if
                ``orderly``; instead of the former.
            namesrv: name servers, ``"host:port;host:port"`` or a sequence; not with ``instance``.
            instance: connections to share with other clients; must outlive this.
            config: settings of the connections; not with ``instance``.
            start: where a group without committed offsets begins: "earliest", "latest", the first message stored at or
                after a time, or an offset, the same in each queue.  A topic that is created later always begins with
                its first message.
            orderly: handle the messages of each queue one after another, in their order.
            model: whether the members share the queues (CLUSTERING) or each gets every message (BROADCASTING).
            max_concurrency: maximum handlers at a time (20; as many as there are CPUs if they run in processes).
            batch_max_size: maximum messages for ``on_messages`` (32).
            grace_s: how long to wait for running handlers at the end (10).
            allocate: how queues are shared among members: one of ``triomq.client.allocate_...``, or a function of your
                own (see ``AllocateStrategy``); all members must use the same.  Not used in broadcasting.
            settings: all other settings, and these three.
            hooks: called before and after each call of the handler.
            filters: called with the messages of each pull, after the tags were compared; messages that one omits count
                as consumed.
            trace: record each call of the handler, in ``RMQ_SYS_TRACE_TOPIC`` or the topic named here.

        Raises:
            IllegalNameError: the group's name, or a topic's.
            SubscriptionParseError: a filter expression.
            ConfigError: an impossible value.
        """
        own: dict[str, Any] = {"max_concurrency": max_concurrency, "batch_max_size": batch_max_size, "grace_s": grace_s}
        settings = settings or ConsumerConfig()
        settings = replace(settings, **{name: n for name, n in own.items() if n is not None})
        with_retry_topic = model is not MessageModel.BROADCASTING
        validate_group(group, with_retry_topic=with_retry_topic)
        topics = Subscriptions(group, subscriptions, wall_clock_ms, with_retry_topic=with_retry_topic)
        self.group = group
        self._plan = Plan(group, topics, StartPolicy.parse(start), model, allocate, settings, orderly, tuple(filters))
        handler = Handler.of(on_message, on_messages, group, COME_LATER if with_retry_topic else ARE_GONE)
        self._handler, self._open_processes = _placed(handler, settings)
        self._trace_topic = trace_topic(trace)
        self._hooks = hooks
        self._settings = settings
        self._open_group = partial(open_group, self._plan, namesrv, config, instance)
        self._handlers_scope = trio.CancelScope()

    async def run(self) -> None:
        """Enter the consumer, and leave it in order at SIGINT or SIGTERM: the main function of a service.

        A second signal has its usual effect: it ends the process without waiting for handlers.

        Raises:
            ClientError, BrokerResponseError: the consumer cannot be opened, or this is not the main thread.
        """
        stop, token = trio.Event(), trio.lowlevel.current_trio_token()
        with ExitStack() as signals:
            signals.enter_context(stop_signals(lambda: token.run_sync_soon(stop.set)))
            async with self:
                await stop.wait()
                signals.close()

    async def wait_assigned(self) -> None:
        """Return when the first rebalance is done: this member's queues are being pulled.

        A topic that does not exist counts as done.

        Raises:
            ClientClosedError: the consumer is not entered, or was left.
        """
        await self._open_engine().rebalancer.assigned.wait()
        self._open_engine()  # the consumer may have been left meanwhile

    async def subscribe(self, topic: str, expression: FilterExpression = "*") -> None:
        """Consume another topic, or other tags of a topic.

        When this returns, the queues of a new topic are assigned, if it exists and its brokers answer; otherwise that
        is retried.  Messages of a topic that was subscribed before are then selected by the new expression; those
        pulled earlier are still handled.  The other members of the group must do the same.

        Raises:
            ClientClosedError: the consumer is not open.
            IllegalNameError: the topic's name.
            SubscriptionParseError: the expression.
            ConfigError: the group's retry topic, which is consumed anyway.
        """
        await self._open_engine().subscribe(topic, expression)

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic: when this returns, its queues are given up and their offsets stored.

        Orderly queues are given up once their handlers have ended.

        Raises:
            ClientClosedError: the consumer is not open.
            ConfigError: the topic is not subscribed.
        """
        await self._open_engine().unsubscribe(topic)

    def suspend(self) -> None:
        """Stop pulling until :meth:`resume`; cached messages are still handled.

        The consumer stays a member of its group and keeps its queues.

        Raises:
            ClientClosedError: the consumer is not open.
        """
        self._open_engine().suspend()

    def resume(self) -> None:
        """Pull again.

        Raises:
            ClientClosedError: the consumer is not open.
        """
        self._open_engine().resume()

    def resize(self, max_concurrency: int) -> None:
        """Change the maximum number of concurrent handlers; running handlers are not interrupted.

        Raises:
            ClientClosedError: the consumer is not open.
            ConfigError: not within 1 and 1,000.
        """
        self._open_engine()
        if not 1 <= max_concurrency <= MAX_CONCURRENCY:
            raise ConfigError(f"max_concurrency: {max_concurrency} must be within 1 and {MAX_CONCURRENCY}")
        self._service.resize(max_concurrency)

    def statistics(self) -> ConsumerStatistics:
        """Return an immutable snapshot of the statistics, also after the end.

        Raises:
            ClientClosedError: the consumer was never entered.
        """
        if (engine := self._engine) is None:
            raise ClientClosedError("the consumer was not entered: use it as async with")
        counters = engine.rebalancer.counters.values()
        return ConsumerStatistics(
            succeeded=sum(counted.succeeded for counted in counters),
            failed=sum(counted.failed for counted in counters),
            sent_back=self._sender.sent,
            in_flight=self._service.in_flight(),
            is_suspended=engine.is_suspended,
            **engine.common_statistics(),
        )

    def _open_engine(self) -> Engine:
        if self._engine is None or not self._is_open:
            raise ClientClosedError("the consumer is not open: use it inside its async with block")
        return self._engine

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        started, stopping, stopped = trio.Event(), trio.Event(), trio.Event()

        async def end() -> None:
            self._is_open = False
            stopping.set()
            try:
                await stopped.wait()
            except BaseException:  # a second cancellation, or Ctrl-C
                self._handlers_scope.cancel()
                raise

        async def live() -> None:
            """Run the consumer in a separate task: the user's block must not be shielded with it."""
            try:
                await self._live(started, stopping)
            finally:
                stopped.set()

        async with open_service_nursery() as nursery:
            nursery.start_soon(live)
            await started.wait()  # if the start fails, the nursery ends this
            self._is_open = True
            try:
                yield
            except BaseException:
                with trio.CancelScope(shield=True):  # limited by the grace time
                    await end()
                raise
            # A cancellation that arrives during this wait is the second request to end; an earlier one is not.
            with trio.CancelScope(shield=trio.current_effective_deadline() <= trio.current_time()):
                await end()

    async def _live(self, started: trio.Event, stopping: trio.Event) -> None:
        with trio.CancelScope() as scope:
            async with (
                self._open_group() as (instance, offsets),
                open_tracer(instance, self.group, self._trace_topic, "CONSUME") as tracer,
                self._open_processes(),
            ):
                hooks = ConsumeObserver(tracer, instance.telemetry, self._plan.model).join(self._hooks)
                engine = self._compose(instance, offsets, hooks)
                requests = QueueRequests(instance, self.group)
                for topic in self._plan.subscriptions.topics:
                    await instance.routes.find(topic)
                    await requests.check_filter(self._plan.subscriptions[topic].data())
                engine.join()
                try:
                    await instance.groups.beat()
                    await trio.lowlevel.checkpoint_if_cancelled()
                    scope.shield = True  # from now on only ``stopping`` ends it, in order
                    self._engine = engine
                    started.set()
                    async with open_service_nursery() as services:
                        services.start_soon(self._service.maintain)
                        services.start_soon(engine.maintain)
                        await self._consume(engine, stopping)
                finally:
                    with trio.move_on_after(END_LIMIT_S, shield=True):
                        await engine.leave()

    def _compose(self, instance: ClientInstance, offsets: OffsetStore, hooks: Sequence[ConsumeHook]) -> Engine:
        plan, settings = self._plan, self._settings
        handler = self._handler.with_hooks(hooks, settings.consume_timeout_s, orderly=plan.orderly)
        self._sender = (PassOver if plan.is_broadcast else SendBack)(instance, plan.group, settings)
        locks = None
        if plan.orderly:
            self._service = OrderlyService(handler, self._sender, settings)
            if not plan.is_broadcast:  # in broadcasting no member shares the queues
                locks = LockKeeper(QueueRequests(instance, plan.group), settings)
        else:
            self._service = ConcurrentService(handler, self._sender, settings)
        self._service.replier = Replier(instance, plan.group)
        return Engine(instance, plan, offsets, self._service, locks)

    async def _consume(self, engine: Engine, stopping: trio.Event) -> None:
        """Consume until ``stopping`` is set, then end in order, which is the nesting.

        Pulling stops first, messages that no handler has begun are dropped, and running handlers end.  The caller then
        stores the offsets and leaves the group.

        Raises:
            BrokerResponseError: an offset was refused, and ``out_of_range`` is "raise".
        """
        scope, grace_s = self._handlers_scope, self._settings.grace_s
        with scope:
            async with trio.open_nursery() as handlers:
                handlers.start_soon(self._service.run)
                async with open_service_nursery() as pulls:
                    pulls.start_soon(engine.rebalancer.run)
                    await stopping.wait()
                self._service.stop()
                scope.deadline = min(scope.deadline, trio.current_time() + grace_s)
        if scope.cancelled_caught:
            LOGGER.warning(
                "handlers cancelled, their messages will be redelivered group=%s grace_s=%s", self.group, grace_s
            )


def _placed(
    handler: Handler, settings: ConsumerConfig
) -> tuple[Handler, Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the handler as its executor calls it, and a context manager to keep open meanwhile."""
    if settings.executor == "thread":
        return handler, nullcontext
    from triomq.client.consumer.processing.processes import ProcessPool  # multiprocessing: 20 ms

    pool = ProcessPool(handler)
    return handler._replace(function=pool.call), pool.open
