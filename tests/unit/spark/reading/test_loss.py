"""Scenarios 41 to 43 of spark.md 6, the decision: the effect of an answer, and the number of lost messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.consumer.pull import PullStatus, RawPull
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.spark.reading.loss import judge

QUEUE = MessageQueue("T", "broker-a", 3)


def answer(status: PullStatus, following: int, low: int = 0, high: int = 1000) -> RawPull:
    return RawPull(QueueOffset(0), status, b"", QueueOffset(following), QueueOffset(low), QueueOffset(high), 0)


FOUND, NO_MATCH, ILLEGAL, NOTHING_NEW = (
    PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE, PullStatus.OFFSET_ILLEGAL, PullStatus.NO_NEW_MESSAGE
)  # fmt: skip


@pytest.mark.parametrize(
    ("pull", "position", "is_filtered", "judgement"),
    [
        (answer(FOUND, 32), 0, False, (32, 0)),
        (answer(FOUND, 132), 96, False, (100, 0)),
        (answer(NO_MATCH, 50), 10, True, (50, 0)),
        (answer(NO_MATCH, 50), 10, False, (50, 40)),
        (answer(ILLEGAL, 70, low=70), 20, True, (70, 50)),  # expired
        (answer(ILLEGAL, 700, low=700), 20, False, (100, 80)),
        (answer(ILLEGAL, 30, high=30), 40, False, (100, 60)),  # shorter than the range
        (answer(NOTHING_NEW, 30, high=30), 40, False, (100, 60)),
        (answer(ILLEGAL, 0, high=0), 40, False, (100, 60)),
    ],
)
def test_answers_advance_range_and_count_loss(
    pull: RawPull, position: int, is_filtered: bool, judgement: tuple[int, int]
) -> None:
    assert judge(pull, position, 100, is_filtered=is_filtered) == judgement


OFFSETS = st.integers(0, 200)
ANSWERS = st.builds(
    lambda status, following, low, more: answer(status, following, low, low + more),
    st.sampled_from(PullStatus), OFFSETS, OFFSETS, OFFSETS,
)  # fmt: skip


@given(ANSWERS, st.integers(0, 99), st.booleans())
def test_a_judgement_stays_in_the_range(pull: RawPull, position: int, is_filtered: bool) -> None:
    next_offset, lost = judge(pull, position, 100, is_filtered=is_filtered)
    assert position <= next_offset <= 100
    assert 0 <= lost <= next_offset - position
