"""Detects messages that can no longer be read, and reports them.

A task detects loss from the answers to its pulls; the driver from the bounds of queues, and from queues that are
missing from the route.  Offsets of missing queues stay in the checkpoint, and nothing of them is read.  A broker that
restarts is missing for a while, so a queue counts as lost only after some time.

Source: spark.md 3.6, 3.7.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from triomq.client.consumer.pull import PullStatus, RawPull
from triomq.client.sync import PullConsumer
from triomq.protocol.errors import DataLossError, TopicNotExistError, TriomqError
from triomq.protocol.message_queue import MessageQueue

LOGGER: Final = logging.getLogger("triomq.spark.reading.loss")


def judge(answer: RawPull, position: int, end: int, *, is_filtered: bool) -> tuple[int, int]:
    """Return the effect of an answer on a range: its next offset to read (its end if done), and how many are lost.

    Args:
        answer: to a pull at ``position``, or before it if pulls overlap.
        position: first offset not read yet.
        end: of the range.
        is_filtered: the broker filters messages, so a jump over offsets is not a loss.
    """
    moved = min(max(int(answer.next_begin_offset), position), end)
    if answer.status is PullStatus.FOUND:
        return moved, 0
    if answer.status is PullStatus.NO_MATCHED_MESSAGE:
        return moved, 0 if is_filtered else moved - position
    low, high = int(answer.min_offset), int(answer.max_offset)
    if answer.status is PullStatus.OFFSET_ILLEGAL and position < low < high:
        moved = min(low, end)
    elif not (answer.status is PullStatus.NO_NEW_MESSAGE and position < answer.next_begin_offset < high):
        moved = end  # the queue is shorter than before: nothing more can come
    # otherwise a consume queue file was deleted, and the broker returns the first offset of the next one
    return moved, moved - position


def report_loss(queue: MessageQueue, wanted: int, lost: int | None, reason: str, *, fail: bool) -> None:
    """Raise or log that offsets no longer exist.

    Args:
        queue: the queue.
        wanted: first lost offset.
        lost: how many; ``None``: unknown, since their queue no longer exists.
        reason: why; see :func:`available`.
        fail: raise.

    Raises:
        DataLossError: ``fail`` is set.
    """
    count = "an unknown number of" if lost is None else str(lost)
    text = f"{count} messages of {queue} are lost: offset {wanted} was wanted, {reason}"
    if fail:
        raise DataLossError(f"{text} (set option 'failOnDataLoss' to false to continue without them)")
    shown = "unknown" if lost is None else lost
    LOGGER.warning("messages lost queue=%s wanted=%d lost=%s %s", queue, wanted, shown, reason)


def available(low: int, high: int) -> str:
    """Return the reason of a loss of which only the offsets are known that the broker has."""
    return f"the broker has {low} to {high}: they expired, or the topic or its queue was deleted or recreated"


def check_begin(begin: int, low: int, high: int, *, recreated: bool = False) -> tuple[int, int | None]:
    """Return where to start in a queue, and how many offsets before that are lost (``None``: unknown).

    A start above the queue's end means that the topic was recreated: the range starts at the queue's minimum, and how
    many messages the old queue still had is unknown.

    Args:
        begin: start of the range.
        low: first offset of the queue.
        high: offset of its next message.
        recreated: the topic is known to have been recreated, whatever the bounds are.
    """
    if recreated or begin > high:
        return low, None
    return max(begin, low), max(0, low - begin)


class MissingQueues:
    """Remembers since when each queue has been missing.

    Attributes:
        last_ends: the last known end of each queue.
    """

    def __init__(self, grace_s: float) -> None:
        """Create the record; a queue may be missing for ``grace_s``."""
        self._grace_s = grace_s
        self.last_ends: dict[MessageQueue, int] = {}
        self._missing_since: dict[MessageQueue, float] = {}
        self._reported: set[MessageQueue] = set()

    def overdue(
        self, missing: Mapping[MessageQueue, int], consumer: PullConsumer, now: float, *, at_once: bool
    ) -> Iterator[tuple[MessageQueue, int | None, bool]]:
        """Yield each queue once that was deleted or has been missing for too long, even if all of it had been read.

        With it goes the number of its unread messages (``None``: unknown), and whether it is deleted: its broker
        answered that it does not have it, or not as many messages as were read.

        Args:
            missing: queues that are not in the route, with their first unread offset.
            consumer: asks the broker for the end of a queue, which it may still have.
            now: seconds.
            at_once: do not wait: the run ends.
        """
        self._reported &= missing.keys()
        before, self._missing_since = self._missing_since, {}
        for queue, begin in sorted(missing.items()):
            since = self._missing_since[queue] = before.get(queue, now)
            waits = now - since < self._grace_s and not at_once
            if queue in self._reported or (waits and queue in before):
                continue
            ends = [self.last_ends[queue]] if queue in self.last_ends else []
            is_deleted = False
            try:
                ends.append(int(consumer.max_offset(queue)))
                is_deleted = ends[-1] < begin  # Apache's broker answers 0 for a topic that it does not have
            except TopicNotExistError:
                is_deleted = True
            except TriomqError:
                pass  # the broker may be unreachable as well
            if is_deleted or not waits:
                self._reported.add(queue)
                yield queue, max((end - begin for end in ends if end >= begin), default=None), is_deleted
