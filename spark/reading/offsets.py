"""The offset of a micro-batch in Spark's checkpoint, and the arithmetic of queue ends.  No I/O.

``{"v": 1, "q": {topic: {broker: {queue: end}}}, "from": {...}, "at": ms}``: ``q`` has the exclusive end of each
queue, ``from`` the begin of those that the offset before it did not have: all of them in the first batch.  Spark logs
ends only, so without ``from`` a repeated first batch would begin where ``initialOffset`` says *now*.

Spark compares the JSON text: keys are sorted, and nothing changes unless ``q`` does.

Source: spark.md 3.2, 3.4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue

VERSION: Final = 1
Ends = dict[MessageQueue, int]
Ranges = dict[MessageQueue, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a micro-batch ends.

    Attributes:
        ends: exclusive end of each queue.
        begins: begin of the queues that the offset before it did not have.
        taken_at_ms: the driver's clock when the ends were taken.
        is_initial: it is where the first batch begins.
    """

    ends: Ends
    begins: Ends = field(default_factory=dict)
    taken_at_ms: int = 0
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the form for the checkpoint, of JSON's own types only."""
        value: dict[str, Any] = {"v": VERSION, "q": _nested(self.ends), "from": _nested(self.begins)}
        value["at"] = int(self.taken_at_ms)
        if self.is_initial:
            value["init"] = True
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamOffset":
        """Read what :meth:`to_json` made.

        Raises:
            ProtocolError: it is of another version, or damaged.
        """
        if value.get("v") != VERSION:
            raise ProtocolError(
                f"the checkpoint has offsets of version {value.get('v')!r}, this data source reads version {VERSION}"
            )
        try:
            return cls(_flat(value["q"]), _flat(value["from"]), int(value["at"]), bool(value.get("init", False)))
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise ProtocolError(f"the checkpoint has an offset that cannot be read: {exc!r}") from exc


def ranges_between(start: StreamOffset, end: StreamOffset) -> Ranges:
    """Return what a micro-batch reads: for each queue of ``end`` begin and exclusive end, empty ranges left out."""
    ranges = {}
    for queue, stop in end.ends.items():
        begin = end.begins.get(queue)
        if begin is None:
            begin = start.ends.get(queue, stop)
        if begin < stop:
            ranges[queue] = (begin, stop)
    return ranges


def next_offset(
    start: StreamOffset, targets: Mapping[MessageQueue, int], moved: Mapping[MessageQueue, int], now_ms: int
) -> StreamOffset:
    """Return the end of the next micro-batch; ``start`` itself if there is nothing new.

    Args:
        start: where it begins.
        targets: how far queues are to be read; a queue below its own begin stays there.
        moved: where queues begin that ``start`` does not have, or has with an offset that is gone.
        now_ms: the clock.
    """
    ends = dict(start.ends)
    begins = {**(start.ends if start.is_initial else {}), **moved}
    for queue, target in targets.items():
        ends[queue] = max(begins.get(queue, start.ends.get(queue, target)), target)
    if ends == start.ends:
        return start
    return StreamOffset(ends, begins, now_ms)


def spread(backlogs: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """Share a limit of offsets out over queues, in proportion to their backlogs.

    Each queue with a backlog gets one at least, also if the limit is lower than their number, so that none starves;
    what division leaves goes to the largest.  The same input gives the same result.
    """
    waiting = {queue: backlog for queue, backlog in sorted(backlogs.items()) if backlog > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    shares = {queue: max(1, backlog * limit // total) for queue, backlog in waiting.items()}
    rest = limit - sum(shares.values())  # below 0 where small queues got their one
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
