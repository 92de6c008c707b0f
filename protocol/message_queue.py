"""The name of a queue, and types of numbers that must not be confused; all are signed, with 64 bits in files."""

from typing import NamedTuple, NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the whole commit log."""

QueueOffset = NewType("QueueOffset", int)
"""n-th message of one queue, from 0."""

Timestamp = NewType("Timestamp", int)
"""Milliseconds since 1970-01-01 UTC."""


class MessageQueue(NamedTuple):
    """One queue of one topic on one broker; sorts and compares like Java's: topic, broker name, queue id.

    All members of a consumer group must sort queues alike to agree on which member consumes which queue.
    Source: MessageQueue.java, compareTo.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
