"""How often a message is retried, and the dead-letter topic."""

import pytest

from tests.unit.broker.recording import Peer
from triomq.broker.processors.send import ensure_dead_letter_topic, retry_limit
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.errors import IllegalNameError


@pytest.mark.parametrize(
    ("asked", "version", "limit"), [(None, 407, 9), (2, 407, 2), (2, 121, 2), (2, 120, 9), (0, 407, 0)]
)
def test_a_client_may_choose_the_limit_from_version_3_4_9_on(asked: int | None, version: int, limit: int) -> None:
    assert retry_limit(SubscriptionGroupConfig(group_name="G", retry_max_times=9), asked, version) == limit


def test_a_dead_letter_topic_is_made_once_with_one_queue(peer: Peer) -> None:
    topics = peer.broker.topics
    assert ensure_dead_letter_topic(topics, "G") == "%DLQ%G"
    made = topics.get("%DLQ%G")
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (1, 1, 6)
    ensure_dead_letter_topic(topics, "G")
    assert topics.get("%DLQ%G") is made


def test_a_group_too_long_for_a_topic_has_no_dead_letter_topic(peer: Peer) -> None:
    with pytest.raises(IllegalNameError):
        ensure_dead_letter_topic(peer.broker.topics, "g" * 125)
    assert peer.broker.topics.get("%DLQ%" + "g" * 125) is None
