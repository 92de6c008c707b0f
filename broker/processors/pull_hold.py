"""Long polling: pulls that found no message are held until one arrives or their deadline passes.

The problem
    A consumer has one pull under way for each of its queues, so thousands are held at once.  A message must reach its
    consumer in the step that stores it.  A held pull must cost nothing while it waits, and little memory.

What was rejected
    - A task or a timer for each pull: 20 to 26 us each, for pulls that mostly end by a message within milliseconds.
    - RocketMQ's way, to compare all held pulls with the ends of their queues every 5 s, or after a message in another
      thread: the consumer waits for that thread.
    - An answer for each message: a batch of sends would cause as many answers.

What it is
    A queue with held pulls has ``ConsumeQueue.on_arrival``; an append calls it, and the queue is noted in ``arrived``.
    At the end of the step ``PullAnswers`` takes the pulls of these queues and answers each with all messages of the
    step.  One heap has the deadlines; it is checked a few times a second while any pull is held.

The invariant
    - A pull is in ``_by_queue``, or in ``ready`` (its queue got messages and it waits for a step), or is done.  It is
      answered once: ``is_done`` is set when it is taken, whichever way takes it.
    - Of a queue's pulls, either all wait with ``on_arrival`` set, or none does.
    - A pull whose filter rejects the new messages is held again, from the offset after them.
    - The memory budget counts each held pull, so their number is limited.

Source: behaviour.md A.10; PullRequestHoldService.java.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Final

import trio

from triomq.broker.limits.peers import MemoryBudget
from triomq.broker.network.connection import Connection
from triomq.protocol.filters.filter_types import MessageFilter
from triomq.protocol.requests.messages import PullMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.consume_queue.consume_queue import ConsumeQueue

_SWEEP_INTERVAL_S: Final = 0.1
AT_ONCE: Final = 64  # held pulls that are answered in one step: 1 ms
_SPARE: Final = 256  # answered pulls that may remain in the heap
_PULL_BYTES: Final = 1024  # memory of a held pull
_FILTER_BYTES: Final = 16  # ... and of its filter, for each character


@dataclass(slots=True, eq=False)
class Pull:
    """A pull that has passed the checks: it can be answered now or held."""

    connection: Connection
    command: RemotingCommand
    header: PullMessageRequestHeader
    message_filter: MessageFilter
    queue: ConsumeQueue
    queue_offset: int  # where to read next
    began: float = field(default_factory=perf_counter)  # s; when it came, or when the messages arrived
    deadline: float = 0.0  # trio's clock; of a held pull
    held_bytes: int = _PULL_BYTES
    is_done: bool = False
    is_watched: bool = False  # whether its deadline is in the heap


class PullHold:
    """All held pulls of a broker.

    Attributes:
        held: their number.
        arrived: queues with held pulls that got messages.
        ready: pulls that :meth:`take_ready` has left, by queue.
    """

    def __init__(self, budget: MemoryBudget, *, filtered_hold_s: float) -> None:
        self._by_queue: dict[ConsumeQueue, dict[Pull, None]] = {}  # in the order of their requests
        self.arrived: Final[set[ConsumeQueue]] = set()
        self._deadlines: list[tuple[float, int, Pull]] = []
        self._tie = itertools.count()  # pulls do not compare
        self._filtered_hold_s = filtered_hold_s
        self._budget = budget
        self._has_pulls = trio.Event()
        self.ready: deque[Iterator[Pull]] = deque()  # of queues that got messages
        self._has_ready = trio.Event()
        self.held = 0

    def is_full(self) -> bool:
        """Whether no more pulls may wait."""
        return not self._budget.has_room(_PULL_BYTES)

    def hold(self, pull: Pull) -> None:
        """Hold a pull; its request keeps only the fields that the answer needs."""
        pull.held_bytes += _FILTER_BYTES * len(pull.header.subscription or "")
        pull.header.subscription = pull.header.expression_type = None
        pull.command.strip()
        self._wait(pull)
        self._watch(pull)

    def _wait(self, pull: Pull) -> None:
        waiting = self._by_queue.get(pull.queue)
        if waiting is None:
            self._by_queue[pull.queue] = {pull: None}
            pull.queue.on_arrival = self.arrived.add
        else:
            waiting[pull] = None
        self.held += 1
        self._budget.reserved_bytes += pull.held_bytes

    def _watch(self, pull: Pull) -> None:
        if len(self._deadlines) > 2 * self.held + _SPARE:  # drop those of answered pulls
            for _, _, each in self._deadlines:
                each.is_watched = not each.is_done  # one that is being answered may be held again
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_done]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (pull.deadline, next(self._tie), pull))
        pull.is_watched = True
        self._has_pulls.set()

    def take_ready(self, most: int = AT_ONCE) -> list[Pull]:
        """Return pulls whose queues got messages, ``most`` of them, the rest by later calls (:meth:`wait_ready`).

        Each must be answered or held again.
        """
        for queue in self.arrived:
            self.ready.appendleft(iter(self._by_queue.pop(queue, ())))  # a few of each queue before many of one
            queue.on_arrival = None
        self.arrived.clear()
        ready: list[Pull] = []
        while self.ready and most > 0:
            part = list(islice(self.ready[0], most))
            if not part:
                self.ready.popleft()
            most -= len(part)
            ready += part
        if self.ready:
            self._has_ready.set()
        return [pull for pull in ready if self._take(pull)]

    def put_back(self, pulls: Sequence[Pull]) -> None:
        """Take back pulls that :meth:`take_ready` returned and that are left for a later step."""
        for pull in pulls:
            pull.is_done = False
            self.held += 1
            self._budget.reserved_bytes += pull.held_bytes
        self.ready.appendleft(iter(pulls))
        self._has_ready.set()

    async def wait_ready(self) -> None:
        """Return when there are pulls in :attr:`ready`."""
        while not self.ready:
            self._has_ready = trio.Event()
            await self._has_ready.wait()

    def hold_again(self, pull: Pull, queue_offset: int) -> None:
        """Hold a pull whose filter rejected the new messages; it is answered soon anyway.

        The answer has the offset after these messages, so that the lag of the consumer does not grow for ever.
        """
        pull.is_done = False
        self._wait(pull)
        if queue_offset != pull.queue_offset:
            pull.queue_offset = queue_offset
            soon = trio.current_time() + self._filtered_hold_s
            if soon < pull.deadline:  # only the first time, so the heap does not grow
                pull.deadline = soon
                pull.is_watched = False
        if not pull.is_watched:
            self._watch(pull)

    def is_due(self, now: float) -> bool:
        """Whether the deadline of a pull has passed."""
        return bool(self._deadlines) and self._deadlines[0][0] <= now

    def take_expired(self, now: float, most: int = AT_ONCE) -> list[Pull]:
        """Return pulls whose deadline has passed, ``most`` of them; each must be answered."""
        expired: list[Pull] = []
        while self.is_due(now) and len(expired) < most:
            _, _, pull = heapq.heappop(self._deadlines)
            if pull.is_done:
                continue
            waiting = self._by_queue.get(pull.queue)
            if waiting is not None and pull in waiting:  # else it is also ready
                del waiting[pull]
                if not waiting:
                    del self._by_queue[pull.queue]
                    self.arrived.discard(pull.queue)
                    pull.queue.on_arrival = None
            if self._take(pull):
                expired.append(pull)
        return expired

    def _take(self, pull: Pull) -> bool:
        if pull.is_done:
            return False
        pull.is_done = True
        self.held -= 1
        self._budget.reserved_bytes -= pull.held_bytes
        return not pull.connection.closed

    def forget_queue(self, queue: ConsumeQueue) -> list[Pull]:
        """Return the pulls of a deleted queue; each must be answered."""
        self.arrived.discard(queue)
        queue.on_arrival = None
        return [pull for pull in self._by_queue.pop(queue, ()) if self._take(pull)]

    async def wait_sweep(self) -> None:
        """Return when :meth:`take_expired` is due; sleeps without any wake-up while nothing waits."""
        if not self._deadlines:
            self._has_pulls = trio.Event()
            await self._has_pulls.wait()
        await trio.sleep(_SWEEP_INTERVAL_S)
