"""Turns ranges of queues into partitions.  No I/O.

A partition costs at least 35 ms, so small ranges share one.  Large ranges are split on request.  Source: spark.md 3.3.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple

from triomq.protocol.message_queue import MessageQueue

#: Minimum size of a piece in offsets.
MIN_PIECE: Final = 1000
#: Ranges below this size may share a partition of at most this size.
SMALL_RANGE: Final = 10_000


class QueueRange(NamedTuple):
    """Offsets ``begin`` to ``end`` (exclusive) of a queue."""

    queue: MessageQueue
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.end - self.begin


Partition = tuple[QueueRange, ...]


def plan_partitions(
    ranges: Mapping[MessageQueue, tuple[int, int]], *, least: int | None = None, most_records: int | None = None
) -> list[Partition]:
    """Return partitions that read each offset of the ranges once.

    Neighbours are on different brokers where possible, so that the first tasks do not all load the same broker.

    Args:
        ranges: start and exclusive end of each queue.
        least: split the largest pieces until there are this many; ``None``: small ranges of a broker share partitions.
        most_records: limit of one partition.
    """
    pieces = [QueueRange(queue, *bounds) for queue, bounds in sorted(ranges.items()) if bounds[0] < bounds[1]]
    if most_records is not None:
        pieces = [part for piece in pieces for part in _split(piece, -(-piece.size // most_records))]
    partitions = _split_to(pieces, least) if least is not None else _share(pieces, most_records)
    return _in_turns(partitions)


def _split(piece: QueueRange, count: int) -> list[QueueRange]:
    """Cut a range into pieces whose sizes differ by at most one."""
    cuts = [piece.begin + piece.size * index // count for index in range(count + 1)]
    return [QueueRange(piece.queue, begin, end) for begin, end in pairwise(cuts)]


def _split_to(pieces: Iterable[QueueRange], least: int) -> list[Partition]:
    """Cut the ranges so that the largest piece is as small as possible."""
    counts = dict.fromkeys(pieces, 1)
    total = len(counts)
    while counts and total < least:
        largest = max(counts, key=lambda piece: piece.size / counts[piece])
        if largest.size // (counts[largest] + 1) < MIN_PIECE:
            break
        counts[largest] += 1
        total += 1
    return [(part,) for piece, count in counts.items() for part in _split(piece, count)]


def _share(pieces: Iterable[QueueRange], most_records: int | None) -> list[Partition]:
    """Put small ranges of the same broker into shared partitions."""
    limit = SMALL_RANGE if most_records is None else min(SMALL_RANGE, most_records)
    partitions: list[Partition] = []
    open_parts: dict[str, tuple[list[QueueRange], int]] = {}
    for piece in pieces:
        if piece.size >= limit:
            partitions.append((piece,))
            continue
        name = piece.queue.broker_name
        part, size = open_parts.get(name, ([], 0))
        if size + piece.size > limit:
            partitions.append(tuple(part))
            part, size = [], 0
        part.append(piece)
        open_parts[name] = part, size + piece.size
    return partitions + [tuple(part) for part, _ in open_parts.values()]


def _in_turns(partitions: Iterable[Partition]) -> list[Partition]:
    by_broker: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition in partitions:
        by_broker[partition[0].queue.broker_name].append(partition)
    rounds = zip_longest(*(by_broker[name] for name in sorted(by_broker)))
    return [partition for one_round in rounds for partition in one_round if partition is not None]
