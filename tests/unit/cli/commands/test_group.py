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
    assert [(member["client_id"], member["queues"]) for member in described["members"]] == [
        ("a", 0),
        ("b", 1),
        ("b", 1),
    ]
    first, second = described["queues"]
    assert (first["max_offset"], first["committed_offset"], first["lag"], first["stalled"]) == (10, 7, 3, "locked")
    assert (first["owners"], first["lock_owner"], first["last_progress_ms"]) == (["b"], "a", 1234)
    assert (second["owners"], second["lock_owner"], second["stalled"]) == ([], None, None)


def test_problems_have_a_kind_and_a_text() -> None:
    problems = describe(GroupState("g", MEMBERS, QUEUES, ("b",), (DIFFERENCE,)), {"U"})["problems"]
    assert [(problem["kind"], problem["text"]) for problem in problems] == [
        ("duplicate-client-id", "2 connections have the client id b: 1.2.3.4:5, 1.2.3.4:7"),
        ("different-subscriptions", "topic T is subscribed to differently: a 'x'; b not at all"),
        ("missing-topic", "topic T is subscribed to, but does not exist"),
        ("stalled", "queue T@broker-a:0 is stalled: a has its lock"),
    ]
    assert (problems[3]["broker"], problems[3]["queue_id"], problems[3]["cause"]) == ("broker-a", 0, "locked")


def test_a_group_without_members_has_empty_lists() -> None:
    described = describe(GroupState("g", None, (), (), ()), ())
    assert described == {"group": "g", "lag": 0, "problems": [], "members": [], "subscriptions": [], "queues": []}
