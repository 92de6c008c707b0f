"""The offset of a micro-batch in Spark's checkpoint, and the arithmetic of queue ends.  No I/O.

``{"v": 1, "q": {topic: {broker: {queue: end}}}, "from": {...}, "first": {...}, "at": ms}``: ``q`` has the exclusive
end of each queue, ``from`` the start of each queue that the previous offset did not have (in the first batch: all).
Spark logs only ends, so without ``from`` a repeated first batch would start at what ``initialOffset`` returns *now*.
``first`` has the store time of the message at offset 0, by which a topic that was deleted and created again is
recognised.

Spark compares the JSON text, so keys are sorted, and nothing changes unless ``q`` does.

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
_NO_FIRSTS: Final[Mapping[MessageQueue, int]] = {}


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
        begin = end.begins.get(queue)
        if begin is None:
            begin = start.ends.get(queue, stop)
        if begin < stop:
            ranges[queue] = (begin, stop)
    return ranges


def next_offset(
    start: StreamOffset,
    targets: Mapping[MessageQueue, int],
    moved: Mapping[MessageQueue, int],
    now_ms: int,
    firsts: Mapping[MessageQueue, int] = _NO_FIRSTS,
) -> StreamOffset:
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
