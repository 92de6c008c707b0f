"""The broker's queue locks held by an orderly consumer.

A lock is requested before a queue is taken, and renewed while it is held.  The broker keeps it for 60 s; here it ends
30 s after the last renewal began, so a consumer that cannot reach its broker stops long before another may start.
All lock requests to one broker are sequential: a renewal must not lock a queue again that was just unlocked.

A lock that the broker refuses to renew, or that was not renewed for longer than the broker keeps it, is lost: another
member may have consumed meanwhile, so the queue must be taken again.

Source: behaviour.md B.8, B.13; RebalanceImpl.java, ConsumeMessageOrderlyService.java.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

import trio

from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.connection.pool import log_retry
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.offsets.offset_store import at_each_broker
from triomq.client.consumer.processing.process_queue import QueueLock
from triomq.protocol.errors import REMOTE_ERRORS
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import MessageQueue

Lost: TypeAlias = Callable[[Collection[MessageQueue]], None]
Revived: TypeAlias = Callable[[MessageQueue], None]

LOGGER: Final = logging.getLogger("triomq.client.consumer.assignment.locks")

#: How long brokers keep a lock.  Source: RebalanceLockManager.java.
BROKER_LIFE_S: Final = 60.0


class LockKeeper:
    """The locks of one consumer."""

    def __init__(self, requests: QueueRequests, config: ConsumerConfig) -> None:
        self._requests = requests
        self._config = config
        self._held: dict[MessageQueue, QueueLock] = {}
        self._asked: set[MessageQueue] = set()  # queues that brokers may have locked for this member
        self._failures = EventLog(LOGGER, "queues not locked, retrying broker=%s error=%s")
        self._serial: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)

    async def acquire(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, QueueLock]:
        """Request the locks of these queues; return those that were granted."""
        granted: dict[MessageQueue, QueueLock] = {}

        async def ask(broker_name: str, wanted: list[MessageQueue]) -> None:
            async with self._serial[broker_name]:
                now = trio.current_time()
                self._asked.update(wanted)
                if (given := await self._lock(broker_name, wanted)) is None:
                    return
                self._asked.difference_update(wanted)
                given = set(wanted).intersection(given)
                self._asked |= given
                for queue in given:
                    granted[queue] = self._held[queue] = QueueLock(now, now + self._config.lock_life_s)

        await at_each_broker(queues, ask)
        return granted

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> Collection[MessageQueue] | None:
        """Return the queues that the broker locked; ``None``: it did not answer."""
        try:
            given = await self._requests.lock(queues, self._config.lock_timeout_s) if queues else frozenset()
        except REMOTE_ERRORS as exc:
            log_retry(self._failures, broker_name, exc)
            return None
        self._failures.ended(key=broker_name)
        return given

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Unlock these queues; locks that cannot be released expire."""

        async def ask(broker_name: str, unwanted: list[MessageQueue]) -> None:
            async with self._serial[broker_name]:
                self.forget(unwanted)
                self._asked.difference_update(unwanted)
                try:
                    await self._requests.unlock(unwanted, self._config.lock_timeout_s)
                except REMOTE_ERRORS as exc:
                    LOGGER.warning("queues not unlocked broker=%s queues=%d error=%s", broker_name, len(unwanted), exc)

        await at_each_broker(queues, ask)

    async def release_all(self) -> None:
        """Unlock all that brokers may have locked, including lost locks and those requested during shutdown."""
        await self.release(tuple(self._asked))

    def holds(self, queue: MessageQueue) -> bool:
        """Whether the queue is locked, as far as this member knows."""
        return queue in self._held

    def forget_broker(self, broker_name: str) -> list[MessageQueue]:
        """Forget the locks of a broker whose connection is lost, which may have freed them; return their queues."""
        queues = [queue for queue in self._held if queue.broker_name == broker_name]
        self.forget(queues)
        return queues

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Stop renewing these locks; they end now."""
        for queue in queues:
            if (lock := self._held.pop(queue, None)) is not None:
                lock.ends = 0.0

    async def run(self, lost: Lost, revived: Revived) -> None:
        """Renew all locks periodically; runs until cancelled.

        Args:
            lost: called with queues whose locks are lost.
            revived: called with a queue whose lock had ended here and is valid again.
        """
        delay_s = interval_s = self._config.lock_interval_s
        while True:
            await trio.sleep(delay_s)
            is_complete = await self._renew_all(lost, revived)
            delay_s = interval_s if is_complete else min(interval_s, self._config.retry_interval_s)

    async def _renew_all(self, lost: Lost, revived: Revived) -> bool:
        complete = True

        async def ask(broker_name: str, _queues: list[MessageQueue]) -> None:
            nonlocal complete
            async with self._serial[broker_name]:
                held = [queue for queue in self._held if queue.broker_name == broker_name]
                now = trio.current_time()
                if (given := await self._lock(broker_name, held)) is None:
                    complete = False
                    return
                gone = [queue for queue in held if not self._renew(queue, now, revived, is_given=queue in given)]
            if gone:
                LOGGER.warning("locks lost broker=%s queues=%d", broker_name, len(gone))
                lost(gone)

        await at_each_broker(tuple(self._held), ask)
        return complete

    def _renew(self, queue: MessageQueue, now: float, revived: Revived, *, is_given: bool) -> bool:
        """Apply the broker's answer to one queue; return ``False`` if its lock is lost."""
        lock = self._held.get(queue)
        if lock is None:  # forgotten while the request was in flight
            return True
        if not is_given or now - lock.locked_at > BROKER_LIFE_S:
            self.forget((queue,))
            self._asked.discard(queue)
            return False
        had_ended = lock.ends <= trio.current_time()
        lock.locked_at, lock.ends = now, now + self._config.lock_life_s
        if had_ended:
            revived(queue)
        return True
