"""Long polling: pulls that found nothing wait here for a message, or for their time to be over.

Rules: a queue with waiting pulls tells us of an arrival (``ConsumeQueue.on_arrival``); the pulls are answered at the
end of the step that brought it, so that one answer carries all messages of the step.  A pull whose filter refuses what
arrived waits on, from the offset behind it.  No timer per pull: one heap, looked at a few times per second while
anything waits.

Source: behaviour.md A.10; PullRequestHoldService.java.
"""

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection
    from triomq.protocol.requests.requests import PullMessageRequestHeader
    from triomq.protocol.wire.command import RemotingCommand
    from triomq.storage.consume_queue.consume_queue import ConsumeQueue

_SWEEP_INTERVAL_S: Final = 0.1
_SPARE: Final = 256  # answered pulls that may stay in the heap


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits."""

    connection: "Connection"
    command: "RemotingCommand"
    header: "PullMessageRequestHeader"
    codes: frozenset[int] | None  # tag codes wanted; None: all
    queue: "ConsumeQueue"
    queue_offset: int  # where to look next
    deadline: float  # trio's clock
    is_done: bool = False
    is_watched: bool = False  # whether its deadline is noted


class PullHold:
    """All held pulls of a broker."""

    def __init__(self, *, filtered_hold_s: float, limit: int = 1_000_000) -> None:
        self._by_queue: dict[ConsumeQueue, dict[HeldPull, None]] = {}  # in the order in which they came
        self._arrived: set[ConsumeQueue] = set()
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._tie = itertools.count()  # pulls do not compare
        self._filtered_hold_s = filtered_hold_s
        self._limit = limit
        self._has_pulls = trio.Event()
        self.held = 0

    def is_full(self) -> bool:
        """Whether no more pulls may wait."""
        return self.held >= self._limit

    def hold(self, pull: HeldPull) -> None:
        """Let a pull wait."""
        self._wait(pull)
        self._watch(pull)

    def _wait(self, pull: HeldPull) -> None:
        waiting = self._by_queue.get(pull.queue)
        if waiting is None:
            self._by_queue[pull.queue] = {pull: None}
            pull.queue.on_arrival = self._arrived.add
        else:
            waiting[pull] = None
        self.held += 1

    def _watch(self, pull: HeldPull) -> None:
        if len(self._deadlines) > 2 * self.held + _SPARE:
            self._forget_answered()
        heapq.heappush(self._deadlines, (pull.deadline, next(self._tie), pull))
        pull.is_watched = True
        self._has_pulls.set()

    def _forget_answered(self) -> None:
        """Drop the deadlines of pulls that are done; one that is being looked at may be held again."""
        for _, _, pull in self._deadlines:
            pull.is_watched = not pull.is_done
        self._deadlines = [entry for entry in self._deadlines if not entry[2].is_done]
        heapq.heapify(self._deadlines)

    def take_ready(self) -> list[HeldPull]:
        """Return the pulls whose queues got messages since the last call; each must be answered or held again."""
        if not self._arrived:
            return []
        ready: list[HeldPull] = []
        for queue in self._arrived:
            ready += self._by_queue.pop(queue, ())
            queue.on_arrival = None
        self._arrived.clear()
        return [pull for pull in ready if self._take(pull)]

    def hold_again(self, pull: HeldPull, queue_offset: int) -> None:
        """Let a pull wait on whose filter refused what arrived; it is answered soon all the same.

        The consumer learns the offset behind the refused messages that way, so its lag does not grow for ever.
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

    def take_expired(self, now: float) -> list[HeldPull]:
        """Return the pulls whose time is over; each must be answered."""
        expired: list[HeldPull] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, pull = heapq.heappop(self._deadlines)
            if pull.is_done:
                continue
            waiting = self._by_queue[pull.queue]
            del waiting[pull]
            if not waiting:
                del self._by_queue[pull.queue]
                pull.queue.on_arrival = None
            if self._take(pull):
                expired.append(pull)
        return expired

    def _take(self, pull: HeldPull) -> bool:
        if pull.is_done:
            return False
        pull.is_done = True
        self.held -= 1
        return not pull.connection.closed

    def forget_queue(self, queue: "ConsumeQueue") -> list[HeldPull]:
        """Return the pulls of a queue that is deleted; each must be answered."""
        self._arrived.discard(queue)
        queue.on_arrival = None
        return [pull for pull in self._by_queue.pop(queue, ()) if self._take(pull)]

    async def wait_sweep(self) -> None:
        """Return when it is time for :meth:`take_expired`; sleeps without any wake-up while nothing waits."""
        if not self._deadlines:
            self._has_pulls = trio.Event()
            await self._has_pulls.wait()
        await trio.sleep(_SWEEP_INTERVAL_S)
