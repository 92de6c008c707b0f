"""Offsets that members of consumer groups took from a topic that was deleted, and perhaps created again, since.

The queues of the new topic begin at 0, so an old offset in it would skip its first messages.  RocketMQ reads and
stores such an offset.  Here a member that had a topic when it was deleted, or pulls one that does not exist, must begin
each queue again: until it asks for the stored offset of a queue, or pulls its first message, its pulls there are
answered with PULL_OFFSET_MOVED and the offset of that message, and its commits are refused.

Readers that are no members of a group choose their offsets themselves; nothing is refused to them.
"""

from typing import Final

from triomq.broker.groups.members import ConsumerGroups
from triomq.broker.network.connection import Connection
from triomq.protocol.requests.messages import PullMessageRequestHeader
from triomq.protocol.requests.offsets import UpdateConsumerOffsetRequestHeader

_MAX_TOPICS: Final = 1000  # of one connection, which may pull any number of topics that do not exist


class FormerOffsets:
    """Which members may have offsets of deleted topics."""

    def __init__(self, consumers: ConsumerGroups) -> None:
        self._consumers = consumers
        #: By connection, then topic and group: the queues that the member has begun again.
        self._begun: dict[Connection, dict[tuple[str, str], set[int]]] = {}

    def topic_deleted(self, topic: str) -> None:
        """Distrust the offsets of all members that subscribe to a topic, from now on."""
        for group in self._consumers:
            if topic in group.subscriptions:
                for connection in group.members:
                    self._distrust(connection, group.name, topic)

    def topic_missing(self, connection: Connection, group: str, topic: str) -> None:
        """Distrust the offsets of a member that pulls a topic that does not exist."""
        if group in self._consumers.of(connection):
            self._distrust(connection, group, topic)

    def _distrust(self, connection: Connection, group: str, topic: str) -> None:
        topics = self._begun.setdefault(connection, {})
        if len(topics) < _MAX_TOPICS or (topic, group) in topics:
            topics[topic, group] = set()

    def refuses_pull(self, connection: Connection, header: PullMessageRequestHeader, min_offset: int) -> bool:
        """Whether the offset of a pull may be of a deleted topic: the member has not begun the queue again."""
        begun = self._queues(connection, header.topic, header.consumer_group)
        if begun is None or header.queue_id in begun:
            return False
        if header.queue_offset <= min_offset:
            begun.add(header.queue_id)
            return False
        return True

    def refuses_commit(
        self, connection: Connection, header: UpdateConsumerOffsetRequestHeader, min_offset: int
    ) -> bool:
        """Whether an offset to commit may be of a deleted topic."""
        begun = self._queues(connection, header.topic, header.consumer_group)
        return begun is not None and header.queue_id not in begun and header.commit_offset > min_offset

    def begin(self, connection: Connection, group: str, topic: str, queue_id: int) -> None:
        """Trust the offsets of a member in a queue again: it asks where to begin."""
        if (begun := self._queues(connection, topic, group)) is not None:
            begun.add(queue_id)

    def _queues(self, connection: Connection, topic: str, group: str) -> set[int] | None:
        topics = self._begun.get(connection)
        return None if topics is None else topics.get((topic, group))

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._begun.pop(connection, None)
