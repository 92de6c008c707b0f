"""The name of one queue of one topic on one broker."""

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue; sorts and compares like Java's: topic, broker name, queue id.

    All members of a consumer group must sort queues alike to agree on which member consumes which queue.
    Source: MessageQueue.java, compareTo.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
