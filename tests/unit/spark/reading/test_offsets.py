"""Scenario 27 of spark.md 6: offsets of the checkpoint, and shares of a limit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.spark.reading.planning import StreamOffset, next_offset, ranges_between, spread

A0, A1, B0 = MessageQueue("A", "b", 0), MessageQueue("A", "b", 1), MessageQueue("B", "b", 0)
QUEUES = st.builds(MessageQueue, st.sampled_from(["A", "B"]), st.sampled_from(["x", "y"]), st.integers(0, 12))
ENDS = st.dictionaries(QUEUES, st.integers(0, 2**40), max_size=8)


@given(ENDS, ENDS, ENDS, st.integers(0, 2**50), st.booleans())
def test_an_offset_survives_json(
    ends: dict[MessageQueue, int],
    begins: dict[MessageQueue, int],
    firsts: dict[MessageQueue, int],
    at: int,
    init: bool,
) -> None:
    offset = StreamOffset(ends, begins, at, init, firsts)
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@given(st.lists(st.tuples(QUEUES, st.integers(0, 9)), unique_by=lambda pair: pair[0]))
def test_json_ignores_order_of_queues(pairs: list[tuple[MessageQueue, int]]) -> None:
    texts = {json.dumps(StreamOffset(dict(order)).to_json()) for order in (pairs, pairs[::-1])}
    assert len(texts) == 1


def test_the_form_in_the_checkpoint_is_fixed() -> None:
    offset = StreamOffset({A0: 1234, A1: 99}, {A0: 1000}, 1795282807184, firsts={A0: 1795282800000})
    assert json.dumps(offset.to_json()) == (
        '{"v": 1, "q": {"A": {"b": {"0": 1234, "1": 99}}}, "from": {"A": {"b": {"0": 1000}}}, '
        '"first": {"A": {"b": {"0": 1795282800000}}}, "at": 1795282807184}'
    )


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"v": 2},
        {"v": 1},
        {"v": 1, "q": {"A": {"b": {"x": 1}}}, "from": {}, "at": 0},
        {"v": 1, "q": 3, "from": {}, "at": 0},
    ],
)
def test_unknown_version_or_damage_error_names_checkpoint(value: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="checkpoint"):
        StreamOffset.from_json(value)


def test_first_batch_uses_logged_begin_over_start_option() -> None:
    end = next_offset(StreamOffset({A0: 100}, is_initial=True), {A0: 110}, {}, 7, {})
    assert ranges_between(StreamOffset({A0: 500}, is_initial=True), end) == {A0: (100, 110)}


def test_new_queue_begins_at_logged_offset() -> None:
    start = StreamOffset({A0: 10})
    end = next_offset(start, {A0: 12, B0: 5}, {B0: 2}, 7, {})
    assert (end.begins, end.taken_at_ms) == ({B0: 2}, 7)
    assert ranges_between(start, end) == {A0: (10, 12), B0: (2, 5)}


def test_restarted_queue_is_read_from_its_start() -> None:
    start = StreamOffset({A0: 1000})
    end = next_offset(start, {A0: 30}, {A0: 0}, 7, {})
    assert ranges_between(start, end) == {A0: (0, 30)}


def test_nothing_new_is_the_same_offset_again() -> None:
    for start in (StreamOffset({A0: 10}, {A0: 0}, 3), StreamOffset({A0: 10}, is_initial=True)):
        assert next_offset(start, {A0: 10}, {}, 99, {}) is start


def test_an_end_never_goes_back() -> None:
    assert next_offset(StreamOffset({A0: 10, A1: 5}), {A0: 3, A1: 6}, {}, 1, {}).ends == {A0: 10, A1: 6}


def test_a_queue_without_begin_has_nothing_to_read() -> None:
    assert ranges_between(StreamOffset({}), StreamOffset({A0: 5})) == {}


@given(st.dictionaries(QUEUES, st.integers(0, 10**9), max_size=10), st.integers(1, 10**6))
def test_shares_keep_limits_and_starve_no_queue(backlogs: dict[MessageQueue, int], limit: int) -> None:
    shares = spread(backlogs, limit)
    waiting = {queue for queue, backlog in backlogs.items() if backlog}
    assert shares.keys() == waiting
    assert all(1 <= share <= backlogs[queue] for queue, share in shares.items())
    total = sum(backlogs.values())
    assert sum(shares.values()) == total if total <= limit else sum(shares.values()) <= max(limit, len(waiting))
    if total > limit >= len(waiting) * 2:
        assert sum(shares.values()) >= limit - len(waiting)


def test_shares_are_in_proportion() -> None:
    assert spread({A0: 3000, A1: 1000}, 1000) == {A0: 750, A1: 250}


@given(st.dictionaries(QUEUES, st.integers(0, 50), max_size=6), st.integers(1, 60))
def test_shares_ignore_order_of_queues(backlogs: dict[MessageQueue, int], limit: int) -> None:
    assert spread(backlogs, limit) == spread(dict(reversed(backlogs.items())), limit)
