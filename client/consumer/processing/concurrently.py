"""Concurrent consumption: workers share the messages of all queues, in no particular order.

The loops of the workers are written for speed.  A worker continues with the next message without a checkpoint while
handlers return without waiting; when a handler waits, another worker runs.  Only a tuple is allocated for a
message, and no worker is woken for it: each worker that finds work wakes the next one, which finds work only
if the first one is waiting.

Results of a queue that was given up meanwhile are ignored: its new owner receives the messages.

Source: behaviour.md B.12, ConsumeMessageConcurrentlyService.java.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import chain, repeat
from typing import ClassVar, Final, NamedTuple

import trio

from triomq.client.consumer.config import BROKER_DECIDES, ConsumeContext, ConsumerConfig, OrderlyContext
from triomq.client.consumer.handlers import LOGGER, Handler, is_success
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.processing.send_back import SendBack
from triomq.client.consumer.processing.worker_pool import BLOCKED_S, MAX_SHARE, SHARE_S, Slot, Work, WorkerPool
from triomq.protocol.bodies.client import ConsumeResult
from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.record.message import MessageExt

#: Delay level of a message whose handler does not return: 10 s.  Source: ProcessQueue.cleanExpiredMsg.
_EXPIRED_LEVEL: Final = 3
_MAX_WATCH_INTERVAL_S: Final = 60.0
#: A plain function that runs for longer than this loses the messages that it would take next.
_RELEASE_INTERVAL_S: Final = 0.05
#: When this many messages wait for a worker, those of queues that were given up are removed.
_MAX_UNCHECKED: Final = 4096


class ConcurrentService(WorkerPool):
    """Runs the handler: :meth:`run` it in a separate nursery, and :meth:`stop` it before leaving that.

    Attributes:
        pending: messages that wait for a worker.
        expired: messages that were sent back while their handler was still running; its late result is ignored.
    """

    context: ClassVar[type[ConsumeContext | OrderlyContext]] = ConsumeContext

    def __init__(self, handler: Handler, sender: SendBack, config: ConsumerConfig) -> None:
        super().__init__(handler, config)
        self.pending: deque[Work] = deque()
        self.expired: set[MessageExt] = set()
        self._sender = sender
        self._waking = 0
        self._max_pending = _MAX_UNCHECKED
        self._later: deque[tuple[float, Work]] = deque()  # failed messages, and when each is due
        self._later_added = trio.Event()

    async def work(self, slot: Slot) -> None:
        """Call the handler with the loop for its kind."""
        if self.handler.takes_batch:
            await _work_batches(self, slot)
        elif self.handler.is_async:
            await _work_each(self, slot)
        else:
            await _work_each_in_threads(self, slot)

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
                # Workers do that too, but while handlers hang, each queue that comes and goes leaves its messages.
                kept = [work for work in self.pending if not work[1].dropped]
                self.pending.clear()
                self.pending.extend(kept)
                self._max_pending = max(_MAX_UNCHECKED, 2 * len(kept))
            self._wake_one()

    def put_back(self, work: Sequence[Work]) -> None:
        """Put messages that workers took and did not begin back at the front."""
        self.pending.extendleft(sorted(work, key=lambda item: item[0].queue_offset, reverse=True))
        self._wake_one()

    def stop(self) -> None:
        """Drop messages that no handler has begun; the workers end.

        Messages before one of their queue that was begun are still handled: otherwise that one would be redelivered.
        """
        self.stopped = True
        self._later.clear()
        waiting = [*self.pending, *chain.from_iterable(slot.take_share() for slot in self.slots)]
        self.pending.clear()
        offsets: defaultdict[ProcessQueue, set[QueueOffset]] = defaultdict(set)
        for message, process_queue in waiting:
            offsets[process_queue].add(message.queue_offset)
        begun = {process_queue: process_queue.last_begun(own) for process_queue, own in offsets.items()}
        self.put_back([work for work in waiting if work[0].queue_offset < begun[work[1]]])
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
                self._later.append((trio.current_time() + self.config.resubmit_delay_s, (message, process_queue)))
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
            await trio.sleep_until(self._later[0][0] if self._later else trio.current_time())
            while self._later and self._later[0][0] <= trio.current_time():
                _, (message, process_queue) = self._later.popleft()
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


async def _work_each(service: ConcurrentService, slot: Slot) -> None:
    """Call a coroutine function for each message.  Hot path: each line costs time per message."""
    pending, expired, now, call = service.pending, service.expired, service.now, service.handler.function
    while await service.wait_for_work(slot):
        ended = now()
        while pending:
            message, process_queue = pending.popleft()
            if process_queue.dropped:
                continue
            slot.process_queue = process_queue
            slot.messages = (message,)
            slot.started_at = started = ended
            try:
                status = await call(message)
                succeeded = status is None or is_success(status)
            except Exception as exc:  # noqa: BLE001  # boundary: foreign code may raise anything; Cancelled passes
                service.log_raised((message,), exc)
                succeeded = False
            ended = now()
            # it may have been dropped during the call
            if process_queue.dropped or (expired and service.was_expired(message)):  # type: ignore[redundant-expr]
                continue
            process_queue.last_consumed_at = ended
            counters = process_queue.counters
            counters.busy_s += ended - started
            if succeeded:
                counters.succeeded += 1
                process_queue.remove(message)
            else:
                counters.failed += 1
                slot.messages = ()
                await service.send_back(process_queue, (message,))
                ended = now()
            if ended > service.turn_ends:
                if ended - started > BLOCKED_S:
                    service.report_block(started, (message,))
                slot.messages = ()
                if slot.retired:
                    break
                await service.yield_turn()
                ended = now()


async def _work_batches(service: ConcurrentService, slot: Slot) -> None:
    """Call a function for batches of consecutive messages of one queue."""
    pending, limit = service.pending, service.config.batch_max_size
    while await service.wait_for_work(slot):
        while pending:
            message, process_queue = pending.popleft()
            if process_queue.dropped:
                continue
            batch = [message]
            while pending and len(batch) < limit and pending[0][1] is process_queue:
                batch.append(pending.popleft()[0])
            context = ConsumeContext(process_queue.queue)
            slot.process_queue, slot.messages, slot.started_at = process_queue, batch, service.now()
            try:
                # the handler may change its list
                done = len(batch) if is_success(await service.call(list(batch), context)) else 0
            except Exception as exc:  # noqa: BLE001  # boundary: foreign code may raise anything; Cancelled passes
                service.log_raised(batch, exc)
                done = 0
            ended = service.now()
            if ended - slot.started_at > BLOCKED_S:
                service.report_block(slot.started_at, batch)
            slot.messages = ()
            if not process_queue.dropped:
                process_queue.last_consumed_at = ended
                process_queue.counters.busy_s += ended - slot.started_at
                await _finish_batch(service, process_queue, batch, done, context)
            if slot.retired:
                break
            if service.now() > service.turn_ends:
                await service.yield_turn()


async def _finish_batch(
    service: ConcurrentService, process_queue: ProcessQueue, batch: list[MessageExt], done: int, context: ConsumeContext
) -> None:
    """Remove the first ``done`` messages from the queue, or those up to the context's, and send the others back."""
    if done and context.ack_index is not None:
        done = max(0, min(context.ack_index + 1, done))
    accepted, failed = batch[:done], batch[done:]
    if service.expired:
        accepted = [message for message in accepted if not service.was_expired(message)]
        failed = [message for message in failed if not service.was_expired(message)]
    process_queue.counters.succeeded += len(accepted)
    process_queue.counters.failed += len(failed)
    process_queue.remove_all(accepted)
    if failed:
        await service.send_back(process_queue, failed, context.delay_level)


class _Outcome(NamedTuple):
    message: MessageExt
    process_queue: ProcessQueue
    succeeded: bool
    busy_s: float


async def _work_each_in_threads(service: ConcurrentService, slot: Slot) -> None:
    """Call a plain function for each message, several of them in one hop to a thread."""
    while await service.wait_for_work(slot):
        # Leave enough for the other workers, and take no more than there is time for: messages that wait in a share
        # while later ones are handled hold back the committed offset.
        share = min(slot.share_limit, max(1, len(service.pending) // service.concurrency))
        slot.share.extend(service.pending.popleft() for _ in range(share))
        slot.started_at = service.now()
        outcomes: list[_Outcome] = []
        failed: list[_Outcome] = []
        try:
            await service.call_in_thread(_call_each, service, slot, outcomes)
        finally:  # if cancelled, finished messages count, and the thread begins no other
            slot.messages = ()
            left = slot.take_share()
            failed = [outcome for outcome in outcomes if not _accept(service, outcome)]
        if service.now() - slot.started_at < SHARE_S:
            slot.share_limit = min(MAX_SHARE, 2 * slot.share_limit)
        else:
            slot.share_limit = max(1, len(outcomes))
        if left:
            service.put_back(left)
        for outcome in failed:
            await service.send_back(outcome.process_queue, (outcome.message,))


def _call_each(service: ConcurrentService, slot: Slot, outcomes: list[_Outcome]) -> None:
    """Call the handler until the share is done or the time is up; runs in a thread."""
    call, now, share = service.handler.function, service.now, slot.share
    ended = now()
    deadline = ended + SHARE_S
    while ended <= deadline:
        try:
            message, process_queue = share.popleft()
        except IndexError:
            return
        if process_queue.dropped:
            continue
        slot.process_queue, slot.messages, slot.started_at = process_queue, (message,), ended
        started = ended
        try:
            succeeded = is_success(call(message))
        except Exception as exc:  # noqa: BLE001  # boundary: foreign code may raise anything
            service.log_raised((message,), exc)
            succeeded = False
        ended = now()
        outcomes.append(_Outcome(message, process_queue, succeeded, ended - started))


def _accept(service: ConcurrentService, outcome: _Outcome) -> bool:
    """Count an outcome and remove its message from the queue; false if the message must be sent back."""
    message, process_queue, succeeded, busy_s = outcome
    if process_queue.dropped or (service.expired and service.was_expired(message)):
        return True
    process_queue.last_consumed_at = service.now()
    process_queue.counters.busy_s += busy_s
    if succeeded:
        process_queue.counters.succeeded += 1
        process_queue.remove(message)
    else:
        process_queue.counters.failed += 1
    return succeeded
