import pytest

from triomq.protocol.system_names import is_system_group, topic_kind


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
def test_a_topic_is_a_users_unless_rocketmq_made_it(topic: str, kind: str) -> None:
    assert topic_kind(topic, {"DefaultCluster", "broker-a"}) == kind


def test_groups_of_every_broker_are_known() -> None:
    assert is_system_group("TOOLS_CONSUMER")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("orders-service")
