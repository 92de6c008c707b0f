"""Scenarios 41 to 43 of spark.md 6, the decision: what an answer means, and how much is lost."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.consumer.pull import PullStatus, RawPull
from triomq.protocol.errors import DataLossError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.units import QueueOffset
from triomq.spark.reading.loss import check_begin, judge, report_loss

QUEUE = MessageQueue("T", "broker-a", 3)


def answer(status: PullStatus, following: int, low: int = 0, high: int = 1000) -> RawPull:
    return RawPull(QueueOffset(0), status, b"", QueueOffset(following), QueueOffset(low), QueueOffset(high), 0)


def test_records_move_on_to_where_the_broker_says() -> None:
    assert judge(answer(PullStatus.FOUND, 32), 0, 100, is_filtered=False) == (32, 0)
    assert judge(answer(PullStatus.FOUND, 132), 96, 100, is_filtered=False) == (100, 0)


def test_a_jump_is_loss_only_without_a_filter() -> None:
    assert judge(answer(PullStatus.NO_MATCHED_MESSAGE, 50), 10, 100, is_filtered=True) == (50, 0)
    assert judge(answer(PullStatus.NO_MATCHED_MESSAGE, 50), 10, 100, is_filtered=False) == (50, 40)


def test_expired_messages_are_counted() -> None:
    found = judge(answer(PullStatus.OFFSET_ILLEGAL, 70, low=70), 20, 100, is_filtered=True)
    assert found == (70, 50)


def test_loss_never_goes_beyond_the_range() -> None:
    assert judge(answer(PullStatus.OFFSET_ILLEGAL, 700, low=700), 20, 100, is_filtered=False) == (100, 80)


@pytest.mark.parametrize("status", [PullStatus.OFFSET_ILLEGAL, PullStatus.NO_NEW_MESSAGE])
def test_queue_shorter_than_range_lost_the_rest(status: PullStatus) -> None:
    assert judge(answer(status, 30, low=0, high=30), 40, 100, is_filtered=False) == (100, 60)


def test_an_empty_queue_has_lost_all() -> None:
    assert judge(answer(PullStatus.OFFSET_ILLEGAL, 0, 0, 0), 40, 100, is_filtered=False) == (100, 60)


@given(
    st.sampled_from(PullStatus),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 99),
    st.booleans(),
)
def test_a_judgement_stays_in_the_range(
    status: PullStatus, following: int, low: int, more: int, position: int, is_filtered: bool
) -> None:
    found = judge(answer(status, following, low, low + more), position, 100, is_filtered=is_filtered)
    assert position <= found.next_offset <= 100
    assert 0 <= found.lost <= found.next_offset - position


def test_the_error_names_queue_offsets_and_option() -> None:
    with pytest.raises(DataLossError, match=r"5 messages of T@broker-a:3 .*offset 10 .*15 to 99.*failOnDataLoss"):
        report_loss(QUEUE, 10, 5, "the broker has 15 to 99", fail=True)


def test_accepted_loss_is_logged_with_count(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report_loss(QUEUE, 10, 5, "the broker has 15 to 99", fail=False)
    (record,) = caplog.records
    assert "lost=5" in record.getMessage()


def test_uncountable_loss_is_logged_as_unknown(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match="an unknown number of messages of T@broker-a:3 are lost"):
        report_loss(QUEUE, 10, None, "the topic was made again", fail=True)
    report_loss(QUEUE, 10, None, "the topic was made again", fail=False)
    assert "lost=unknown" in caplog.text


def test_a_begin_inside_its_queue_stays() -> None:
    assert check_begin(10, 0, 10) == (10, 0)


def test_a_begin_outside_moves_to_the_first_message() -> None:
    assert check_begin(3, 10, 20) == (10, 7)
    assert check_begin(30, 10, 20) == (10, None)


def test_recreated_queue_starts_at_its_first_message() -> None:
    assert check_begin(15, 0, 20, recreated=True) == (0, None)
