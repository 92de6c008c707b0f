"""Reads one range of a queue as raw records, with several pulls in flight: for batch engines.

Apache's brokers return at most 32 messages for a pull by default, whatever is asked, so a reader that waits for each
answer is idle most of the time.  This one asks ahead, at the offsets where it expects the next answers to begin, and
names the bytes it accepts at once, so that our brokers return more.  Where an answer ends early, the gap is pulled;
where two overlap, the caller drops records that it already has, by their offsets.

With a filter the begin of the next answer is unknown, so only one pull is in flight then.
"""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.pull import PullRequest, PullStatus, RawPull
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.nursery import OpenOnce, open_service_nursery
from triomq.protocol.errors import REMOTE_ERRORS, ClientClosedError, ConfigError, TriomqError
from triomq.protocol.filters.filter_types import EVERYTHING, SUBSCRIBE_ALL, FilterExpression, filter_of
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.names import validate_group

#: After this many answers as long as asked, ask for more again; each time that fails, the number doubles.
_FULL_ANSWERS_TO_GROW: Final = 32
_MAX_FULL_ANSWERS_TO_GROW: Final = 4096
_CONTINUES: Final = (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much a range reader asks for.

    Attributes:
        max_messages: of one pull.
        max_bytes: of messages of one pull; only a message that is longer comes whole.
        pulls_in_flight: at most, answers that wait to be read included.
        in_flight_bytes: of these together, estimated from the answers seen; one pull is always in flight.

    Raises:
        ConfigError: a limit is below 1.
    """

    max_messages: int = 32
    max_bytes: int = 1024**2
    pulls_in_flight: int = 8
    in_flight_bytes: int = 4 * 1024**2

    def __post_init__(self) -> None:
        if min(self.max_messages, self.max_bytes, self.pulls_in_flight, self.in_flight_bytes) < 1:
            raise ConfigError(f"range reader: {self} must be above 0")


@dataclass(slots=True, eq=False)
class _PendingPull:
    """A pull in flight, or one whose answer was not read yet."""

    queue_offset: int
    max_messages: int
    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    answer: RawPull | None = None
    error: TriomqError | None = None


class RangeReader(OpenOnce):
    """Reads the offsets ``begin`` to ``end`` (exclusive) of a queue, in order.

    ::

        async with RangeReader(queue, 0, 1000, group="group", instance=instance) as reader:
            while answers := await reader.read(1024**2):
                ...

    It joins no group and stores no offset.
    """

    def __init__(
        self,
        queue: MessageQueue,
        begin: int,
        end: int,
        *,
        group: str,
        instance: ClientInstance,
        expression: FilterExpression = SUBSCRIBE_ALL,
        limits: ReadLimits | None = None,
    ) -> None:
        """Check the settings; nothing happens before the reader is entered.

        Args:
            queue: from where.
            begin: first offset wanted.
            end: first offset not wanted.
            group: the group named in the pulls.
            instance: whose connections to use; must outlive this.
            expression: which messages; of tags the broker compares hash codes only, the caller must compare the text.
            limits: how much to ask for.

        Raises:
            IllegalNameError: the group's name.
            SubscriptionParseError: the expression.
            ConfigError: ``begin`` is negative.
        """
        validate_group(group)
        if not begin >= 0:
            raise ConfigError(f"range reader: begin {begin} must not be negative")
        self._filter = filter_of(expression)
        self._is_filtered = self._filter != EVERYTHING
        self._queue = queue
        self._end = end
        self._limits = limits = limits or ReadLimits()
        self._pulls_in_flight = 1 if self._is_filtered else limits.pulls_in_flight
        self._nursery: trio.Nursery | None = None
        self._requests = QueueRequests(instance, group)
        self._window: deque[_PendingPull] = deque()
        self._step = limits.max_messages
        self._full_answers = 0
        self._full_answers_to_grow = _FULL_ANSWERS_TO_GROW
        self._answer_bytes: int | None = None  # of one answer; there is one pull until it is known
        self.position = begin  # read up to here

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with open_service_nursery() as self._nursery:
            try:
                yield
            finally:
                self._nursery = None

    def seek(self, queue_offset: int) -> None:
        """Continue at another offset, after an answer that explains the lack of messages at :attr:`position`."""
        self._drop_window()
        self.position = queue_offset

    async def read(self, least_bytes: int) -> list[RawPull]:
        """Return answers in order, without a gap between them, until they have ``least_bytes`` or the range ends.

        An answer may begin before the end of the previous one and may end after the range.  One whose status is
        neither ``FOUND`` nor ``NO_MATCHED_MESSAGE`` is the last; :meth:`seek` sets where to continue, else the next
        call asks for the same offset again.  When it is cancelled, the next call begins where this one did.

        Returns:
            Nothing at the end of the range.

        Raises:
            ClientClosedError: the reader is not open, or was left meanwhile.
            ClientError, BrokerResponseError, ProtocolError: a pull failed, and nothing came before it.  The next
                call pulls again.
        """
        answers: list[RawPull] = []
        begin, size = self.position, 0
        while size < least_bytes and self.position < self._end:
            self._fill()
            pull = self._window[0]
            try:
                await pull.done.wait()
            except trio.Cancelled:
                self._drop_window()
                if answers and self.position == answers[-1].next_begin_offset:  # else another task called seek()
                    self.position = begin  # they are lost with the call
                raise
            if pull.error is not None and answers:
                return answers  # the next call meets the error again
            if pull.error is not None:
                self._drop_window()
                raise pull.error
            if self._window and self._window[0] is pull:
                self._window.popleft()
            if (answer := pull.answer) is None:  # another task called seek(), or left, which the next turn reports
                continue
            if answer.status in _CONTINUES and answer.next_begin_offset > self.position:
                self._learn(pull, answer)
                answers.append(answer)
                size += len(answer.body)
                self.position = int(answer.next_begin_offset)
            elif answer.status not in _CONTINUES or pull.queue_offset == self.position:
                self._drop_window()  # the end, or a broker that would be asked for ever
                return [*answers, answer]
        return answers

    def _fill(self) -> None:
        """Start pulls: first for a gap before the window, then behind it."""
        window = self._window
        while window and window[0].queue_offset + window[0].max_messages <= self.position:
            window.popleft().scope.cancel()  # covered by a long answer
        if not window or window[0].queue_offset > self.position:
            gap_end = window[0].queue_offset if window else self._end
            window.appendleft(self._start(self.position, gap_end))
        limit = 1
        if self._answer_bytes is not None:
            limit = max(1, min(self._pulls_in_flight, self._limits.in_flight_bytes // max(self._answer_bytes, 1)))
        while len(window) < limit:
            behind = window[-1].queue_offset + window[-1].max_messages
            if behind >= self._end:
                return
            window.append(self._start(behind, self._end))

    def _start(self, queue_offset: int, end: int) -> _PendingPull:
        if self._nursery is None:
            raise ClientClosedError("the range reader is not open: use it inside its async with block")
        wanted = self._limits.max_messages if self._is_filtered else max(1, min(self._step, end - queue_offset))
        pull = _PendingPull(queue_offset, wanted)
        self._nursery.start_soon(self._pull, pull)
        return pull

    async def _pull(self, pull: _PendingPull) -> None:
        begin, max_bytes = QueueOffset(pull.queue_offset), self._limits.max_bytes
        request = PullRequest(begin, pull.max_messages, message_filter=self._filter, max_bytes=max_bytes)
        try:
            with pull.scope:
                pull.answer = await self._requests.pull_raw(self._queue, request)
        except REMOTE_ERRORS as exc:
            pull.error = exc
        finally:
            pull.done.set()

    def _learn(self, pull: _PendingPull, answer: RawPull) -> None:
        """Adapt to how much the broker returns: perhaps 8 messages from disk, or few large ones."""
        size = len(answer.body)
        self._answer_bytes = size if self._answer_bytes is None else max(size, (self._answer_bytes + size) // 2)
        got = int(answer.next_begin_offset) - pull.queue_offset
        if got < pull.max_messages:
            if pull.max_messages == self._step:  # else it was asked before the step was shortened, or for a gap
                self._full_answers_to_grow = min(2 * self._full_answers_to_grow, _MAX_FULL_ANSWERS_TO_GROW)
            self._step, self._full_answers = max(1, got), 0
        elif self._step < self._limits.max_messages:
            self._full_answers += 1
            if self._full_answers >= self._full_answers_to_grow:
                self._step, self._full_answers = min(self._limits.max_messages, 2 * self._step), 0

    def _drop_window(self) -> None:
        while self._window:
            self._window.popleft().scope.cancel()
