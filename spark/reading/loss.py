"""Detects messages that can no longer be read, and reports them.

In a task, the answers to pulls show what is lost; on the driver, the bounds of queues, and queues missing from the
route.  The offsets of missing queues stay in the checkpoint and nothing of them is read.  What they still had to be
read is lost unless they come back, and a broker that restarts may be out of the route for a while, so they get time.

Source: spark.md 3.6, 3.7.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from triomq.client.consumer.pull import PullStatus, RawPull
from triomq.protocol.errors import DataLossError, TriomqError
from triomq.protocol.message_queue import MessageQueue

LOGGER: Final = logging.getLogger("triomq.spark.reading.loss")


class Judgement(NamedTuple):
    """Where to continue, which is the end of the range if it is done, and how many of its offsets are lost."""

    next_offset: int
    lost: int


def judge(answer: RawPull, position: int, end: int, *, is_filtered: bool) -> Judgement:
    """Return what an answer means for a range of which ``position`` to ``end`` (exclusive) is still to be read.

    Args:
        answer: to a pull at ``position``, or before it if pulls overlap.
        position: first offset not read yet.
        end: of the range.
        is_filtered: the broker leaves messages out, so that a jump over offsets is no loss.
    """
    moved = min(max(int(answer.next_begin_offset), position), end)
    if answer.status is PullStatus.FOUND:
        return Judgement(moved, 0)
    if answer.status is PullStatus.NO_MATCHED_MESSAGE:
        return Judgement(moved, 0 if is_filtered else moved - position)
    low, high = int(answer.min_offset), int(answer.max_offset)
    if answer.status is PullStatus.OFFSET_ILLEGAL and position < low < high:
        moved = min(low, end)
    elif not (answer.status is PullStatus.NO_NEW_MESSAGE and position < answer.next_begin_offset < high):
        moved = end  # the queue is shorter than it was: nothing more will come
    # else the unit file is gone, and the broker names the first offset of the next one
    return Judgement(moved, moved - position)


def report_loss(queue: MessageQueue, wanted: int, lost: int | None, available: str, *, fail: bool) -> None:
    """Raise, or log once, that offsets of a range are gone.

    Args:
        queue: the queue.
        wanted: the first of them.
        lost: how many; ``None``: nobody can tell, since the queue they were in is not there any more.
        available: what the broker has instead, in words.
        fail: raise.

    Raises:
        DataLossError: ``fail`` is set.
    """
    count = "an unknown number of" if lost is None else str(lost)
    text = (
        f"{count} messages of {queue} are gone: offset {wanted} was wanted, {available}; they expired before they were "
        "read, or the topic or its queue was deleted or made again"
    )
    if fail:
        raise DataLossError(f"{text} (option 'failOnDataLoss' = false goes on without them)")
    shown = "unknown" if lost is None else lost
    LOGGER.warning("messages lost queue=%s wanted=%d lost=%s %s", queue, wanted, shown, available)


class Checked(NamedTuple):
    """A begin that was checked against what the broker has, and how many offsets before it are lost."""

    begin: int
    lost: int | None


def check_begin(begin: int, low: int, high: int, *, made_again: bool = False) -> Checked:
    """Compare the begin of a range with the bounds of its queue.

    A begin above the queue's end means that the topic was made again: nothing from before can be read, and the range
    begins at the queue's minimum.  How many messages the old queue still had is not known then.

    Args:
        begin: of the range.
        low: first offset of the queue.
        high: the one its next message will get.
        made_again: the topic is known to be another one than before, whatever the bounds say.
    """
    if made_again or begin > high:
        return Checked(low, None)
    if begin < low:
        return Checked(low, low - begin)
    return Checked(begin, 0)


class MissingQueue(NamedTuple):
    """A queue that did not come back: the first offset that was not read, and how many there were from it on."""

    queue: MessageQueue
    begin: int
    lost: int | None


class MissingQueues:
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

    def overdue(self, missing: Mapping[MessageQueue, int], now: float, *, at_once: bool) -> Iterator[MissingQueue]:
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
            yield MissingQueue(queue, begin, self._backlog(queue, begin))

    def _backlog(self, queue: MessageQueue, begin: int) -> int | None:
        """Return how many messages were not read; ``None`` if neither the broker nor this process knows."""
        ends = [self._last_ends[queue]] if queue in self._last_ends else []
        with suppress(TriomqError):  # the broker may be gone as well
            ends.append(self._max_offset(queue))
        known = [end - begin for end in ends if end >= begin]  # below: the broker has another queue of that name
        return max(known, default=None)
