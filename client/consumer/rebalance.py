"""Who consumes which queue: pure functions that all members of a group compute alike.

There is no coordinator: every member sorts the same queues and the same member ids and takes its share.
Two members that saw different input disagree until the next round, which costs duplicates, never messages.

Source: behaviour.md B.7, AllocateMessageQueueAveragely.java and its sisters.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from hashlib import md5
from typing import Final, NamedTuple, TypeAlias

from triomq.protocol.message_queue import MessageQueue

AllocateStrategy: TypeAlias = Callable[[Sequence[MessageQueue], Sequence[str], str], Sequence[MessageQueue]]
"""From sorted queues, sorted member ids and one id of them to the queues of that member."""

_VIRTUAL_NODES: Final = 10


class Assignment(NamedTuple):
    """What to start and what to give up."""

    added: frozenset[MessageQueue]
    removed: frozenset[MessageQueue]


def plan(mine: frozenset[MessageQueue], held: frozenset[MessageQueue]) -> Assignment:
    """Compare what I should hold with what I hold.  No I/O: the caller starts and stops loops."""
    return Assignment(added=mine - held, removed=held - mine)


def allocate(
    strategy: AllocateStrategy, queues: Iterable[MessageQueue], members: Iterable[str], client_id: str
) -> frozenset[MessageQueue]:
    """Return the queues of ``client_id``, of input in any order.

    An id that is listed twice (a member whose old connection is not closed yet) counts once, else queues
    would be left without an owner.  Nothing is returned for a client that is not among the members.
    """
    sorted_members = sorted(set(members), key=_java_order)
    sorted_queues = sorted(set(queues))
    if client_id not in sorted_members or not sorted_queues:
        return frozenset()
    return frozenset(strategy(sorted_queues, sorted_members, client_id))


def allocate_averagely(
    queues: Sequence[MessageQueue], members: Sequence[str], client_id: str
) -> Sequence[MessageQueue]:
    """Give each member one run of neighbouring queues; the first members get one more if it does not divide.

    Source: AllocateMessageQueueAveragely.java, "AVG".
    """
    index = members.index(client_id)
    size, left_over = divmod(len(queues), len(members))
    start = index * size + min(index, left_over)
    return queues[start : start + size + (index < left_over)]


def allocate_by_circle(
    queues: Sequence[MessageQueue], members: Sequence[str], client_id: str
) -> Sequence[MessageQueue]:
    """Deal the queues out one by one.

    Source: AllocateMessageQueueAveragelyByCircle.java, "AVG_BY_CIRCLE".
    """
    return queues[members.index(client_id) :: len(members)]


def allocate_consistent_hash(
    queues: Sequence[MessageQueue], members: Sequence[str], client_id: str
) -> Sequence[MessageQueue]:
    """Let few queues move when a member joins or leaves: the owner is the next of 10 points of each member.

    Source: AllocateMessageQueueConsistentHash.java, ConsistentHashRouter.java, "CONSISTENT_HASH".
    """
    points = {_ring_hash(f"{member}-{node}"): member for member in members for node in range(_VIRTUAL_NODES)}
    ring = sorted(points)
    return [
        queue
        for queue in queues
        if points[ring[bisect_left(ring, _ring_hash(_java_text(queue))) % len(ring)]] == client_id
    ]


def _ring_hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    """``MessageQueue.toString`` of Java, which its ring hashes."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _java_order(text: str) -> bytes:
    """Sort key of ``String.compareTo``: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")
