"""Queues that plain sends go to, found by the two texts of the request that name them.

What is found here needs no further check of topic or queue: it is remembered for the next message, and all of it is
forgotten as soon as any topic changes.
"""

from typing import Final

from triomq.broker.topics import TopicTable
from triomq.protocol.bodies.route import TopicFilterType
from triomq.protocol.names import FORBIDDEN_TOPICS, RETRY_PREFIX
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.message_store import MessageStore

_MAX_DIGITS: Final = 5  # of a queue id: topics have at most 65,536 queues


class SendTargets:
    """Topic and queue id, as text, to the queue."""

    def __init__(self, topics: TopicTable, store: MessageStore) -> None:
        self._topics = topics
        self._store = store
        self._queues: dict[tuple[str, str], ConsumeQueue] = {}
        self._version = topics.data_version

    def find(self, topic: str, queue_id: str) -> ConsumeQueue | None:
        """Return the queue, or ``None`` if the request needs a closer look."""
        if self._version is not self._topics.data_version:  # a new object for each change
            self._version = self._topics.data_version
            self._queues.clear()
        return self._queues.get((topic, queue_id)) or self._learn(topic, queue_id)

    def _learn(self, topic: str, queue_id: str) -> ConsumeQueue | None:
        config = self._topics.get(topic)
        if (
            config is None
            or topic in FORBIDDEN_TOPICS
            or topic.startswith(RETRY_PREFIX)
            or config.topic_filter_type is TopicFilterType.MULTI_TAG
            or not queue_id.isdecimal()
            or len(queue_id) > _MAX_DIGITS
            or str(int(queue_id)) != queue_id  # one text for each queue, so that this cannot grow
            or int(queue_id) >= max(config.write_queue_nums, config.read_queue_nums)
        ):
            return None
        queue = self._store.queue(topic, int(queue_id))
        self._queues[topic, queue_id] = queue
        return queue
