"""The worker loops that call handlers.

They are written for speed.  A worker continues with the next message without a checkpoint while handlers
return without waiting; when a handler waits, another worker runs.  Only a tuple is allocated for a
message, and no worker is woken for it: each worker that finds work wakes the next one, which finds work only
if the first one is waiting.  All workers together keep the loop from other tasks for one turn at most.

Results of a queue that was given up meanwhile are ignored: its new owner receives the messages.

Source: behaviour.md B.12.
"""

from typing import Final, NamedTuple

from triomq.client.consumer.config import ConsumeContext, ConsumerConfig
from triomq.client.consumer.handlers import Handler, is_success
from triomq.client.consumer.processing.concurrently import ConcurrentService, MessageSender
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.processing.worker_pool import BLOCKED_S, Slot
from triomq.protocol.record.message import MessageExt

#: Maximum messages passed to a thread at once, and how long it works on them: a hop costs about 100 us.
_MAX_SHARE: Final = 64
_SHARE_S: Final = 0.02


def concurrent_service(handler: Handler, sender: MessageSender, config: ConsumerConfig) -> ConcurrentService:
    """Return the service whose workers suit a kind of handler."""
    work = _work_batches if handler.takes_batch else _work_each if handler.is_async else _work_each_in_threads
    return ConcurrentService(handler, sender, config, work)


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
    while await service.wait_for_work(slot):
        while service.pending:
            process_queue, batch = _take_batch(service)
            if not batch:
                continue
            context = ConsumeContext(process_queue.queue)
            slot.process_queue, slot.messages, slot.started_at = process_queue, batch, service.now()
            try:
                # the handler may change its list
                succeeded = is_success(await service.call(list(batch), context))
            except Exception as exc:  # noqa: BLE001  # boundary: foreign code may raise anything; Cancelled passes
                service.log_raised(batch, exc)
                succeeded = False
            ended = service.now()
            if ended - slot.started_at > BLOCKED_S:
                service.report_block(slot.started_at, batch)
            slot.messages = ()
            if not process_queue.dropped:
                process_queue.last_consumed_at = ended
                process_queue.counters.busy_s += ended - slot.started_at
                await _finish_batch(service, process_queue, batch, context, succeeded=succeeded)
            if slot.retired:
                break
            if service.now() > service.turn_ends:
                await service.yield_turn()


def _take_batch(service: ConcurrentService) -> tuple[ProcessQueue, list[MessageExt]]:
    """Take consecutive messages of one queue; none if that was given up."""
    pending, limit = service.pending, service.config.batch_max_size
    message, process_queue = pending.popleft()
    if process_queue.dropped:
        return process_queue, []
    batch = [message]
    while pending and len(batch) < limit and pending[0][1] is process_queue:
        batch.append(pending.popleft()[0])
    return process_queue, batch


async def _finish_batch(
    service: ConcurrentService,
    process_queue: ProcessQueue,
    batch: list[MessageExt],
    context: ConsumeContext,
    *,
    succeeded: bool,
) -> None:
    """Remove messages that succeeded from the queue, send the others back."""
    done = 0
    if succeeded:
        done = len(batch) if context.ack_index is None else max(0, min(context.ack_index + 1, len(batch)))
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
        if service.now() - slot.started_at < _SHARE_S:
            slot.share_limit = min(_MAX_SHARE, 2 * slot.share_limit)
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
    deadline = ended + _SHARE_S
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
