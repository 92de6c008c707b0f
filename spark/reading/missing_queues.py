"""Queues of a query that the route has no more: a broker was removed, or a topic has fewer queues to read.

Their offsets stay in the checkpoint and nothing of them is read.  What they still had to be read is lost, unless the
queue comes back; a broker that starts again may be out of the route for a while, so they get some time.

Source: spark.md 3.7.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from triomq.protocol.errors import TriomqError
from triomq.protocol.message_queue import MessageQueue


class GoneQueue(NamedTuple):
    """A queue that did not come back: the first offset that was not read, and how many there were from it on."""

    queue: MessageQueue
    begin: int
    lost: int | None


class GoneQueues:
    """Remembers how far queues went when they were last seen, and since when they are missing."""

    def __init__(self, grace_s: float, max_offset: Callable[[MessageQueue], int]) -> None:
        """Take what stays the same.

        Args:
            grace_s: how long a queue may be missing.
            max_offset: asks the broker for the end of a queue, which it may still have.
        """
        self._grace_s = grace_s
        self._max_offset = max_offset
        self._last_ends: dict[MessageQueue, int] = {}
        self._missing_since: dict[MessageQueue, float] = {}
        self._told: set[MessageQueue] = set()

    def saw(self, ends: Mapping[MessageQueue, int]) -> None:
        """Take note of how far queues go."""
        self._last_ends.update(ends)

    def overdue(self, missing: Mapping[MessageQueue, int], now: float, *, at_once: bool) -> Iterator[GoneQueue]:
        """Yield each queue once that is missing for too long, also if nothing of it was left to read.

        Args:
            missing: queues that the route does not have now, with the first offset that was not read.
            now: seconds.
            at_once: there is no later time to wait for.
        """
        self._told &= missing.keys()
        self._missing_since = {queue: self._missing_since.get(queue, now) for queue in missing}
        for queue, begin in sorted(missing.items()):
            if queue in self._told or (now - self._missing_since[queue] < self._grace_s and not at_once):
                continue
            self._told.add(queue)
            yield GoneQueue(queue, begin, self._backlog(queue, begin))

    def _backlog(self, queue: MessageQueue, begin: int) -> int | None:
        """Return how many messages were not read; ``None`` if neither the broker nor this process knows."""
        ends = [self._last_ends[queue]] if queue in self._last_ends else []
        with suppress(TriomqError):  # the broker may be gone as well
            ends.append(self._max_offset(queue))
        known = [end - begin for end in ends if end >= begin]  # below: the broker has another queue of that name
        return max(known, default=None)
