import pytest

from triomq.client.cluster.route import (
    BrokerTable,
    default_route,
    dialled_address,
    explain_no_route,
    publish_queues,
    read_route,
    same_route,
    subscribe_queues,
)
from triomq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue


def route(*queue_datas: QueueData, order: str | None = None, **brokers: dict[int, str]) -> TopicRouteData:
    return TopicRouteData(
        order_topic_conf=order,
        queue_datas=list(queue_datas),
        broker_datas=[BrokerData("C", name, addresses) for name, addresses in brokers.items()],
    )


A = {0: "a:1"}


@pytest.mark.parametrize(
    "made",
    [
        route(QueueData("a", 65_536, 65_536, 6), QueueData("b", 1, 0, 6)),
        route(QueueData("a", 0, 2**31 - 1, 6)),
        route(order="a:65536;b:1"),
        route(*[QueueData("a", 1, 1, 6)] * 20_000),
        route(a=dict.fromkeys(range(50000), "10.0.0.1:10911")),
    ],
)
def test_a_route_above_the_limits_is_refused(made: TopicRouteData) -> None:
    with pytest.raises(ProtocolError, match="route"):
        read_route(made.encode())


def test_largest_topic_and_thousands_of_brokers_are_read() -> None:
    largest = route(QueueData("a", 65_536, 1, 6), order="a:x;a:" + "9" * 5000, a={0: "a:1"})
    assert read_route(largest.encode()) == largest
    assert publish_queues("T", largest) == ()
    names = [f"broker-{number}" for number in range(5000)]
    wide = route(*[QueueData(name, 8, 8, 6) for name in names])
    wide.broker_datas = [BrokerData("C", name, {0: "10.0.0.1:10911"}) for name in names]
    assert read_route(wide.encode()) == wide


@pytest.mark.parametrize(
    ("made", "published", "subscribed"),
    [
        (route(QueueData("b", 1, 2, 6), QueueData("a", 2, 1, 6), a=A, b={0: "b:1"}), "a0 b0 b1", "a0 a1 b0"),
        (route(QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 4), a={1: "a:1"}, b={0: "b:1"}), "", "a0 b0"),
        (route(QueueData("a", 1, 1, 2), a=A), "a0", ""),
        (route(QueueData("a", 1, 1, 6), a=A, order="b:1;a:2;rubbish;c:x;:4"), "b0 a0 a1", "a0"),
    ],
    ids=["sorted", "no master", "write only", "order topic"],
)
def test_queues_follow_from_route(made: TopicRouteData, published: str, subscribed: str) -> None:
    for queues, expected in ((publish_queues("T", made), published), (subscribe_queues("T", made), subscribed)):
        assert queues == tuple(MessageQueue("T", place[0], int(place[1])) for place in expected.split())


def test_topic_made_by_sending_gets_four_queues() -> None:
    made = default_route(route(QueueData("a", 8, 8, 7), QueueData("b", 2, 8, 7), a={0: "a:1"}, b={0: "b:1"}))
    assert [queue.broker_name for queue in publish_queues("T", made)] == ["a"] * 4 + ["b"] * 2


def test_unrouted_brokers_are_dropped_and_new_ones_detected() -> None:
    table = BrokerTable()
    assert table.rebuild([route(a={0: "a:1", 1: "a:2"}), route(b={0: "b:1"})])
    assert not table.rebuild([route(a={0: "a:1"})])
    assert table.addresses() == {"a:1": ("a", 0)}
    assert table.rebuild([route(a={0: "a:9"})])
    table.rebuild([route(a={0: "a:1", 1: "a:2"}), route(a={1: "a:2"})])  # the first topic is not asked for any more
    assert (table.find("a"), table.find("a", only_this=True)) == ("a:2", None)


def test_missing_slave_is_substituted_unless_required() -> None:
    table = BrokerTable()
    table.rebuild([route(a={0: "a:0", 2: "a:2", 3: "a:3"}, s={1: "s:1"})])
    assert [table.find("a", broker_id) for broker_id in (0, 1, 2, 7)] == ["a:0", "a:2", "a:2", "a:0"]
    assert (table.find("s"), table.find("unknown")) == ("s:1", None)
    assert table.find("a", 7, only_this=True) is table.find("s", 0, only_this=True) is None


@pytest.mark.parametrize(
    ("advertised", "name_server", "dialled"),
    [
        ("172.17.0.3:10911", "example.org:9876", "example.org:10911"),
        ("172.17.0.3:10911", "[::1]:9876", "[::1]:10911"),
        ("[fe80::1]:10911", "127.0.0.1:9876", "127.0.0.1:10911"),
        ("null", "127.0.0.1:9876", "null"),
    ],
)
def test_as_dialled_keeps_port_and_changes_host(advertised: str, name_server: str, dialled: str) -> None:
    assert dialled_address(advertised, name_server) == dialled


def test_routes_in_another_order_are_equal() -> None:
    one = route(QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 6), a={0: "a:1", 1: "a:2"}, b={0: "b:1"})
    other = route(QueueData("b", 1, 1, 6), QueueData("a", 1, 1, 6), b={0: "b:1"}, a={1: "a:2", 0: "a:1"})
    assert same_route(one, other)
    assert not same_route(None, one)
    other.broker_datas[0].broker_addrs[0] = "b:2"
    assert not same_route(one, other)


def test_explanation_names_known_facts_only() -> None:
    assert explain_no_route("T", ["n:1", "n:2"], None, None) == (
        "topic 'T' does not exist: it has no route (name server asked: n:1, n:2); create it with: triomq topic create T"
    )
    assert "no topic has a similar name" in explain_no_route("T", ["n:1"], ["Completely", "%RETRY%T"], None)
