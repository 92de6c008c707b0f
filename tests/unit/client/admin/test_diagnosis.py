"""Every fault that ``triomq doctor`` knows, provoked in the facts of a healthy cluster."""

from dataclasses import replace
from typing import Any

import pytest

from triomq.client.admin.broker_answers import BrokerAnswer, clock_of, uptime_of
from triomq.client.admin.diagnosis import Facts, FindingKind, judge
from triomq.client.admin.group_state import GroupState, QueueState
from triomq.client.admin.groups import GroupLag
from triomq.client.admin.replicas import Replica, SlaveCopy
from triomq.protocol.bodies.client import SubscriptionData
from triomq.protocol.bodies.group_health import SlowHandler, Stall, StallCause, SubscriptionDifference
from triomq.protocol.bodies.route import ClusterInfo, MissingBroker
from triomq.protocol.bodies.statistics import Connection, ConsumerConnection
from triomq.protocol.message_queue import MessageQueue

NOW_MS = 1_795_000_000_000
BROKER = BrokerAnswer(
    "broker-a",
    0,
    "a:1",
    "a:1",
    None,
    3.0,
    {"commitLogDiskRatio": "0.84", "triomqMayMisjudgePeers": "false"},
    clock_ahead_ms=-2400,
    clock_error_ms=500,
)
MEMBERS = ConsumerConnection(
    connection_set=[Connection("c1", "1.1.1.1:1"), Connection("c2", "1.1.1.1:2")],
    subscription_table={topic: SubscriptionData(topic=topic) for topic in ("orders", "%RETRY%g")},
)


def state(lag: int = 0, cause: StallCause | None = None, progress_ms: int | None = None, **changes: Any) -> GroupState:
    queues = []
    for queue_id in range(2):
        position = GroupLag(MessageQueue("orders", "broker-a", queue_id), 10 + lag, 10, lag, 0)
        stall = None if cause is None else Stall(cause, "because")
        queues.append(QueueState(position, (), None, progress_ms, stall))
    return GroupState("g", MEMBERS, tuple(queues), (), ())._replace(**changes)


MASTER = Replica("broker-a", 0, "a:1", "sync-master", copies=(SlaveCopy("a:3", 0, 0, 0, 0),))
SLAVE = Replica("broker-a", 1, "a:2", "slave", lag_bytes=256 * 1024**2, master="a:9", is_in_touch=True)
HEALTHY = Facts(
    now_ms=NOW_MS,
    name_servers={},
    clusters=(),
    brokers=(BROKER, BROKER._replace(broker_id=1, address="a:2", reached_at="a:2")),
    groups=(state(lag=7),),  # messages wait, but not for long
    not_examined={},
    topics={"orders", "orders2", "payments"},
    replicas=(MASTER, SLAVE, MASTER._replace(role="async-master", copies=()), MASTER._replace(copies=None)),
)


def broker(**changes: Any) -> Facts:
    return replace(HEALTHY, brokers=(BROKER._replace(**changes),))


def slave(**changes: Any) -> Facts:
    return replace(HEALTHY, replicas=(MASTER, SLAVE._replace(**changes)))


def group(*arguments: Any, **changes: Any) -> Facts:
    return replace(HEALTHY, groups=(state(*arguments, **changes),))


def test_a_healthy_cluster_has_no_fault() -> None:
    assert judge(HEALTHY) == []


JUMPED = {"triomqClockJumpMs": "-86400000", "triomqClockJumpAgeMs": "86399999"}
DIFFERENT = SubscriptionDifference("orders", (("x", ("c1",)), ("*", ("c2",))))
NO_OWNER = "lag-without-owner"


@pytest.mark.parametrize(
    ("facts", "kind", "text", "advice"),
    [
        (
            replace(HEALTHY, name_servers={"n:1": "no"}),
            "name-server-unreachable",
            "n:1 does not answer: no",
            "start it",
        ),
        (
            broker(reached_at=None, error="late; x"),
            "broker-unreachable",
            "at a:1, the address it advertises: late",
            "start",
        ),
        (broker(reached_at="n:1", broker_id=2), "address-unreachable", "broker-a (id 2) answers at n:1", "--advertise"),
        (broker(clock_ahead_ms=62_000), "clocks-apart", "broker-a is 62 s ahead of this machine's", "NTP"),
        (broker(clock_ahead_ms=-2501), "clocks-apart", "is 3 s behind this machine's", "NTP"),
        (broker(runtime=JUMPED), "clock-jumped", "the clock of broker broker-a was set back by 86400 s", "NTP"),
        (
            broker(runtime={"triomqMayMisjudgePeers": "true"}),
            "clients-look-local",
            "in a container",
            "--no-local-peers",
        ),
        (broker(runtime={"triomqReplayableAt": "[::]:1"}), "requests-replayable", "at [::]:1", "--tls enforcing"),
        (broker(runtime={"commitLogDiskRatio": "0.85"}), "disk-full", "broker-a is 85% full", "make room"),
        (replace(HEALTHY, replicas=(MASTER._replace(copies=()),)), "sync-master-alone", "no slave is", "--role"),
        (replace(HEALTHY, replicas=(SLAVE,)), "slave-without-master", "broker-a (id 1) is a", "same name servers"),
        (slave(is_in_touch=False), "slave-out-of-touch", "its master at a:9|", "--ha-master"),
        (slave(is_in_touch=False, master=None), "slave-out-of-touch", "an unknown address", "start the master"),
        (slave(lag_bytes=257 * 1024**2), "slave-behind", "misses 257 MiB", "too slow"),
        (
            slave(tails_aside=2),
            "tail-set-aside",
            "(id 1) that its master did not have are set aside: 2",
            "triomq store dump",
        ),
        (group(duplicate_client_ids=("c1",)), "duplicate-client-id", "id c1: 1.1.1.1:1|", "instance name of its own"),
        (group(subscription_differences=(DIFFERENT,)), "different-subscriptions", "c1 'x'; c2 '*'", "the same topics"),
        (replace(HEALTHY, topics={"orders2", "x"}), "missing-topic", "orders, which does", "similar topics: orders2"),
        (group(3, StallCause.NO_MEMBER, members=None), NO_OWNER, "6 messages of topic orders wait in", "delete g"),
        (group(3, StallCause.NO_OWNER, NOW_MS), NO_OWNER, "wait in broker-a:0,1: because", "restart the members"),
        (group(3, StallCause.NO_MEMBER, NOW_MS - 30_001, members=None), NO_OWNER, "wait in", "start a"),
        (group(3, StallCause.HANDLER_BLOCKED), "stalled", "wait in broker-a:0,1: because", "where the handler waits"),
        (
            group(slow_handlers=(SlowHandler("orders", 9, 5.0, 0.1),)),
            "slow-handler",
            "group g: 9 messages",
            "more members",
        ),
        (replace(HEALTHY, not_examined={"group g": "no"}), "not-examined", "g could not be examined: no", "again"),
    ],
)
def test_a_fault_is_named_with_what_to_do(facts: Facts, kind: str, text: str, advice: str) -> None:
    (finding,) = judge(facts)
    assert (finding.kind, text in f"{finding.text}|", advice in finding.advice) == (kind, True, True), finding


def test_every_stall_has_advice() -> None:
    for cause in StallCause:
        (finding,) = judge(group(1, cause, members=None))
        assert finding.kind in (FindingKind.NO_OWNER, FindingKind.STALLED)
        assert "{" not in finding.advice


def test_lag_of_an_active_consumer_is_no_fault() -> None:
    assert judge(group(3, StallCause.NO_MEMBER, NOW_MS - 29_000, members=None)) == []


def test_differing_subscriptions_are_searched_for_missing_topics() -> None:
    """The broker's table has the subscriptions of the last member only."""
    found = judge(group(subscription_differences=(SubscriptionDifference("gone", (("*", ("c1",)), (None, ("c2",)))),)))
    assert [(finding.kind.value, finding.topic) for finding in found] == [
        ("different-subscriptions", "gone"),
        ("missing-topic", "gone"),
    ]


@pytest.mark.parametrize(
    ("runtime", "uptime_s", "clock_ms"),
    [
        ({"bootTimestamp": "1000", "runtime": "[ 0 days, 0 hours, 1 minutes, 2 seconds ]"}, 62, 63_500),
        ({"bootTimestamp": "0", "runtime": "[ 1,000 days, 0 hours, 0 minutes, 0 seconds ]"}, 86_400_000, None),
        ({"bootTimestamp": "x", "runtime": "[ 1 days, 2 hours ]"}, None, None),
        ({}, None, None),
    ],
)
def test_broker_clock_follows_from_start_and_uptime(
    runtime: dict[str, str], uptime_s: int | None, clock_ms: int | None
) -> None:
    assert uptime_of(runtime) == uptime_s
    if clock_ms is not None or uptime_s is None:
        assert clock_of(runtime) == clock_ms


def test_slave_of_lost_master_is_one_fault() -> None:
    lost = ClusterInfo(missing_brokers=[MissingBroker("broker-a", 0, "a:1", 5, "killed")])
    (finding,) = judge(replace(HEALTHY, replicas=(SLAVE,), clusters=(lost,)))
    assert finding.kind is FindingKind.MISSING_BROKER
