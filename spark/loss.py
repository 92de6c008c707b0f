"""What the answer to a pull means inside a range that is to be read: go on, done, or messages lost.  No I/O.

Source: spark.md 3.6.
"""

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from triomq.client.consumer.pull import PullStatus, RawPull
from triomq.protocol.errors import DataLossError
from triomq.protocol.message_queue import MessageQueue

LOGGER: Final = logging.getLogger("triomq.spark.loss")


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


def report_loss(queue: MessageQueue, wanted: int, lost: int, available: str, *, fail: bool) -> None:
    """Raise, or log once, that offsets of a range are gone.

    Raises:
        DataLossError: ``fail`` is set.
    """
    text = (
        f"{lost} messages of {queue} are gone: offset {wanted} was wanted, {available}; they expired before they were "
        "read, or the topic was deleted or made again"
    )
    if fail:
        raise DataLossError(f"{text} (option 'failOnDataLoss' = false goes on without them)")
    LOGGER.warning("messages lost queue=%s wanted=%d lost=%d %s", queue, wanted, lost, available)


class Checked(NamedTuple):
    """A begin that was checked against what the broker has, and how many offsets before it are lost."""

    begin: int
    lost: int


def check_begin(begin: int, low: int, high: int) -> Checked:
    """Compare the begin of a range with the bounds of its queue.

    A begin above the queue's end means that the topic was made again: nothing from before can be read, and the range
    begins at the queue's minimum.  How much was lost is not known then; at least nothing is counted twice.
    """
    if begin < low:
        return Checked(low, low - begin)
    if begin > high:
        return Checked(low, 0)
    return Checked(begin, 0)


def check_ranges(
    begins: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, tuple[int, int]], *, fail: bool
) -> dict[MessageQueue, int]:
    """Return the begins to use after :func:`check_begin`, for the queues that have bounds.

    Raises:
        DataLossError: ``fail`` is set, and a begin lies outside.
    """
    checked = {}
    for queue, begin in begins.items():
        if queue not in bounds:
            checked[queue] = begin
            continue
        low, high = bounds[queue]
        checked[queue], lost = check_begin(begin, low, high)
        if checked[queue] != begin:
            report_loss(queue, begin, lost, f"the broker has {low} to {high}", fail=fail)
    return checked
