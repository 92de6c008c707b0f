"""What the answer to a pull means inside a range that is to be read: go on, done, or messages lost.  No I/O.

Source: spark.md 3.6.
"""

import logging
from enum import Enum
from typing import Final, NamedTuple

from triomq.client.consumer.pull import PullStatus, RawPull
from triomq.protocol.errors import DataLossError
from triomq.protocol.message_queue import MessageQueue

LOGGER: Final = logging.getLogger("triomq.spark.reading.loss")


class Verdict(Enum):
    """What to do after an answer."""

    GO_ON = "go on"
    DONE = "done"


class Judgement(NamedTuple):
    """Where to go on, and how many offsets of the range can never be read."""

    verdict: Verdict
    next_offset: int
    lost: int


def judge(answer: RawPull, position: int, end: int, *, is_filtered: bool) -> Judgement:
    """Say what an answer means for a range of which ``position`` to ``end`` (exclusive) is still to be read.

    Args:
        answer: to a pull at ``position``, or before it if pulls overlap.
        position: first offset not read yet.
        end: of the range.
        is_filtered: the broker leaves messages out, so that a jump over offsets is no loss.
    """
    moved = min(max(int(answer.next_begin_offset), position), end)
    if answer.status is PullStatus.FOUND:
        return Judgement(Verdict.DONE if moved >= end else Verdict.GO_ON, moved, 0)
    if answer.status is PullStatus.NO_MATCHED_MESSAGE:
        lost = 0 if is_filtered else moved - position
        return Judgement(Verdict.DONE if moved >= end else Verdict.GO_ON, moved, lost)
    low, high = int(answer.min_offset), int(answer.max_offset)
    if answer.status is PullStatus.OFFSET_ILLEGAL and position < low < high:
        moved = min(low, end)
        return Judgement(Verdict.DONE if moved >= end else Verdict.GO_ON, moved, moved - position)
    if answer.status is PullStatus.NO_NEW_MESSAGE and position < answer.next_begin_offset < high:
        # The unit file is gone; the broker names the first offset of the next one.
        return Judgement(Verdict.DONE if moved >= end else Verdict.GO_ON, moved, moved - position)
    return Judgement(Verdict.DONE, end, end - position)  # shorter than it was: nothing more will come


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
