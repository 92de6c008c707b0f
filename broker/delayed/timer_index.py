"""Which waiting message is due next, among millions of them, in 8 bytes for each.

Messages come with growing queue offsets and any times.  The newest ones are a heap.  When there are enough of them they
become a run: one sorted array, taken from its front, whose half that was taken is given back.  The first ones of all
runs are a heap of their own.  So adding and taking cost what a heap of a few thousand costs, however many wait.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

MAX_TIME_MS: Final = 2**48  # the year 10889
_OFFSET_BITS: Final = 14
_RUN_LENGTH: Final = 1 << _OFFSET_BITS
_OFFSET_MASK: Final = _RUN_LENGTH - 1
_LEAST_FREED: Final = 1024


Due: TypeAlias = tuple[int, int]
"""When a message is due, ms, and its queue offset; in the order of delivery.  A plain tuple: there are many."""


class _Run:
    """Messages of neighbouring queue offsets; an entry is time and distance to ``base`` in one number."""

    __slots__ = ("_at", "_entries", "base")

    def __init__(self, base: int, entries: list[int]) -> None:
        self.base = base
        self._entries = array("q", sorted(entries))
        self._at = 0

    def __len__(self) -> int:
        return len(self._entries) - self._at

    def take(self) -> Due | None:
        """Return the next message, ``None`` at the end."""
        at = self._at
        if at == len(self._entries):
            return None
        entry = self._entries[at]
        self._take_to(at + 1)
        return entry >> _OFFSET_BITS, self.base + (entry & _OFFSET_MASK)

    def take_before(self, bound: Due, most: int) -> list[Due]:
        """Return up to ``most`` of the next messages that come before ``bound``."""
        time_ms, queue_offset = bound
        entry_bound = (time_ms << _OFFSET_BITS) + min(max(queue_offset - self.base, 0), _RUN_LENGTH)
        at, base = self._at, self.base
        end = bisect_left(self._entries, entry_bound, at, min(at + most, len(self._entries)))
        taken = [(entry >> _OFFSET_BITS, base + (entry & _OFFSET_MASK)) for entry in self._entries[at:end]]
        self._take_to(end)
        return taken

    def _take_to(self, at: int) -> None:
        self._at = at
        if at > _LEAST_FREED and 2 * at > len(self._entries):
            del self._entries[:at]
            self._at = 0


class TimerIndex:
    """All messages that wait, by time; equal times by queue offset."""

    def __init__(self) -> None:
        self._base = 0  # of the newest ones
        self._newest: list[int] = []
        self._runs: list[tuple[int, int, _Run]] = []  # the next message of each, which the run holds no more

    def __len__(self) -> int:
        return len(self._newest) + sum(len(run) + 1 for _, _, run in self._runs)

    def add(self, time_ms: int, queue_offset: int) -> None:
        """Note a message; its queue offset is above that of all before it."""
        if not self._newest:
            self._base = queue_offset
        elif queue_offset - self._base >= _RUN_LENGTH:
            self._close_run()
            self._base = queue_offset
        heappush(self._newest, min(max(time_ms, 0), MAX_TIME_MS) << _OFFSET_BITS | queue_offset - self._base)

    def extend(self, messages: Iterable[Due]) -> None:
        """Note many messages, as ``add`` does; faster."""
        base, newest = self._base, self._newest
        for time_ms, queue_offset in messages:
            if not newest:
                base = queue_offset
            elif queue_offset - base >= _RUN_LENGTH:
                self._base = base
                self._close_run()
                base = queue_offset
            newest.append(min(max(time_ms, 0), MAX_TIME_MS) << _OFFSET_BITS | queue_offset - base)
        self._base = base
        heapify(newest)

    def _close_run(self) -> None:
        run = _Run(self._base, self._newest)
        self._newest.clear()
        first = run.take()
        if first is not None:
            heappush(self._runs, (*first, run))

    def next_time(self) -> int | None:
        """Return when the next message is due, ms; ``None`` if none waits."""
        times = [self._runs[0][0]] if self._runs else []
        if self._newest:
            times.append(self._newest[0] >> _OFFSET_BITS)
        return min(times, default=None)

    def take(self, until_ms: int, most: int) -> list[Due]:
        """Take out up to ``most`` messages that are due at ``until_ms``."""
        taken: list[Due] = []
        newest, runs = self._newest, self._runs
        while len(taken) < most:
            if runs and (not newest or runs[0][0] <= newest[0] >> _OFFSET_BITS):
                if runs[0][0] > until_ms:
                    break
                self._take_of_run(taken, until_ms, most)
            elif newest and newest[0] >> _OFFSET_BITS <= until_ms:
                entry = heappop(newest)
                taken.append((entry >> _OFFSET_BITS, self._base + (entry & _OFFSET_MASK)))
            else:
                break
        return taken

    def _take_of_run(self, taken: list[Due], until_ms: int, most: int) -> None:
        """Take the first message of all runs, and what follows in its run before any other message."""
        time_ms, queue_offset, run = heappop(self._runs)
        taken.append((time_ms, queue_offset))
        bound = until_ms + 1, 0
        if self._runs:
            bound = min(bound, self._runs[0][:2])
        if self._newest:
            bound = min(bound, (self._newest[0] >> _OFFSET_BITS, self._base))
        taken += run.take_before(bound, most - len(taken))
        following = run.take()
        if following is not None:
            heappush(self._runs, (*following, run))

    def first_offset(self) -> int | None:
        """Return a queue offset before which no message waits, at most a run below the first; ``None``: none waits."""
        bases = [run.base for _, _, run in self._runs]
        if self._newest:
            bases.append(self._base)
        return min(bases, default=None)
