"""The rules of NamespaceUtil.java, and what clients make of them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.unit.client.consumer.fake_cluster import make_message
from triomq.protocol.errors import IllegalNameError
from triomq.protocol.names import dead_letter_topic, retry_topic
from triomq.protocol.namespace import Namespace

TENANT = Namespace("T")
NAMES = st.text("abzAZ09_-", min_size=1, max_size=20).filter(lambda name: not name.endswith("_REPLY_TOPIC"))


@pytest.mark.parametrize(
    ("bare", "wrapped"),
    [
        ("orders", "T%orders"),
        ("%RETRY%group", "%RETRY%T%group"),
        ("%DLQ%group", "%DLQ%T%group"),
        ("TBW102", "TBW102"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("BenchmarkTest", "BenchmarkTest"),
        ("DefaultCluster_REPLY_TOPIC", "DefaultCluster_REPLY_TOPIC"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("TOOLS_CONSUMER", "TOOLS_CONSUMER"),
        ("CLIENT_INNER_PRODUCER", "CLIENT_INNER_PRODUCER"),
        ("", ""),
    ],
)
def test_names_get_prefix_unless_they_are_systems(bare: str, wrapped: str) -> None:
    assert TENANT.wrap(bare) == wrapped
    assert TENANT.wrap(wrapped) == wrapped
    assert TENANT.unwrap(wrapped) == bare
    assert Namespace().wrap(bare) == Namespace().unwrap(bare) == bare


def test_names_of_other_namespaces_stay() -> None:
    assert TENANT.unwrap("U%orders") == "U%orders"
    assert TENANT.unwrap("TT%orders") == "TT%orders"


@given(NAMES, NAMES)
def test_wrapping_is_undone_by_unwrapping(namespace: str, name: str) -> None:
    names = Namespace(namespace)
    for bare in (name, retry_topic(name), dead_letter_topic(name)):
        assert names.unwrap(names.wrap(bare)) == bare
        assert names.wrap(names.wrap(bare)) == names.wrap(bare)


@pytest.mark.parametrize("name", ["a%b", "a b", "ä", "x" * 61])
def test_impossible_names_are_refused(name: str) -> None:
    with pytest.raises(IllegalNameError, match="namespace"):
        Namespace(name)


def test_only_header_fields_with_names_are_translated() -> None:
    fields = {"topic": "t", "consumerGroup": "g", "a": "g", "b": "t", "c": "TBW102", "subscription": "topic", "i": "x"}
    wrapped = fields | {"topic": "T%t", "consumerGroup": "T%g", "a": "T%g", "b": "T%t"}
    assert TENANT.wrap_fields(fields) == wrapped
    assert TENANT.unwrap_fields(wrapped) == fields


def test_json_bodies_are_translated() -> None:
    bare = b'{"consumerGroup":"g","mqSet":[{"brokerName":"b","topic":"t"},{"brokerName":"b","topic":"%RETRY%g"}]}'
    wrapped = (
        b'{"consumerGroup":"T%g","mqSet":[{"brokerName":"b","topic":"T%t"},{"brokerName":"b","topic":"%RETRY%T%g"}]}'
    )
    assert TENANT.wrap_json(bare) == wrapped
    assert TENANT.unwrap_json(wrapped) == bare
    assert TENANT.unwrap_json(b'{"T%t@%RETRY%T%g":{0:1},"U%t@T%g":{}}') == b'{"t@%RETRY%g":{0:1},"U%t@g":{}}'


def test_messages_show_bare_topics() -> None:
    plain, retried = make_message(1), make_message(2, RETRY_TOPIC="T%orders")
    plain.topic, retried.topic = "T%orders", "%RETRY%T%group"
    TENANT.unwrap_messages([plain, retried])
    assert plain.topic == "orders"
    assert (retried.topic, retried.properties["RETRY_TOPIC"]) == ("%RETRY%group", "orders")
