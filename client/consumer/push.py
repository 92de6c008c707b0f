"""The push consumer: messages come to a handler.

Source: behaviour.md B.0 (the pipeline), B.5 (configuration and start), B.18 (shutdown).
"""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.config import ClientConfig
from triomq.client.consumer.assignment.strategies import AllocateStrategy, allocate_averagely
from triomq.client.consumer.config import ConsumerConfig, Start, StartPolicy
from triomq.client.consumer.handlers import Handler, OnMessage, OnMessages
from triomq.client.consumer.hooks import ConsumeHook, FilterHook, with_hooks
from triomq.client.consumer.offsets.local_offsets import open_offsets, with_stable_name
from triomq.client.consumer.push_engine import Engine, Plan
from triomq.client.consumer.statistics import ConsumerStatistics
from triomq.client.consumer.subscription import Subscriptions
from triomq.client.nursery import OpenOnce, open_service_nursery
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.errors import ClientClosedError
from triomq.protocol.names import validate_group


class PushConsumer(OpenOnce):
    """Consumes topics as a member of a group: each message goes to one member's handler, at least once.

    ::

        async def on_message(message: MessageExt) -> None:
            print(message.topic, message.body)

        async with PushConsumer(
            "group", namesrv="127.0.0.1:9876", on_message=on_message, subscriptions={"Topic": "TagA || TagB"}
        ):
            await trio.sleep_forever()

    A handler that returns ``None`` or ``ConsumeStatus.SUCCESS`` has consumed its message.  With
    ``RECONSUME_LATER``, or when it raises, the message comes again after 10 s, 30 s, 1 min and so on, and after
    the last time goes to the group's dead-letter topic.  Handlers must expect to see a message twice.

    With ``orderly`` the messages of one queue are handled in their order, one after the other, also while members
    come and go; queues are independent.  A failed message then stops its queue and comes again after
    ``settings.suspend_queue_s``, as often as ``settings.orderly_max_reconsume_times`` allows, which is without
    limit if not set.  Handlers say ``ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT``, or raise.

    With ``model=MessageModel.BROADCASTING`` every member gets every message.  A failure is logged, and final.  Progress
    is kept on the member's machine, in ``~/.rocketmq_offsets/CLIENT_ID/GROUP/offsets.json`` (see
    ``settings.local_offset_dir``), so a member goes on after a restart if its client id is the same: by default it is
    the address and ``DEFAULT``, as in Java.  A second member of the group on one machine needs a name of its own,
    ``config=ClientConfig(instance_name=...)``, and is refused without.

    Leaving the block stops pulling at once, forgets what no handler has begun, lets running handlers end within
    the grace time, stores the offsets of all that is consumed and leaves the group.  When the block is left by a
    cancellation or an error the same is done; a second cancellation, or Ctrl-C meanwhile, cancels the handlers.
    """

    def __init__(  # noqa: PLR0913  # all keywords, most with defaults
        self,
        group: str,
        *,
        subscriptions: Mapping[str, str],
        on_message: OnMessage | None = None,
        on_messages: OnMessages | None = None,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
        start: Start = "latest",
        orderly: bool = False,
        model: MessageModel = MessageModel.CLUSTERING,
        max_concurrency: int | None = None,
        batch_max_size: int | None = None,
        grace_s: float | None = None,
        allocate: AllocateStrategy = allocate_averagely,
        settings: ConsumerConfig | None = None,
        hooks: Sequence[ConsumeHook] = (),
        filters: Sequence[FilterHook] = (),
    ) -> None:
        """Take settings; nothing happens before the consumer is entered.

        Args:
            group: name of the consumer group; all its members must have the same subscriptions.
            subscriptions: tag expressions by topic: ``"*"``, ``"TagA"``, ``"TagA || TagB"``.
            on_message: handles one message; a plain function runs in a worker thread.
            on_messages: handles several messages of one queue, with a ``ConsumeContext``, or an ``OrderlyContext`` if
                ``orderly``; instead of the former.
            namesrv: name servers, ``"host:port;host:port"`` or a sequence; not with ``instance``.
            instance: connections to share with other clients; must outlive this.
            config: settings of the connections; not with ``instance``.
            start: where a group without committed offsets begins: "earliest", "latest", or with the first message
                stored at or after a time.  Of a topic that is made later always with the first message.
            orderly: handle the messages of each queue one after the other, in their order.
            model: whether the members share the queues (CLUSTERING) or each gets every message (BROADCASTING).
            max_concurrency: most handlers at a time (20).
            batch_max_size: most messages for ``on_messages`` (32).
            grace_s: how long running handlers may take at the end (10).
            allocate: how queues are shared among members: one of ``triomq.client.allocate_...``, or a function of your
                own (see ``AllocateStrategy``); all members must use the same.  Not asked in broadcasting.
            settings: all other settings, and these three.
            hooks: called before and after each call of the handler.
            filters: called with the messages of each pull, after the tags were compared; what one leaves out is not
                handled and counts as consumed.

        Raises:
            IllegalNameError: the group's name, or a topic's.
            SubscriptionParseError: a tag expression.
            ConfigError: an impossible value.
        """
        validate_group(group)
        is_broadcast = model is MessageModel.BROADCASTING
        settings = settings or ConsumerConfig()
        settings = replace(
            settings,
            max_concurrency=settings.max_concurrency if max_concurrency is None else max_concurrency,
            batch_max_size=settings.batch_max_size if batch_max_size is None else batch_max_size,
            grace_s=settings.grace_s if grace_s is None else grace_s,
        )
        self.group = group
        self._plan = Plan(
            group,
            Subscriptions(group, subscriptions, lambda: time.time_ns() // 1_000_000, with_retry_topic=not is_broadcast),
            with_hooks(Handler.of(on_message, on_messages), hooks, group, settings.consume_timeout_s, orderly=orderly),
            StartPolicy.parse(start),
            model,
            allocate,
            settings,
            orderly,
            tuple(filters),
        )
        self._namesrv = namesrv
        self._client_config = with_stable_name(config) if is_broadcast and instance is None else config
        self._shared_instance = instance
        self._engine: Engine | None = None
        self._is_open = False

    async def wait_assigned(self) -> None:
        """Return when the first rebalance is done: this member's queues are being pulled.

        A topic that does not exist counts as done.

        Raises:
            ClientClosedError: the consumer is not entered, or was left.
        """
        await self._open_engine().wait_assigned()
        self._open_engine()  # it may have been left meanwhile

    async def subscribe(self, topic: str, expression: str = "*") -> None:
        """Consume one more topic, or other tags of a topic.

        When this returns, the queues of a new topic are shared out, if it exists and its brokers answer; otherwise that
        is tried again.  Messages of a topic that was subscribed before are chosen by the new expression then; what was
        pulled earlier is still handled.  Other members of the group must change theirs too.

        Raises:
            ClientClosedError: the consumer is not open.
            IllegalNameError: the topic's name.
            SubscriptionParseError: the expression.
            ConfigError: the group's retry topic, which is consumed anyway.
        """
        await self._open_engine().controls.subscribe(topic, expression)

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more: its queues are given up when this returns, and their offsets stored.

        Orderly queues are given up when their handlers have ended.

        Raises:
            ClientClosedError: the consumer is not open.
            ConfigError: the topic is not subscribed.
        """
        await self._open_engine().controls.unsubscribe(topic)

    def suspend(self) -> None:
        """Pull nothing more until :meth:`resume`; what is in memory is still handled.

        The consumer stays a member of its group, and its queues stay its own.

        Raises:
            ClientClosedError: the consumer is not open.
        """
        self._open_engine().controls.suspend()

    def resume(self) -> None:
        """Pull again.

        Raises:
            ClientClosedError: the consumer is not open.
        """
        self._open_engine().controls.resume()

    def resize(self, max_concurrency: int) -> None:
        """Run so many handlers at once from now on; with fewer than before, those that run now may end.

        Raises:
            ClientClosedError: the consumer is not open.
            ConfigError: not within 1 and 1,000.
        """
        self._open_engine().controls.resize(max_concurrency)

    def statistics(self) -> ConsumerStatistics:
        """Return an immutable picture of what was consumed and of each queue, also after the end.

        Raises:
            ClientClosedError: the consumer was never entered.
        """
        if self._engine is None:
            raise ClientClosedError("the consumer was not entered: use it as async with")
        return self._engine.statistics()

    def _open_engine(self) -> Engine:
        if self._engine is None or not self._is_open:
            raise ClientClosedError("the consumer is not open: use it inside its async with block")
        return self._engine

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        life = _Life()
        async with open_service_nursery() as nursery:
            nursery.start_soon(self._live, life)
            await life.started.wait()  # if the start fails, the nursery ends this
            self._is_open = True
            try:
                yield
            except BaseException:
                with trio.CancelScope(shield=True):  # limited by the grace time
                    await self._end(life)
                raise
            # A cancellation that comes while this waits is the second wish to end; one that was there before is not.
            with trio.CancelScope(shield=trio.current_effective_deadline() <= trio.current_time()):
                await self._end(life)

    async def _end(self, life: "_Life") -> None:
        self._is_open = False
        life.stopping.set()
        try:
            await life.stopped.wait()
        except BaseException:  # a second cancellation, or Ctrl-C
            if self._engine is not None:
                self._engine.cancel_handlers()
            raise

    async def _live(self, life: "_Life") -> None:
        """Be a consumer from start to end, in a task of its own: the user's block must not be shielded with it."""
        try:
            with trio.CancelScope() as scope:
                async with (
                    use_instance(self._namesrv, self._client_config, self._shared_instance) as instance,
                    open_offsets(instance, self.group, self._plan.model, self._plan.config.local_offset_dir) as offsets,
                ):
                    engine = Engine(instance, self._plan, offsets)

                    def on_start() -> None:
                        scope.shield = True  # from now on only ``stopping`` ends it, in order
                        self._engine = engine
                        life.started.set()

                    await engine.learn_routes()
                    await engine.serve(life.stopping, on_start)
        finally:
            life.stopped.set()


class _Life:
    """The turning points of a consumer's life."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.stopping = trio.Event()
        self.stopped = trio.Event()
