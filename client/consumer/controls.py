"""What a user may change of a consumer while it runs.

Source: behaviour.md B.5 (subscribing while running, suspend and resume), DefaultMQPushConsumerImpl.java.
"""

from typing import Protocol

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.assignment.rebalancer import Rebalancer
from triomq.client.consumer.config import MAX_CONCURRENCY
from triomq.client.consumer.pulling.pull_context import PullContext
from triomq.client.consumer.subscription import Subscriptions
from triomq.protocol.errors import ConfigError


class Resizable(Protocol):
    """A consume service."""

    def resize(self, concurrency: int) -> None:
        """Run so many handlers at once."""


class Controls:
    """The handles of one running consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        subscriptions: Subscriptions,
        context: PullContext,
        rebalancer: Rebalancer,
    ) -> None:
        self._instance = instance
        self._subscriptions = subscriptions
        self._context = context
        self._rebalancer = rebalancer
        self._changing = trio.Lock()

    async def subscribe(self, topic: str, expression: str) -> None:
        """Add a topic, or change its expression; see :meth:`PushConsumer.subscribe`."""
        async with self._changing:
            subscription = self._subscriptions.put(topic, expression)
            await self._instance.groups.beat()
            subscription.announced()
            self._rebalancer.pull_anew(topic)
            await self._rebalancer.wait_next_round()

    async def unsubscribe(self, topic: str) -> None:
        """Remove a topic; see :meth:`PushConsumer.unsubscribe`."""
        async with self._changing:
            self._subscriptions.remove(topic)
            await self._rebalancer.wait_next_round()
            await self._instance.groups.beat()

    def suspend(self) -> None:
        """Pull nothing, and share out nothing, until :meth:`resume`."""
        self._context.suspended = True
        self._rebalancer.pull_anew()

    def resume(self) -> None:
        """Go on, and look at once who has which queue."""
        self._context.suspended = False
        self._rebalancer.pull_anew()
        self._rebalancer.wake()


class PushControls(Controls):
    """Those of a push consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        subscriptions: Subscriptions,
        context: PullContext,
        rebalancer: Rebalancer,
        service: Resizable,
    ) -> None:
        super().__init__(instance, subscriptions, context, rebalancer)
        self._service = service

    def resize(self, max_concurrency: int) -> None:
        """Run so many handlers at once.

        Raises:
            ConfigError: impossible.
        """
        if not 1 <= max_concurrency <= MAX_CONCURRENCY:
            raise ConfigError(f"max_concurrency: {max_concurrency} must be within 1 and {MAX_CONCURRENCY}")
        self._service.resize(max_concurrency)
