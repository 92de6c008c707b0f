"""Which member consumes which queue: pure functions that all members of a group compute alike.

Groups have no coordinator: every member sorts the same queues and the same member ids and takes its share.
Members with different input disagree until the next round, which causes duplicates, but loses no message.

Source: behaviour.md B.7, AllocateMessageQueueAveragely.java and the other strategies.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import md5
from math import inf
from typing import Final, TypeAlias, TypeVar

from triomq.client.consumer.offsets.offset_store import RETURN_S
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import RETRY_PREFIX

_T = TypeVar("_T")

QueueSequence: TypeAlias = Sequence[MessageQueue]
AllocateStrategy: TypeAlias = Callable[[QueueSequence, Sequence[str], str], QueueSequence]
"""Takes the sorted queues of one topic, the sorted member ids and one of these; returns the queues of that member.

Every member calls it for each topic, including the group's retry topic: for one input the shares
of all members must cover each queue exactly once.  If it raises, the member keeps its queues.
"""

_VIRTUAL_NODES: Final = 10


class Membership:
    """The members of the group as a consumer knows them.

    A broker that restarts knows a member once it has connected again, which takes each of them up to a second.  The
    first one would seem to be alone: it would take over all queues and give them up a moment later, and messages in
    flight would be delivered twice.  So for :data:`RETURN_S` after a lost connection is back, members that were known
    before count, even if all were listed meanwhile: a broker may list the old connection of a member until it notices
    that this one ended, too.  That delays no first message: a new member has lost no connection.  Only the queues of a
    member that dies or leaves at that time wait that long.
    """

    def __init__(self) -> None:
        self._known: dict[str, frozenset[str]] = {}  # by topic
        self._until: dict[str, float] = {}  # by lost broker: until when known members count

    def broker_lost(self, broker_name: str) -> None:
        """Record that the connection to a broker has ended: it may know fewer members when it is back."""
        self._until[broker_name] = inf

    def missing(self, topic: str, broker_name: str, listed: Collection[str], now: float) -> frozenset[str]:
        """Return the members that count although the broker did not list them; ask again while there are some."""
        until = self._until.get(broker_name)
        if until == inf:
            until = self._until[broker_name] = now + RETURN_S
        if until is not None and now < until:
            if missing := self._known.get(topic, frozenset()).difference(listed):
                return missing
        else:
            self._until.pop(broker_name, None)
        self._known[topic] = frozenset(listed)
        return frozenset()

    def forget(self, topic: str) -> None:
        """Forget a topic that is no longer subscribed."""
        self._known.pop(topic, None)


def allocate(
    strategy: AllocateStrategy, queues: Iterable[MessageQueue], members: Iterable[str], client_id: str
) -> frozenset[MessageQueue]:
    """Return the queues of ``client_id``, of input in any order.

    An id that is listed twice (a member whose old connection is not closed yet) counts once, else queues
    would be left without an owner.  Nothing is returned for a client that is not among the members.

    Raises:
        ValueError: the strategy returned a queue that is none of ``queues``.
        Exception: whatever the strategy raises.
    """
    # as String.compareTo: by UTF-16 code units
    sorted_members = sorted(set(members), key=lambda member: member.encode("utf-16-be", "surrogatepass"))
    sorted_queues = sorted(set(queues))
    if client_id not in sorted_members or not sorted_queues:
        return frozenset()
    mine = frozenset(strategy(sorted_queues, sorted_members, client_id))
    if strange := mine.difference(sorted_queues):
        raise ValueError(f"strategy returned {min(strange)}, which is not one of the {len(sorted_queues)} queues given")
    return mine


def allocate_averagely(queues: QueueSequence, members: Sequence[str], client_id: str) -> QueueSequence:
    """Give each member one run of neighbouring queues; the first members get one more if it does not divide.

    Source: AllocateMessageQueueAveragely.java, "AVG".
    """
    index = members.index(client_id)
    size, left_over = divmod(len(queues), len(members))
    start = index * size + min(index, left_over)
    return queues[start : start + size + (index < left_over)]


def allocate_by_circle(queues: QueueSequence, members: Sequence[str], client_id: str) -> QueueSequence:
    """Deal the queues out one by one.

    Source: AllocateMessageQueueAveragelyByCircle.java, "AVG_BY_CIRCLE".
    """
    return queues[members.index(client_id) :: len(members)]


def allocate_consistent_hash(queues: QueueSequence, members: Sequence[str], client_id: str) -> QueueSequence:
    """Move few queues when a member joins or leaves: the next of 10 points per member on a ring owns a queue.

    Source: AllocateMessageQueueConsistentHash.java, ConsistentHashRouter.java, "CONSISTENT_HASH".
    """
    points = {_ring_hash(f"{member}-{node}"): member for member in members for node in range(_VIRTUAL_NODES)}
    ring = sorted(points)

    def owner(queue: MessageQueue) -> str:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"  # Java's
        return points[ring[bisect_left(ring, _ring_hash(text)) % len(ring)]]

    return [queue for queue in queues if owner(queue) == client_id]


def allocate_by_config(mine: Iterable[MessageQueue]) -> AllocateStrategy:
    """Return a strategy that gives this member the queues named here, whatever the other members do.

    Each member names its own queues; others are not consumed.  Only the group's retry topic is shared
    averagely: its queues change with the brokers, and failed messages would wait there forever.

    Source: AllocateMessageQueueByConfig.java, "CONFIG".
    """
    named = frozenset(mine)

    def strategy(queues: QueueSequence, members: Sequence[str], client_id: str) -> QueueSequence:
        if queues[0].topic.startswith(RETRY_PREFIX):
            return allocate_averagely(queues, members, client_id)
        return [queue for queue in queues if queue in named]

    return strategy


def allocate_by_machine_room(rooms: Iterable[str]) -> AllocateStrategy:
    """Return a strategy that shares out only the queues in these machine rooms.

    The name of a broker is ``room@name``; queues of brokers with other names are not consumed.  What does not
    divide goes to the first members, one queue each, from the end.

    Source: AllocateMessageQueueByMachineRoom.java, "MACHINE_ROOM".
    """
    wanted = frozenset(rooms)

    def strategy(queues: QueueSequence, members: Sequence[str], client_id: str) -> QueueSequence:
        names = {queue: queue.broker_name.split("@") for queue in queues}
        inside = [queue for queue, name in names.items() if len(name) == 2 and name[0] in wanted and name[1]]
        index = members.index(client_id)
        size, left_over = divmod(len(inside), len(members))
        share = inside[index * size : (index + 1) * size]
        if index < left_over:
            share.append(inside[len(members) * size + index])
        return share

    return strategy


def allocate_nearby(
    room_of_queue: Callable[[MessageQueue], str],
    room_of_member: Callable[[str], str],
    within: AllocateStrategy = allocate_averagely,
) -> AllocateStrategy:
    """Return a strategy that keeps queues and members of one machine room together.

    The members of a room share its queues; the queues of a room without members are shared by all.

    Args:
        room_of_queue: the room that a queue's broker is in.
        room_of_member: the room that a member is in, by its client id.
        within: how the queues are shared.

    The strategy raises ``ValueError`` if a room is not known, which is an empty text.

    Source: AllocateMachineRoomNearby.java, "MACHINE_ROOM_NEARBY".
    """

    def strategy(queues: QueueSequence, members: Sequence[str], client_id: str) -> QueueSequence:
        queues_of = _group_by_room(queues, room_of_queue)
        members_of = _group_by_room(members, room_of_member)
        own = room_of_member(client_id)
        share: list[MessageQueue] = []
        for room, room_queues in queues_of.items():
            if room == own:
                share += within(room_queues, members_of[own], client_id)
            elif room not in members_of:
                share += within(room_queues, members, client_id)
        return share

    return strategy


def _group_by_room(items: Iterable[_T], room_of: Callable[[_T], str]) -> dict[str, list[_T]]:
    rooms: dict[str, list[_T]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise ValueError(f"the machine room of {item} is not known")
        rooms.setdefault(room, []).append(item)
    return rooms


def _ring_hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
