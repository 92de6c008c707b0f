"""Orderly consumption: the messages of each queue sequentially, several queues concurrently.

Three locks keep the order (behaviour.md B.13):

- The broker's queue lock (``locks.py``) excludes other members while queues change owners.
- One worker at a time has a queue: a queue that has a worker or waits for one is ``consuming``.
- A queue is not given up while its handler runs: it is ``closing`` until then (``PullLoop.retire``).

A failed message blocks its queue and is redelivered after a pause.  Failures are counted in
memory, in the message itself; after the last one it goes to the dead-letter topic and the queue continues.

Source: behaviour.md B.13 and C.4 (3, 4, 27), ConsumeMessageOrderlyService.java.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final

import trio

from triomq.client.consumer.config import ConsumeContext, ConsumerConfig, ConsumeStatus, OrderlyContext
from triomq.client.consumer.handlers import BLOCK_THEIR_QUEUE, LOGGER, RAISED, Handler, orderly_status
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.processing.send_back import SendBack
from triomq.client.consumer.processing.worker_pool import BLOCKED_S, MAX_SHARE, SHARE_S, Slot, WorkerPool
from triomq.protocol.bodies.client import ConsumeResult
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

#: Bounds of the pause of a queue after a failure.
MIN_SUSPEND_S: Final = 0.01
MAX_SUSPEND_S: Final = 30.0
_DIRECT_RESULTS: Final = {
    ConsumeStatus.SUCCESS: ConsumeResult.CR_SUCCESS,
    ConsumeStatus.COMMIT: ConsumeResult.CR_COMMIT,
    ConsumeStatus.ROLLBACK: ConsumeResult.CR_ROLLBACK,
    ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: ConsumeResult.CR_LATER,
}


class OrderlyService(WorkerPool):
    """Runs the handler: :meth:`run` it in a separate nursery, and :meth:`stop` it before leaving that."""

    context: ClassVar[type[ConsumeContext | OrderlyContext]] = OrderlyContext

    def __init__(self, handler: Handler, sender: SendBack, config: ConsumerConfig) -> None:
        super().__init__(handler._replace(after_failure=BLOCK_THEIR_QUEUE), config)
        self._sender = sender
        self._failures = EventLog(LOGGER, RAISED, logging.WARNING, traceback=True)
        self._ready: deque[ProcessQueue] = deque()
        self._busy: set[MessageQueue] = set()
        self._timers: trio.Nursery | None = None
        self._take_count = config.batch_max_size if handler.takes_batch else MAX_SHARE

    async def maintain(self) -> None:
        """Resume paused queues; runs until cancelled."""
        async with trio.open_nursery() as self._timers:
            self._timers.start_soon(super().maintain)
            await trio.sleep_forever()

    def submit(self, process_queue: ProcessQueue, _messages: Sequence[MessageExt]) -> None:
        """Queue a process queue for a worker, unless it has one or waits for one."""
        if not (process_queue.consuming or self.stopped):
            process_queue.consuming = True
            self._ready.append(process_queue)
            self.parked.unpark()

    def stop(self) -> None:
        """Drop messages that no handler has begun; the workers end."""
        self.stopped = True
        self._ready.clear()
        self.parked.unpark_all()

    def _log_raised(self, messages: Sequence[MessageExt], error: Exception) -> None:
        """Log a call that raised: a failure of one message, which is redelivered, at once and then once a minute."""
        place = messages[0].topic, messages[0].queue_id, messages[0].queue_offset
        self._failures.occurred(*self.handler.failure(messages), key=place, cause=type(error).__name__)

    def direct_result(self, status: object) -> ConsumeResult:
        """Translate a handler's result for a direct call."""
        return _DIRECT_RESULTS[orderly_status(status)]

    async def work(self, slot: Slot) -> None:
        """Consume one queue after another."""
        while True:
            while not self._ready:
                if self.stopped or slot.retired:
                    return
                await self.parked.park()
            if slot.retired:
                self.parked.unpark()  # another worker takes the queue
                return
            process_queue = self._ready.popleft()
            process_queue.consuming = False
            if process_queue.queue in self._busy:  # it was moved, and a handler still has messages of the old one
                self._resubmit(process_queue, MIN_SUSPEND_S)
                continue
            self._busy.add(process_queue.queue)
            process_queue.consuming = True
            slot.process_queue = process_queue
            try:
                rest_s = await self._consume(process_queue, slot)
            finally:
                slot.messages = ()
                self._busy.discard(process_queue.queue)
                process_queue.consuming = False
            if rest_s is not None:
                self._resubmit(process_queue, rest_s)

    async def _consume(self, process_queue: ProcessQueue, slot: Slot) -> float | None:
        """Consume until no message is left, or there is a reason to stop; return the pause, ``None``: until submitted.

        A queue whose lock has ended continues when the lock is renewed, or is given up.
        """
        now, lock, handler = self.now, process_queue.lock, self.handler
        slot.share_ends = now() + self.config.continuous_limit_s
        while True:
            at = now()
            if process_queue.dropped or process_queue.closing or self.stopped or at >= lock.ends:
                return None
            if at > slot.share_ends or slot.retired:
                return MIN_SUSPEND_S
            if at > self.turn_ends:
                await self.yield_turn()
                continue
            messages = process_queue.take(self._take_count)
            if not messages:
                return None
            slot.messages = messages
            if handler.takes_batch:
                rest_s = await self._handle_batch(process_queue, messages)
            elif handler.is_async:
                rest_s = await self._handle_each(process_queue, messages, slot)
            else:
                rest_s = await self._handle_each_in_thread(process_queue, messages)
            if now() - at > BLOCKED_S:
                self.report_block(at, messages)
            slot.messages = ()
            if rest_s is not None:
                return rest_s

    async def _handle_each(self, process_queue: ProcessQueue, messages: list[MessageExt], slot: Slot) -> float | None:
        """Call a coroutine function with each message.

        The conditions of :meth:`_consume` are checked before each message.  Hot path: each line
        costs time per message.
        """
        function, now, lock, counters = self.handler.function, self.now, process_queue.lock, process_queue.counters
        at = now()
        for done, message in enumerate(messages):
            if at > self.turn_ends:
                await self.yield_turn()
                at = now()
            if (
                process_queue.dropped
                or process_queue.closing
                or self.stopped
                or slot.retired
                or at >= lock.ends
                or at > slot.share_ends
            ):
                process_queue.requeue(messages[done:])
                return None
            slot.messages = (message,)
            try:
                result = await function(message)
                status = ConsumeStatus.SUCCESS if result is None else orderly_status(result)
            except Exception as exc:  # noqa: BLE001  # boundary: foreign code may raise anything; Cancelled passes
                self.log_raised(slot.messages, exc)
                status = ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            started, at = at, now()
            process_queue.last_consumed_at = at
            counters.busy_s += at - started
            if status is not ConsumeStatus.SUCCESS or process_queue.dropped:
                process_queue.requeue(messages[done + 1 :])
                return await self._apply(process_queue, [message], status, OrderlyContext(process_queue.queue))
            counters.succeeded += 1
            process_queue.finish(message)
        return None

    async def _handle_batch(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> float | None:
        """Call a function with several messages."""
        context = OrderlyContext(process_queue.queue)
        started = self.now()
        try:
            # the handler may change its list
            status = orderly_status(await self.call(list(messages), context))
        except Exception as exc:  # noqa: BLE001  # boundary: foreign code may raise anything; Cancelled passes
            self.log_raised(messages, exc)
            status = ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        self._record_end(process_queue, started)
        return await self._apply(process_queue, messages, status, context)

    async def _handle_each_in_thread(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> float | None:
        """Call a plain function with each message, several of them in one hop to a thread."""
        started = self.now()
        done: list[MessageExt] = []
        try:
            status = await self.call_in_thread(self._call_each, process_queue, messages, done)
        finally:  # if cancelled, finished messages count: else they would be redelivered out of order
            if not process_queue.dropped:
                process_queue.counters.succeeded += len(done)
                for message in done:
                    process_queue.finish(message)
        self._record_end(process_queue, started)
        if process_queue.dropped:
            return None
        if status is ConsumeStatus.SUCCESS:
            process_queue.requeue(messages[len(done) :])
            return None
        process_queue.requeue(messages[len(done) + 1 :])
        failed = messages[len(done) : len(done) + 1]
        return await self._apply(process_queue, failed, status, OrderlyContext(process_queue.queue))

    def _call_each(
        self, process_queue: ProcessQueue, messages: list[MessageExt], succeeded: list[MessageExt]
    ) -> ConsumeStatus:
        """Collect messages that succeeded; return the status of the one that did not; runs in a thread."""
        now, lock, function = self.now, process_queue.lock, self.handler.function
        enough = now() + SHARE_S
        for done, message in enumerate(messages):
            if done and (
                process_queue.dropped or process_queue.closing or self.stopped or now() >= min(enough, lock.ends)
            ):
                break
            try:
                status = orderly_status(function(message))
            except Exception as exc:  # noqa: BLE001  # boundary: foreign code may raise anything
                self.log_raised((message,), exc)
                status = ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            if status is not ConsumeStatus.SUCCESS:
                return status
            succeeded.append(message)
        return ConsumeStatus.SUCCESS

    async def _apply(
        self, process_queue: ProcessQueue, messages: list[MessageExt], status: ConsumeStatus, context: OrderlyContext
    ) -> float | None:
        """Apply a handler's result; return the pause of the queue, ``None``: it continues.

        Without ``auto_commit`` messages stay uncommitted until the handler commits or rolls back.
        """
        if process_queue.dropped:
            return None
        counters, auto_commit = process_queue.counters, context.auto_commit
        rest_s = self.config.suspend_queue_s if context.suspend_s is None else context.suspend_s
        rest_s = max(MIN_SUSPEND_S, min(rest_s, MAX_SUSPEND_S))
        if status is ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
            counters.failed += len(messages)
            if again := await self._count_failures(process_queue, messages):
                process_queue.requeue(again)
                return rest_s
        elif status is ConsumeStatus.ROLLBACK and not auto_commit:
            process_queue.rollback()
            return rest_s
        else:
            counters.succeeded += len(messages)
            if auto_commit and status is not ConsumeStatus.SUCCESS:
                LOGGER.warning("result of a handler counts as success, as auto_commit is on result=%s", status.name)
        if auto_commit or status is ConsumeStatus.COMMIT:
            process_queue.commit()
        return None

    async def _count_failures(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Count a failure of each message; those that failed too often become dead letters.

        Return those to redeliver.  The others are consumed: Java redelivers a batch with one such message as a
        whole, so its dead letters become dead letters once more.
        """
        if self.holds(messages):
            return messages
        again: list[MessageExt] = []
        for message in messages:
            is_last = message.reconsume_times >= self.config.orderly_max_reconsume_times
            if is_last and await self._sender.send_to_dead_letters(message):
                if not process_queue.dropped:
                    process_queue.finish(message)
            else:
                message.reconsume_times += 1
                again.append(message)
        return again

    def _resubmit(self, process_queue: ProcessQueue, after_s: float) -> None:
        if self._timers is not None and not process_queue.consuming:
            process_queue.consuming = True  # no other worker may take it meanwhile

            async def submit_later() -> None:
                await trio.sleep(after_s)
                process_queue.consuming = False
                self.submit(process_queue, ())

            self._timers.start_soon(submit_later)

    def _record_end(self, process_queue: ProcessQueue, started: float) -> None:
        process_queue.last_consumed_at = ended = self.now()
        process_queue.counters.busy_s += ended - started
