"""Scenario 5 of spark.md 6: partitions."""

from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.message_queue import MessageQueue
from triomq.spark.options.options import Options
from triomq.spark.reading.planning import MIN_PIECE, SMALL_RANGE, Partition
from triomq.spark.reading.planning import plan_partitions as plan

QUEUES = st.builds(MessageQueue, st.sampled_from(["A", "B"]), st.sampled_from(["x", "y", "z"]), st.integers(0, 7))
RANGES = st.dictionaries(
    QUEUES, st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)).map(lambda pair: (pair[0], sum(pair))), max_size=10
)
Ranges = dict[MessageQueue, tuple[int, int]]


def queue(broker: str, number: int) -> MessageQueue:
    return MessageQueue("T", broker, number)


def plan_partitions(ranges: Ranges, least: int | None = None, most: int | None = None) -> list[Partition]:
    options = Options({"minPartitions": least, "maxRecordsPerPartition": most})
    return [partition.value for partition in plan(ranges, options)]


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


def test_nothing_to_read_is_no_partition() -> None:
    assert plan_partitions({queue("a", 0): (5, 5)}, least=3) == []
