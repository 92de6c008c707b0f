"""The task of each queue: pull, deliver, pull again; never more than one pull in flight.

The problem: while a queue is pulled, it may be paused, reset, given up, or lost to another member; its topic may be
deleted and created again; its broker may restart, forget the subscription, or return from a crash with fewer messages.
All of this may happen during a pull, or while handlers run.

Rejected: a state for each event.  Most events combine, and a running handler cannot be stopped.  Instead an event
cancels the pull in flight (``pull_anew``), and the loop decides anew from the present facts.  An event that changes the
offset (``move``) also drops the process queue, so that results of running handlers move no offset.

The invariant: the group's progress rises only with messages that handlers have consumed, and falls only if an
administrator resets it or the queue is a new one of the same name.  A failed pull is retried without limit.

Source: behaviour.md B.9 (before the pull), B.10 (its result), B.17 (offset reset); DefaultMQPushConsumerImpl.java.
"""

import logging
from typing import Final

import trio

from triomq.client.cluster.pull import PullRequest, PullResult, PullStatus, complete
from triomq.client.consumer.handlers import choose
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.pulling.pull_context import PullContext, PullDecision, decide_pull, pause_after, pull_size
from triomq.client.consumer.topics import QueueStatistics, Subscription, select
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import (
    REMOTE_ERRORS,
    BrokerResponseError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    TopicNotExistError,
    TriomqError,
)
from triomq.protocol.message_queue import QueueOffset

LOGGER: Final = logging.getLogger("triomq.client.consumer.pull")

#: Brokers hold a pull without messages; after an answer that comes sooner than this, the next pull is delayed.
_NOT_HELD_S: Final = 0.005
_NOT_HELD_DELAY_S: Final = 0.05
_IN_FLIGHT_CHECK_S: Final = 0.05
_STORE_LIMIT_S: Final = 1.0
#: How often a pull that waits for room checks again by itself.
_RECHECK_S: Final = 1.0
#: How long the broker may hold a pull while others may still store progress of the queue.
_DOUBTFUL_SUSPEND_S: Final = 1.0


class PullLoop:
    """Pulls one queue from the time it is taken until it is given up.

    Attributes:
        queue: which queue.
        process_queue: its messages; replaced when the queue's offset was corrected or reset.
        next_offset: where the next pull begins.
    """

    def __init__(
        self, context: PullContext, subscription: Subscription, process_queue: ProcessQueue, first_offset: QueueOffset
    ) -> None:
        self.queue: Final = process_queue.queue
        self.next_offset = first_offset
        self._paused = False
        self.process_queue = process_queue
        self._context = context
        self._subscription = subscription
        self._scope = trio.CancelScope()  # all of run()
        self._pulling = trio.CancelScope()
        self._move_to: QueueOffset | None = None
        self._lost_progress: QueueOffset | None = None
        self._is_topic_gone = False
        self._broker_id = 0
        self._max_offset = QueueOffset(0)
        self._pulls = 0
        self._waiting_for = ""
        self._complaint = ""
        if not context.is_lite:
            context.offsets.update(self.queue, first_offset, increase_only=False)
            context.offsets.confirmed(self.queue, first_offset)

    async def run(self) -> None:
        """Pull until cancelled or given up.

        Raises:
            BrokerResponseError: an offset was refused, and ``out_of_range`` is "raise".
        """
        try:
            with self._scope:
                while True:
                    if self._move_to is None:
                        with trio.CancelScope() as self._pulling:
                            await self._pull_until_moved()
                    else:
                        target, self._move_to = self._move_to, None
                        await self._move(target)
        finally:
            if self._complaint:
                self._context.withdraw(self._complaint)

    def pull_anew(self) -> None:
        """Cancel the pull in flight, if any, and decide again whether and how to pull."""
        self._pulling.cancel()

    def move(self, queue_offset: QueueOffset) -> None:
        """Continue from another offset, up or down, once running handlers of the queue have ended."""
        if not self._scope.cancel_called:
            self.process_queue.dropped = True  # first, so that its messages do not commit over the new offset
            self._move_to = queue_offset
            self._pulling.cancel()

    def reset(self, queue_offset: QueueOffset) -> None:
        """Continue from another offset, which becomes the group's progress whatever others stored."""
        self._context.offsets.reset(self.queue, queue_offset)
        self.move(queue_offset)

    def set_paused(self, *, paused: bool) -> None:
        """Stop pulling, but keep cached messages, or pull again."""
        self._paused = paused
        self.pull_anew()

    def position(self) -> QueueOffset | None:
        """Return the offset of the first message that is not consumed, or not polled; ``None``: unknown now."""
        if self._move_to is not None:
            return self._move_to
        if self._lost_progress is not None:
            return None
        first = self.process_queue.first_offset
        return self.next_offset if first is None else first

    def give_up(self) -> None:
        """Stop and record progress.  Results of handlers that still run are ignored."""
        self.update_progress()
        self.process_queue.dropped = True
        self._scope.cancel()

    async def retire(self) -> None:
        """Stop, but wait for the running handler, whose result counts."""
        self.process_queue.closing = True
        self._scope.cancel()
        while self._context.service.in_flight(self.process_queue):  # noqa: ASYNC110  # as in _begin_anew
            await trio.sleep(_IN_FLIGHT_CHECK_S)
        self.give_up()

    def update_progress(self) -> None:
        """Record in memory the offset up to which handlers have ended; a user who polls commits instead."""
        if self._context.is_lite or self.process_queue.dropped:
            return
        if (consumed := self.process_queue.consumed_offset()) is not None:
            self._context.offsets.update(self.queue, consumed, increase_only=True)

    def statistics(self) -> QueueStatistics:
        """Return the present statistics."""
        self.update_progress()
        process_queue, committed = self.process_queue, self._context.offsets.get(self.queue) or QueueOffset(0)
        return QueueStatistics(
            next_pull_offset=self.next_offset,
            committed_offset=committed,
            broker_max_offset=self._max_offset,
            lag=max(0, self._max_offset - committed),
            cached_messages=process_queue.cached_messages,
            cached_bytes=process_queue.cached_bytes,
            in_flight=self._context.service.in_flight(process_queue),
            pulls=self._pulls,
            last_pull_age_s=trio.current_time() - process_queue.last_pulled_at,
            waiting_for=self._waiting_for,
        )

    async def _pull_until_moved(self) -> None:
        while not self.process_queue.dropped:
            self.process_queue.last_pulled_at = trio.current_time()
            try:
                if self._context.offsets.is_doubtful(self.queue) and await self._is_overtaken():
                    return
                decision = self._decide()
                if decision is not PullDecision.PULL:
                    await self._wait_for_room(decision)
                    continue
                result, took_s = await self._pull()
            except REMOTE_ERRORS as exc:
                await self._wait_after(exc)
            else:
                if not self.process_queue.dropped:  # while the answer was in transit
                    await self._accept(result, took_s)
                del result  # else its messages, with their bodies, would stay during the next pull
        await trio.lowlevel.checkpoint()

    async def _accept(self, result: PullResult, took_s: float) -> None:
        self._complain("")
        if result.status is PullStatus.OFFSET_ILLEGAL:
            if self._is_reset(result):
                return
            if (corrected := self._correct(result)) is not None:
                if not (self._context.is_lite and corrected > self.next_offset):
                    self.move(corrected)
                    return
                self.next_offset = corrected  # cached messages stay; handlers would record progress before it
        elif result.status is PullStatus.FOUND:
            self._take(result, took_s)
        else:
            is_held = result.next_begin_offset != self.next_offset or took_s >= _NOT_HELD_S
            self.next_offset = result.next_begin_offset
            if not (self._lost_progress is not None or self._context.is_lite or self.process_queue.cached_messages):
                # no message before it waits: the lag falls although nothing matches
                self._context.offsets.update(self.queue, self.next_offset, increase_only=True)
            if not is_held:
                await trio.sleep(_NOT_HELD_DELAY_S)
        if self._context.config.pull_interval_s:
            await trio.sleep(self._context.config.pull_interval_s)

    async def _is_overtaken(self) -> bool:
        """Move to the offset that another member reached while this one was cut off from the broker, if any."""
        self.update_progress()
        if (position := self.position()) is None:
            return False
        stored = await self._context.offsets.catch_up(self.queue, position)
        if stored is None or self.process_queue.dropped:
            return self.process_queue.dropped
        LOGGER.info("another member consumed the queue meanwhile queue=%s from=%d to=%d", self.queue, position, stored)
        self.move(stored)
        return True

    def _decide(self) -> PullDecision:
        context = self._context
        return decide_pull(self.process_queue, context.limits, suspended=context.suspended, paused=self._paused)

    async def _wait_for_room(self, decision: PullDecision) -> None:
        """Return when a removal has made room, or after a time: limits may have changed."""
        self._waiting_for = decision.value
        room = trio.Event()

        def look() -> None:
            if self._decide() is not decision:
                room.set()

        self.process_queue.on_removal = look
        try:
            with trio.move_on_after(_RECHECK_S):
                await room.wait()
        finally:
            self.process_queue.on_removal = None

    async def _pull(self) -> tuple[PullResult, float]:
        context, config = self._context, self._context.config
        self.update_progress()
        is_at_slave = context.requests.is_at_slave(self.queue, self._broker_id)
        consumed = None if is_at_slave else context.offsets.for_pull(self.queue)
        is_doubtful = context.offsets.is_doubtful(self.queue)
        started = trio.current_time()
        self._pulls += 1
        size, size_bytes = pull_size(config, self.process_queue, context.limits, self._max_offset - self.next_offset)
        pull = PullRequest(
            self.next_offset,
            size,
            sub_version=self._subscription.pull_version,
            message_filter=self._subscription.message_filter if context.is_lite else None,
            commit_offset=consumed,
            suspend_s=min(config.suspend_s, _DOUBTFUL_SUSPEND_S) if is_doubtful else config.suspend_s,
            timeout_s=config.pull_timeout_s,
            broker_id=self._broker_id,
            is_lite=context.is_lite,
            max_bytes=size_bytes,
        )
        result = await context.requests.pull(self.queue, pull)
        if consumed:
            context.offsets.confirmed(self.queue, consumed)
        self._broker_id = result.suggested_broker_id
        self._max_offset = result.max_offset
        return result, trio.current_time() - started

    def _take(self, result: PullResult, took_s: float) -> None:
        """Put the messages into the process queue, and submit them to the consume service."""
        if self._lost_progress is not None and not self._is_new_queue(result, self._lost_progress):
            return
        if result.next_begin_offset < self.next_offset:
            asked, following = self.next_offset, result.next_begin_offset
            LOGGER.warning("broker went back queue=%s asked=%d next=%d", self.queue, asked, following)
        self.next_offset = result.next_begin_offset
        counters, pulled = self.process_queue.counters, result.messages
        messages = choose(self._context.filters, self.queue, select(self._subscription.message_filter, pulled))
        counters.pulls += 1
        counters.pulled += len(pulled)
        counters.pulling_s += took_s
        counters.filtered += len(pulled) - len(messages)
        complete(messages, self.queue, result)
        if messages:
            self.process_queue.put(messages)
            self._context.service.submit(self.process_queue, messages)

    def _is_reset(self, result: PullResult) -> bool:
        """Move if the requested offset is valid and the broker returns another one: the group was reset.

        Brokers of 5.x report a reset this way, to the first pull.  Source: PullMessageProcessor.java (OFFSET_RESET).
        """
        target = result.next_begin_offset
        if not result.min_offset <= self.next_offset <= result.max_offset or target == self.next_offset:
            return False
        LOGGER.info("offset reset at the broker queue=%s from=%d to=%d", self.queue, self.next_offset, target)
        self.reset(target)
        return True

    def _correct(self, result: PullResult) -> QueueOffset | None:
        """Return the offset to continue from after the broker refused ours; ``None``: pull again.

        Raises:
            BrokerResponseError: ``out_of_range`` is "raise".
        """
        if self._lost_progress is not None and result.max_offset > 0:
            return result.min_offset if self._is_new_queue(result, self._lost_progress) else None
        refused, policy = self.next_offset, self._context.config.out_of_range
        self._context.corrections += 1
        LOGGER.warning(
            "offset out of range queue=%s offset=%d min=%d max=%d broker_corrects_to=%d policy=%s",
            self.queue,
            refused,
            result.min_offset,
            result.max_offset,
            result.next_begin_offset,
            policy,
        )
        if policy == "raise":
            remark = f"{self.queue}: offset {refused} is not within {result.min_offset} and {result.max_offset}"
            raise BrokerResponseError.from_response(ResponseCode.PULL_OFFSET_MOVED, remark)
        if result.max_offset == 0 and refused > 0:
            # An empty queue where the group had progress: created again, or its broker is incomplete now.  Wait
            # at its start, but do not store 0, which might redeliver days of messages.
            self._lost_progress = refused
            self.next_offset = QueueOffset(0)
            return None
        if policy == "nearest":
            return result.next_begin_offset
        return result.min_offset if policy == "earliest" else result.max_offset

    def _is_new_queue(self, result: PullResult, progress: QueueOffset) -> bool:
        """Decide, when an empty queue got messages, whether it is a new queue, unrelated to our progress."""
        self._lost_progress = None
        is_other_topic, self._is_topic_gone = self._is_topic_gone, False
        if result.max_offset >= progress and not is_other_topic:
            LOGGER.warning("queue is back queue=%s offset=%d", self.queue, progress)
            self.next_offset = progress
            return False
        LOGGER.warning("queue was created again queue=%s offset_before=%d", self.queue, progress)
        self._context.offsets.reset(self.queue, QueueOffset(0))
        return True

    async def _leave_topic(self) -> None:
        """Forget messages and progress of a deleted topic; one of its name will be another, and begins at 0."""
        self.process_queue.dropped = True
        self._is_topic_gone, self._lost_progress = True, self.next_offset
        self._context.gone_topics.add(self.queue.topic)
        self._context.offsets.reset(self.queue, QueueOffset(0))
        await self._begin_anew(QueueOffset(0))

    async def _begin_anew(self, queue_offset: QueueOffset) -> None:
        """Wait for running handlers, and continue at an offset with an empty process queue."""
        with trio.move_on_after(self._context.config.offset_illegal_delay_s):
            while self._context.service.in_flight(self.process_queue):  # noqa: ASYNC110  # rare
                await trio.sleep(_IN_FLIGHT_CHECK_S)
        self.next_offset = queue_offset
        old = self.process_queue
        self.process_queue = ProcessQueue(self.queue, old.counters, trio.current_time(), old.lock)

    async def _move(self, queue_offset: QueueOffset) -> None:
        """Continue at an offset that becomes the group's progress, unless the user commits."""
        before = self.next_offset
        await self._begin_anew(queue_offset)
        if not self._context.is_lite:
            self._context.offsets.update(self.queue, queue_offset, increase_only=False)
            with trio.move_on_after(_STORE_LIMIT_S):
                await self._context.offsets.persist_now([self.queue])
        LOGGER.info("offset moved queue=%s from=%d to=%d", self.queue, before, queue_offset)
        self._lost_progress, self._is_topic_gone = None, False

    async def _wait_after(self, error: TriomqError) -> None:
        delay_s, complaint, level = pause_after(error, self._context.config, self._complaint)
        if isinstance(error, SubscriptionNotExistError | SubscriptionNotLatestError):
            self._context.announce()
        self._complain(complaint, level)
        is_at_slave = self._context.requests.is_at_slave(self.queue, self._broker_id)
        self._broker_id = 0  # the slave that was suggested may be down
        if isinstance(error, TopicNotExistError) and not (is_at_slave or self._is_topic_gone):
            await self._leave_topic()  # a slave may not have the topic yet
        await trio.sleep(delay_s)

    def _complain(self, complaint: str, level: int = logging.WARNING) -> None:
        before, self._complaint, self._waiting_for = self._complaint, complaint, complaint
        if complaint or before:
            self._context.complain(self.queue, before, complaint, level)
