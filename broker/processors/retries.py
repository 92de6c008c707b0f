"""How often a message of a group may come again, and where it goes when that is used up.

Source: behaviour.md A.3 (9), A.7.
"""

from triomq.broker.topics import TopicTable
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.codes import VERSION_MAX_RECONSUME
from triomq.protocol.names import dead_letter_topic


def retry_limit(group: SubscriptionGroupConfig, asked: int | None, version: int) -> int:
    """Return how often a message may come again: what the client asks for, if its version may, else the group's."""
    return asked if asked is not None and version >= VERSION_MAX_RECONSUME else group.retry_max_times


def ensure_dead_letter_topic(topics: TopicTable, group: str) -> str:
    """Return the group's dead-letter topic, made with one queue if it is not there.

    Raises:
        IllegalNameError: the group's name is too long to be part of a topic's.
    """
    return topics.ensure(dead_letter_topic(group), 1).topic_name
