"""Concurrent consumption: workers share the messages of all queues, in no particular order.

Source: behaviour.md B.12, ConsumeMessageConcurrentlyService.java.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, repeat
from typing import ClassVar, Final, NamedTuple, Protocol

import trio

from triomq.client.consumer.config import BROKER_DECIDES, ConsumeContext, ConsumerConfig, OrderlyContext
from triomq.client.consumer.handlers import Handler, is_success
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.processing.worker_pool import Slot, Work, WorkerPool
from triomq.protocol.bodies.client import ConsumeResult
from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.record.message import MessageExt

LOGGER: Final = logging.getLogger("triomq.client.consumer.handler")

#: Delay level of a message whose handler does not return: 10 s.  Source: ProcessQueue.cleanExpiredMsg.
_EXPIRED_LEVEL: Final = 3
_MAX_WATCH_INTERVAL_S: Final = 60.0
#: A plain function that runs for longer than this loses the messages that it would take next.
_RELEASE_INTERVAL_S: Final = 0.05
#: When this many messages wait for a worker, those of queues that were given up are removed.
_MAX_UNCHECKED: Final = 4096


class MessageSender(Protocol):
    """Stores failed messages again."""

    async def send(self, message: MessageExt, delay_level: int) -> bool:
        """Return whether the message is stored again."""


class _Later(NamedTuple):
    due: float
    message: MessageExt
    process_queue: ProcessQueue


class ConcurrentService(WorkerPool):
    """Runs the handler: :meth:`run` it in a separate nursery, and :meth:`stop` it before leaving that.

    Attributes:
        pending: messages that wait for a worker.
        expired: messages that were sent back while their handler was still running; its late result is ignored.
    """

    context: ClassVar[type[ConsumeContext | OrderlyContext]] = ConsumeContext

    def __init__(
        self,
        handler: Handler,
        sender: MessageSender,
        config: ConsumerConfig,
        work: Callable[["ConcurrentService", Slot], Awaitable[None]],
    ) -> None:
        super().__init__(handler, config)
        self.pending: deque[Work] = deque()
        self.expired: set[MessageExt] = set()
        self._sender = sender
        self._work = work
        self._waking = 0
        self._max_pending = _MAX_UNCHECKED
        self._later: deque[_Later] = deque()
        self._later_added = trio.Event()

    async def work(self, slot: Slot) -> None:
        """Call the handler with the loop for its kind."""
        await self._work(self, slot)

    async def maintain(self) -> None:
        """Resubmit failed messages and watch slow handlers; runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().maintain)
            nursery.start_soon(self._resubmit)
            nursery.start_soon(self._watch)
            if not self.handler.is_async and not self.handler.takes_batch:
                nursery.start_soon(self._release)

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Queue messages of a process queue for the workers."""
        if not self.stopped:
            self.pending.extend(zip(messages, repeat(process_queue), strict=False))
            if len(self.pending) > self._max_pending:
                self._forget_dropped()
            self._wake_one()

    def put_back(self, work: Sequence[Work]) -> None:
        """Put messages that workers took and did not begin back at the front."""
        self.pending.extendleft(sorted(work, key=_offset_of, reverse=True))
        self._wake_one()

    def stop(self) -> None:
        """Drop messages that no handler has begun; the workers end.

        Messages before one of their queue that was begun are still handled: otherwise that one would be redelivered.
        """
        self.stopped = True
        self._later.clear()
        waiting = [*self.pending, *chain.from_iterable(slot.take_share() for slot in self.slots)]
        self.pending.clear()
        self.put_back(_before_begun(waiting))
        self.parked.unpark_all()

    async def wait_for_work(self, slot: Slot) -> bool:
        """Return true when there are messages, false when this worker is to end."""
        slot.messages = ()
        while True:
            while not self.pending:
                if self.stopped or slot.retired:
                    return False
                await self.parked.park()
                if self._waking:
                    self._waking -= 1
            if slot.retired:
                self._wake_one()
                return False
            if len(self.pending) > 1:
                self._wake_one()
            if self.now() <= self.turn_ends:
                return True
            await self.yield_turn()
            if self.pending:  # others may have been faster
                return True

    async def send_back(
        self, process_queue: ProcessQueue, messages: Sequence[MessageExt], delay_level: int = BROKER_DECIDES
    ) -> None:
        """Send failed messages back; those that are not are resubmitted later and hold the offset."""
        held = self.holds(messages)
        for message in messages:
            if process_queue.dropped:
                return
            if not held and await self._sender.send(message, delay_level):
                if not process_queue.dropped:
                    process_queue.remove(message)
            else:
                message.reconsume_times += not held
                due = trio.current_time() + self.config.resubmit_delay_s
                self._later.append(_Later(due, message, process_queue))
                self._later_added.set()

    def was_expired(self, message: MessageExt) -> bool:
        """Whether the message was sent back while its handler was running; forgets it."""
        if message in self.expired:
            self.expired.discard(message)
            return True
        return False

    def direct_result(self, status: object) -> ConsumeResult:
        """Translate a handler's result for a direct call."""
        return ConsumeResult.CR_SUCCESS if is_success(status) else ConsumeResult.CR_LATER

    def _forget_dropped(self) -> None:
        """Remove messages of queues that were given up.

        Workers do that too, but while handlers hang, each queue that comes and goes would leave its messages.
        """
        kept = [work for work in self.pending if not work[1].dropped]
        self.pending.clear()
        self.pending.extend(kept)
        self._max_pending = max(_MAX_UNCHECKED, 2 * len(kept))

    def _wake_one(self) -> None:
        # A worker that was woken and has not run yet will find the messages, and wake the next one.
        if not self._waking and self.parked:
            self._waking += 1
            self.parked.unpark()

    async def _resubmit(self) -> None:
        while True:
            if not self._later:
                self._later_added = trio.Event()
                await self._later_added.wait()
            await trio.sleep_until(self._later[0].due if self._later else trio.current_time())
            while self._later and self._later[0].due <= trio.current_time():
                _, message, process_queue = self._later.popleft()
                self.submit(process_queue, (message,))

    async def _release(self) -> None:
        """Take the next messages away from worker threads that handle one message for long."""
        while True:
            await trio.sleep(_RELEASE_INTERVAL_S)
            busy = [slot for slot in self.slots if self.now() - slot.started_at > _RELEASE_INTERVAL_S]
            if work := [*chain.from_iterable(slot.take_share() for slot in busy)]:
                self.put_back(work)

    async def _watch(self) -> None:
        """Send back messages whose handler runs for too long; the handlers are left running."""
        limit = self.config.consume_timeout_s
        while True:
            await trio.sleep(min(limit, _MAX_WATCH_INTERVAL_S))
            for slot in self.slots:
                if slot.messages and self.now() - slot.started_at >= limit:
                    await self._expire(slot)

    async def _expire(self, slot: Slot) -> None:
        process_queue, messages = slot.process_queue, slot.messages
        if process_queue is None:
            return
        for message in messages:
            if process_queue.dropped or message in self.expired or slot.messages is not messages:
                continue
            LOGGER.warning(
                "handler runs for too long, its message is sent back seconds=%.0f queue=%s offset=%d",
                self.now() - slot.started_at,
                process_queue.queue,
                message.queue_offset,
            )
            self.expired.add(message)
            if await self._sender.send(message, _EXPIRED_LEVEL):
                process_queue.remove(message)
            elif message in self.expired:
                self.expired.discard(message)  # the handler's result is valid
            else:
                self.submit(process_queue, (message,))  # it returned meanwhile, and its result was ignored


def _before_begun(waiting: Sequence[Work]) -> list[Work]:
    """Return the messages that precede one of their queue that is not waiting."""
    offsets: defaultdict[ProcessQueue, set[QueueOffset]] = defaultdict(set)
    for message, process_queue in waiting:
        offsets[process_queue].add(message.queue_offset)
    begun = {process_queue: process_queue.last_begun(own) for process_queue, own in offsets.items()}
    return [work for work in waiting if work[0].queue_offset < begun[work[1]]]


def _offset_of(work: Work) -> QueueOffset:
    return work[0].queue_offset
