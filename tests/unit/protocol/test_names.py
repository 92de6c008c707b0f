import pytest

from triomq.protocol.errors import IllegalNameError
from triomq.protocol.names import (
    FORBIDDEN_TOPICS,
    is_system_group,
    system_topics,
    topic_kind,
    validate_group,
    validate_topic,
)


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("orders", "normal"),
        ("%RETRY%g", "retry"),
        ("%DLQ%g", "dead-letter"),
        ("TBW102", "system"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "system"),
        ("rmq_sys_wheel_timer", "system"),
        ("DefaultCluster", "system"),
        ("broker-a", "system"),
        ("DefaultCluster_REPLY_TOPIC", "system"),
        ("orders_REPLY_TOPIC", "normal"),
    ],
)
def test_topic_is_users_unless_rocketmq_made_it(topic: str, kind: str) -> None:
    assert topic_kind(topic, {"DefaultCluster", "broker-a"}) == kind


def test_groups_of_every_broker_are_known() -> None:
    assert is_system_group("TOOLS_CONSUMER")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("orders-service")


def test_forbidden_topics_match_specification_and_timers() -> None:
    assert {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "rmq_sys_wheel_timer",
    } == FORBIDDEN_TOPICS


def test_system_topics_are_never_normal() -> None:
    topics = system_topics("DefaultCluster", "broker-a")
    assert topics > FORBIDDEN_TOPICS
    assert {topic_kind(topic, {"DefaultCluster", "broker-a"}) for topic in topics} == {"system"}


@pytest.mark.parametrize("name", ["T", "%RETRY%group", "a-b_c|d", "x" * 127])
def test_legal_topic_is_accepted(name: str) -> None:
    validate_topic(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "blank") for name in ("", " \t")),
        ("x" * 128, "127"),
        *((name, "only letters") for name in ("a b", "a.b", "../x", "topic\n", "中文", "a\x00")),
    ],
)
def test_illegal_topic_is_refused_with_its_reason(name: str, reason: str) -> None:
    with pytest.raises(IllegalNameError, match=reason):
        validate_topic(name)


def test_group_may_be_longer_than_a_topic() -> None:
    validate_group("g" * 255)
    with pytest.raises(IllegalNameError, match="255"):
        validate_group("g" * 256)
    validate_group("g" * 120, with_retry_topic=True)
    with pytest.raises(IllegalNameError, match="121 characters, at most 120"):
        validate_group("g" * 121, with_retry_topic=True)


@pytest.mark.parametrize("name", ["DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "", "a/b"])
def test_illegal_group_is_refused(name: str) -> None:
    with pytest.raises(IllegalNameError, match="group"):
        validate_group(name)
