"""Plans what to read: offsets of micro-batches in Spark's checkpoint, ranges of queues, partitions.  No I/O.

``{"v": 1, "q": {topic: {broker: {queue: end}}}, "from": {...}, "first": {...}, "at": ms}``: ``q`` has the exclusive
end of each queue, ``from`` the start of each queue that the previous offset did not have (in the first batch: all).
Spark logs only ends, so without ``from`` a repeated first batch would start at what ``initialOffset`` returns *now*.
``first`` has the store time of the message at offset 0, by which a topic that was deleted and created again is
recognised.

Spark compares the JSON text, so keys are sorted, and nothing changes unless ``q`` does.

A partition costs at least 35 ms, so small ranges share one.  Large ranges are split on request.

Source: spark.md 3.2 to 3.4.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.spark.options.options import Options

VERSION: Final = 1
Ends = dict[MessageQueue, int]
Ranges = dict[MessageQueue, tuple[int, int]]
#: Minimum size of a piece in offsets.
MIN_PIECE: Final = 1000
#: Ranges below this size may share a partition of at most this size.
SMALL_RANGE: Final = 10_000


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a micro-batch.

    Attributes:
        ends: exclusive end of each queue.
        begins: start of the queues that the previous offset did not have.
        taken_at_ms: the driver's clock when the ends were read.
        is_initial: the first batch starts here.
        firsts: store time in milliseconds of the first message of queues.
    """

    ends: Ends
    begins: Ends = field(default_factory=dict)
    taken_at_ms: int = 0
    is_initial: bool = False
    firsts: Mapping[MessageQueue, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the form for the checkpoint, made of JSON types."""
        value: dict[str, Any] = {"v": VERSION, "q": _nested(self.ends), "from": _nested(self.begins)}
        if self.firsts:
            value["first"] = _nested(self.firsts)
        value["at"] = int(self.taken_at_ms)
        if self.is_initial:
            value["init"] = True
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamOffset":
        """Read the JSON of :meth:`to_json`.

        Raises:
            ProtocolError: the version is another one, or the value is damaged.
        """
        if value.get("v") != VERSION:
            raise ProtocolError(
                f"the checkpoint has offsets of version {value.get('v')!r}, this data source reads version {VERSION}"
            )
        try:
            begins, firsts = _flat(value["from"]), _flat(value.get("first", {}))
            return cls(_flat(value["q"]), begins, int(value["at"]), bool(value.get("init", False)), firsts)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise ProtocolError(f"the checkpoint has an offset that cannot be read: {exc!r}") from exc


def ranges_between(start: StreamOffset, end: StreamOffset) -> Ranges:
    """Return the ranges of a micro-batch: start and exclusive end of each queue with unread messages."""
    ranges = {}
    for queue, stop in end.ends.items():
        begin = end.begins.get(queue, start.ends.get(queue, stop))
        if begin < stop:
            ranges[queue] = (begin, stop)
    return ranges


def next_offset(start: StreamOffset, targets: Ends, moved: Ends, now_ms: int, firsts: Ends) -> StreamOffset:
    """Return the end of the next micro-batch; ``start`` itself if nothing is new.

    Args:
        start: where it starts.
        targets: how far to read each queue; a target before the queue's start is ignored.
        moved: start of queues that ``start`` does not have, or has with an offset that no longer exists.
        now_ms: the clock.
        firsts: store times of first messages; the others are those of ``start``.
    """
    ends = dict(start.ends)
    begins = {**(start.ends if start.is_initial else {}), **moved}
    for queue, target in targets.items():
        ends[queue] = max(begins.get(queue, start.ends.get(queue, target)), target)
    is_new_queue_read = any(begin < ends[queue] for queue, begin in moved.items() if queue in ends)
    if ends == start.ends and not is_new_queue_read:
        return start
    return StreamOffset(ends, begins, now_ms, firsts={**start.firsts, **firsts})


def spread(backlogs: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """Divide a limit of offsets among queues in proportion to their backlogs.

    Each queue with a backlog gets at least one, even if the limit is lower than the number of queues, so none starves.
    The remainder goes to the largest.  The result is deterministic.
    """
    waiting = {queue: backlog for queue, backlog in sorted(backlogs.items()) if backlog > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    shares = {queue: max(1, backlog * limit // total) for queue, backlog in waiting.items()}
    rest = limit - sum(shares.values())  # negative if small queues got their minimum of one
    for queue in sorted(waiting, key=lambda one: -waiting[one]):
        more = max(min(rest, waiting[queue] - shares[queue]), 1 - shares[queue])
        shares[queue] += more
        rest -= more
    return shares


def _nested(flat: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for queue, queue_offset in sorted(flat.items()):
        brokers = nested.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = int(queue_offset)
    return nested


def _flat(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Ends:
    return {
        MessageQueue(topic, broker, int(queue_id)): int(queue_offset)
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for queue_id, queue_offset in queues.items()
    }


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


def plan_partitions(ranges: Ranges, options: Options) -> list[InputPartition]:
    """Return partitions that read each offset of the ranges once; the value of each one is a ``Partition``.

    Neighbours are on different brokers where possible, so that the first tasks do not all load the same broker.  Small
    ranges of a broker share partitions, unless ``minPartitions`` says how many there must be.
    """
    least, most_records = options["minPartitions"], options["maxRecordsPerPartition"]
    pieces = [QueueRange(queue, *bounds) for queue, bounds in sorted(ranges.items()) if bounds[0] < bounds[1]]
    if most_records is not None:
        pieces = [part for piece in pieces for part in _split(piece, -(-piece.size // most_records))]
    partitions = _split_to(pieces, least) if least is not None else _share(pieces, most_records)
    by_broker: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition in partitions:
        by_broker[partition[0].queue.broker_name].append(partition)
    rounds = zip_longest(*(by_broker[name] for name in sorted(by_broker)))
    return [InputPartition(partition) for one_round in rounds for partition in one_round if partition is not None]


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
