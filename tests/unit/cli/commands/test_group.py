from triomq.cli.commands.group import describe
from triomq.client import GroupLag, GroupState, MessageQueue, QueueState
from triomq.protocol.bodies.client import SubscriptionData
from triomq.protocol.bodies.group_health import Stall, StallCause, SubscriptionDifference
from triomq.protocol.bodies.statistics import Connection, ConsumerConnection
from triomq.protocol.codes import LanguageCode

FIRST, SECOND = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
QUEUES = (
    QueueState(GroupLag(FIRST, 10, 7, 3, 0), ("b",), "a", 1234, Stall(StallCause.LOCKED, "a has its lock")),
    QueueState(GroupLag(SECOND, 5, 5, 0, 0), (), None, None, None),
)
MEMBERS = ConsumerConnection(
    connection_set=[
        Connection(client_id="b", client_addr="1.2.3.4:5", language=LanguageCode.JAVA, version=407),
        Connection(client_id="a", client_addr="1.2.3.4:6", language=LanguageCode.PYTHON, version=407),
        Connection(client_id="b", client_addr="1.2.3.4:7", language=LanguageCode.JAVA, version=407),
    ],
    subscription_table={"T": SubscriptionData(topic="T", sub_string="x || y")},
)
DIFFERENCE = SubscriptionDifference("T", (("x", ("a",)), (None, ("b",))))


def test_a_group_is_described_with_its_lag_summed() -> None:
    described = describe(GroupState("g", MEMBERS, QUEUES, (), ()), {"T"})
    assert described["lag"] == 3
    assert [member["client_id"] for member in described["members"]] == ["a", "b", "b"]
    assert described["members"][1] == {
        "client_id": "b",
        "address": "1.2.3.4:5",
        "language": "JAVA",
        "version": 407,
        "queues": 1,
    }
    assert described["subscriptions"] == [{"topic": "T", "expression": "x || y"}]
    assert described["queues"] == [
        {
            "topic": "T",
            "broker": "broker-a",
            "queue_id": 0,
            "max_offset": 10,
            "committed_offset": 7,
            "lag": 3,
            "owners": ["b"],
            "lock_owner": "a",
            "last_progress_ms": 1234,
            "stalled": "locked",
        },
        {
            "topic": "T",
            "broker": "broker-a",
            "queue_id": 1,
            "max_offset": 5,
            "committed_offset": 5,
            "lag": 0,
            "owners": [],
            "lock_owner": None,
            "last_progress_ms": None,
            "stalled": None,
        },
    ]


def test_problems_have_a_kind_and_a_text() -> None:
    assert describe(GroupState("g", MEMBERS, QUEUES, ("b",), (DIFFERENCE,)), {"U"})["problems"] == [
        {
            "kind": "duplicate-client-id",
            "client_id": "b",
            "text": "2 connections have the client id b: 1.2.3.4:5, 1.2.3.4:7",
        },
        {
            "kind": "different-subscriptions",
            "topic": "T",
            "text": "topic T is subscribed to differently: a 'x'; b not at all",
        },
        {"kind": "missing-topic", "topic": "T", "text": "topic T is subscribed to, but does not exist"},
        {
            "kind": "stalled",
            "topic": "T",
            "broker": "broker-a",
            "queue_id": 0,
            "cause": "locked",
            "text": "queue T@broker-a:0 is stalled: a has its lock",
        },
    ]


def test_a_group_without_members_has_empty_lists() -> None:
    described = describe(GroupState("g", None, (), (), ()), ())
    assert described == {"group": "g", "lag": 0, "problems": [], "members": [], "subscriptions": [], "queues": []}
