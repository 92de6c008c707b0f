"""Scenarios 5 and 27 of spark.md 6: partitions, offsets of the checkpoint, shares of a limit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.spark.options.options import Options
from triomq.spark.reading import planning
from triomq.spark.reading.planning import MIN_PIECE, SMALL_RANGE, Partition, StreamOffset, next_offset, spread

QUEUES = st.builds(MessageQueue, st.sampled_from(["A", "B"]), st.sampled_from(["x", "y", "z"]), st.integers(0, 12))
RANGES = st.dictionaries(
    QUEUES, st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)).map(lambda pair: (pair[0], sum(pair))), max_size=10
)
Ranges = dict[MessageQueue, tuple[int, int]]
A0, A1 = MessageQueue("A", "b", 0), MessageQueue("A", "b", 1)


def queue(broker: str, number: int) -> MessageQueue:
    return MessageQueue("T", broker, number)


def plan_partitions(ranges: Ranges, least: int | None = None, most: int | None = None) -> list[Partition]:
    options = Options({"minPartitions": least, "maxRecordsPerPartition": most})
    return [partition.value for partition in planning.plan_partitions(ranges, options)]


def joined(partitions: list[Partition]) -> Ranges:
    """Put the pieces of each queue together; fails where they overlap or leave a gap."""
    whole: Ranges = {}
    for piece in sorted(piece for partition in partitions for piece in partition):
        begin, end = whole.get(piece.queue, (piece.begin, piece.begin))
        assert end == piece.begin
        whole[piece.queue] = (begin, piece.end)
    return whole


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(1000, 10**5))
def test_every_offset_is_in_one_partition(ranges: Ranges, least: int | None, most: int | None) -> None:
    partitions = plan_partitions(ranges, least, most)
    assert joined(partitions) == {queue: bounds for queue, bounds in ranges.items() if bounds[0] < bounds[1]}
    assert all(partitions)
    if most is not None:
        assert all(sum(piece.size for piece in partition) <= most for partition in partitions)


@given(RANGES)
def test_small_ranges_of_broker_share_partition(ranges: Ranges) -> None:
    for partition in plan_partitions(ranges):
        assert len({piece.queue.broker_name for piece in partition}) == 1
        if len(partition) > 1:
            assert sum(piece.size for piece in partition) <= SMALL_RANGE


def test_eight_partitions_have_similar_sizes() -> None:
    partitions = plan_partitions({queue("a", 0): (0, 40_000), queue("a", 1): (500, 42_500)}, least=8)
    sizes = [sum(piece.size for piece in partition) for partition in partitions]
    assert len(partitions) == 8
    assert max(sizes) <= 1.1 * min(sizes)


def test_pieces_do_not_get_tiny() -> None:
    partitions = plan_partitions({queue("a", 0): (0, 3500)}, least=100)
    assert len(partitions) == 3
    assert all(partition[0].size >= MIN_PIECE for partition in partitions)


def test_wanted_partitions_separate_small_queues() -> None:
    ranges = {queue("a", number): (0, 10) for number in range(4)}
    assert len(plan_partitions(ranges)) == 1
    assert len(plan_partitions(ranges, least=4)) == 4


def test_brokers_take_turns() -> None:
    ranges = {queue(broker, number): (0, 50_000) for broker in "abc" for number in range(2)}
    brokers = [partition[0].queue.broker_name for partition in plan_partitions(ranges)]
    assert brokers == ["a", "b", "c", "a", "b", "c"]


ENDS = st.dictionaries(QUEUES, st.integers(0, 2**40), max_size=8)


@given(st.builds(StreamOffset, ENDS, ENDS, st.integers(0, 2**50), st.booleans(), ENDS))
def test_an_offset_survives_json(offset: StreamOffset) -> None:
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


def test_an_end_never_goes_back() -> None:
    assert next_offset(StreamOffset({A0: 10, A1: 5}), {A0: 3, A1: 6}, {}, 1, {}).ends == {A0: 10, A1: 6}


@given(st.dictionaries(QUEUES, st.integers(0, 10**9), max_size=10), st.integers(1, 10**6))
def test_shares_keep_limits_and_starve_no_queue(backlogs: dict[MessageQueue, int], limit: int) -> None:
    shares = spread(backlogs, limit)
    assert shares == spread(dict(reversed(backlogs.items())), limit)
    waiting = {queue for queue, backlog in backlogs.items() if backlog}
    assert shares.keys() == waiting
    assert all(1 <= share <= backlogs[queue] for queue, share in shares.items())
    total = sum(backlogs.values())
    assert sum(shares.values()) == total if total <= limit else sum(shares.values()) <= max(limit, len(waiting))
    if total > limit >= len(waiting) * 2:
        assert sum(shares.values()) >= limit - len(waiting)


def test_shares_are_in_proportion() -> None:
    assert spread({A0: 3000, A1: 1000}, 1000) == {A0: 750, A1: 250}
