"""Members of groups, their subscriptions, and notices of changes."""

import logging
from typing import Any, Final, cast

import pytest

from tests.subscriptions import tag_subscription
from triomq.broker.groups.client_ids import ClientIds
from triomq.broker.groups.members import ConsumerGroup, ConsumerGroups, ProducerGroups
from triomq.broker.groups.subscriptions import Filters
from triomq.broker.network.connection import Connection
from triomq.protocol.bodies.client import ConsumerData
from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.filter_types import TagFilter

Told = list[tuple[str, str]]
GROUP: Final = "G"


class Peer:
    """The part of a connection that the tables use."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.closed = False
        self.peer_ip = peer.partition(":")[0]


def peer(name: str) -> Connection:
    return cast(Connection, Peer(name))


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> Told:
    return []


class IdleWorker:
    clock = staticmethod(lambda: 0.0)

    def charge(self, work_s: float) -> None:
        assert not work_s


def make_groups(clock: Clock, told: Told, *, notifies: bool = True) -> ConsumerGroups:
    def notify(group: ConsumerGroup) -> None:
        told.extend((connection.peer, group.name) for connection in group.members)

    return ConsumerGroups(
        clock_ms=clock, notify=notify, notifies=lambda _: notifies, filters=Filters(IdleWorker(), 100)
    )


@pytest.fixture
def groups(clock: Clock, told: Told) -> ConsumerGroups:
    return make_groups(clock, told)


def data(*topics: str, group: str = GROUP, version: int = 1, expression: str = "*", **members: Any) -> ConsumerData:
    subscriptions = [tag_subscription(topic, expression, version) for topic in topics]
    return ConsumerData(group_name=group, subscription_data_set=subscriptions, **members)


def group_in(groups: ConsumerGroups) -> ConsumerGroup:
    group = groups.get(GROUP)
    assert group is not None
    return group


def test_unchanged_heartbeat_sends_no_notice(groups: ConsumerGroups, told: Told) -> None:
    member = peer("a")
    groups.heartbeat(member, "client-a", data("T"))
    told.clear()
    groups.heartbeat(member, "client-a", data("T"))
    groups.heartbeat(member, "client-a", data("T", version=2))
    assert told == []


def test_change_of_topics_sends_a_notice(groups: ConsumerGroups, told: Told) -> None:
    member = peer("a")
    groups.heartbeat(member, "client-a", data("T"))
    for topics in (("T", "U"), ("U",)):
        told.clear()
        groups.heartbeat(member, "client-a", data(*topics))
        assert told == [("a", GROUP)]
    group = group_in(groups)
    assert list(group.subscriptions) == ["U"]


def test_client_ids_are_listed_once(groups: ConsumerGroups) -> None:
    for name, client_id in (("a", "one"), ("b", "two"), ("c", "one")):
        groups.heartbeat(peer(name), client_id, data("T"))
    assert group_in(groups).client_ids() == ["one", "two"]


def test_reconnected_member_is_not_reported_as_duplicate(
    groups: ConsumerGroups, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = peer("192.0.2.1:1"), peer("192.0.2.1:2")
    groups.heartbeat(old, "client", data("T"))
    clock.now_ms += 30_000
    for _ in range(4):
        groups.heartbeat(new, "client", data("T"))
        groups.check()
        clock.now_ms += 30_000
    groups.forget(old)
    groups.check()
    assert not caplog.messages


def test_closed_connection_leaves_all_its_groups(groups: ConsumerGroups, told: Told) -> None:
    """C.2 scenario 33."""
    gone, stays = peer("a"), peer("b")
    for name in ("G1", "G2", "G3"):
        groups.heartbeat(gone, "client-a", data("T", group=name))
    groups.heartbeat(stays, "client-b", data("T", group="G2"))
    told.clear()
    groups.forget(gone)
    groups.forget(gone)
    assert told == [("b", "G2")]
    assert [group.name for group in groups] == ["G2"]


def test_only_members_without_timely_heartbeat_expire(groups: ConsumerGroups, clock: Clock) -> None:
    silent, lively = peer("a"), peer("b")
    for member in (silent, lively):
        groups.heartbeat(member, member.peer, data("T"))
    clock.now_ms += 120_000
    assert groups.expired(120) == set()
    groups.heartbeat(lively, "b", data("T"))
    clock.now_ms += 1
    assert groups.expired(120) == {silent}


def test_only_newer_subscription_replaces_existing_one(groups: ConsumerGroups) -> None:
    member = peer("a")
    for version, expression in ((5, "A"), (5, "B"), (4, "B")):
        groups.heartbeat(member, "a", data("T", version=version, expression=expression))
    group = group_in(groups)
    assert group.subscriptions["T"].data.sub_string == "A"
    groups.heartbeat(member, "a", data("T", version=6, expression="C"))
    assert group.subscriptions["T"].data.sub_string == "C"
    assert group.subscriptions["T"].message_filter == TagFilter.parse("C")


def test_members_share_equal_expressions_without_tags(groups: ConsumerGroups) -> None:
    members = [peer("a"), peer("b")]
    for number, member in enumerate(members):
        groups.heartbeat(member, member.peer, data("".join(("T", "opic")), version=number, expression="A || B" * 9))
    (one,), (other,) = (group_in(groups).members[member].subscriptions for member in members)
    assert one.topic is other.topic
    assert one.sub_string is other.sub_string
    assert not one.tags_set
    assert not one.code_set
    assert groups.kept_bytes(members[0]) == groups.kept_bytes(members[1]) > 0


@pytest.mark.parametrize("how", ["leaves", "closes"])
def test_expression_of_a_former_member_is_not_kept(groups: ConsumerGroups, how: str) -> None:
    gone, stays = peer("a"), peer("b")
    groups.heartbeat(stays, "b", data("T", version=1, expression="B"))
    groups.heartbeat(gone, "a", data("T", "U", version=5, expression="A"))
    if how == "leaves":
        groups.leave(gone, GROUP)
    else:
        groups.forget(gone)
    kept = {
        topic: (each.data.sub_string, each.data.sub_version) for topic, each in group_in(groups).subscriptions.items()
    }
    assert kept == {"T": ("B", 5)}  # the version that pulls may name already


def test_different_subscriptions_are_reported_once(groups: ConsumerGroups, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="triomq.broker.groups.members")
    first, second = peer("a"), peer("b")
    groups.heartbeat(first, "client-a", data("T", version=1, expression="A"))
    groups.heartbeat(second, "client-b", data("T", version=2, expression="B"))
    groups.check()
    group = group_in(groups)
    assert [difference.topic for difference in group.differences] == ["T"]
    for _ in range(3):  # heartbeats that change nothing
        groups.heartbeat(first, "client-a", data("T", version=1, expression="A"))
        groups.heartbeat(second, "client-b", data("T", version=2, expression="B"))
        groups.check()
    (line,) = [line for line in caplog.messages if "subscribe" in line]
    assert line == (
        "members of a group subscribe differently group=G: "
        "topic T is subscribed to differently: client-a 'A'; client-b 'B'"
    )
    groups.heartbeat(second, "client-b", data("T", version=3, expression="A"))
    groups.check()
    assert group.differences == ()
    assert "have equal subscriptions again group=G topic=T" in caplog.messages[-1]


def test_duplicate_client_id_is_reported_until_one_leaves(
    groups: ConsumerGroups, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="triomq.broker.groups.members")
    first, second = peer("192.0.2.1:1"), peer("192.0.2.1:2")
    for member in (first, second):
        groups.heartbeat(member, "same", data("T"))
        clock.now_ms += 1
    groups.check()
    assert not caplog.messages  # the first one may be an old connection of the client
    caplog.set_level(logging.INFO, logger="triomq.broker.groups.members")
    for member in (first, second, first):
        groups.heartbeat(member, "same", data("T"))
        groups.check()
    group = group_in(groups)
    assert list(group.duplicate_ids) == ["same"]
    (line,) = [line for line in caplog.messages if "one client id" in line]
    assert "client_id=same peers=192.0.2.1:1, 192.0.2.1:2" in line
    groups.leave(first, GROUP)
    groups.check()
    assert not group.duplicate_ids
    assert "client id is unique again group=G client_id=same" in caplog.messages


def test_differing_members_with_same_client_id_show_addresses(
    groups: ConsumerGroups,
) -> None:
    groups.heartbeat(peer("a"), "same", data("T", expression="A"))
    groups.heartbeat(peer("b"), "same", data("U", expression="A"))
    groups.check()
    group = group_in(groups)
    assert list(map(str, group.differences)) == [
        "topic T is subscribed to differently: same at a 'A'; same at b not at all",
        "topic U is subscribed to differently: same at a not at all; same at b 'A'",
    ]


def test_groups_with_long_expressions_are_compared_in_turn(groups: ConsumerGroups) -> None:
    for name in ("G1", "G2", "G3"):
        for member, letter in (("a", "x"), ("b", "y")):
            subscriptions = [tag_subscription("T", letter * 5000, 1)]
            groups.heartbeat(peer(member), member, ConsumerData(name, subscription_data_set=subscriptions))
    for checked in (1, 2, 3, 3):
        groups.check()
        assert sum(bool(group.differences) for group in groups) == checked


def test_members_are_compared_once_for_many_changes(groups: ConsumerGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def differences(members: list[object]) -> tuple[()]:
        compared.append(len(members))
        return ()

    monkeypatch.setattr("triomq.broker.groups.members.subscription_differences", differences)
    members = [peer(str(number)) for number in range(20)]
    for member in members:
        groups.heartbeat(member, member.peer, data("T"))
    groups.check()
    groups.check()
    assert compared == [20]
    for member in members[:15]:
        groups.forget(member)
    groups.check()
    assert compared == [20, 5]
    for member in members:
        groups.forget(member)
    groups.check()
    assert compared == [20, 5]


@pytest.mark.parametrize(("expression", "kind"), [("a >", "SQL92"), ("a", "XYZ")])
def test_error_of_an_unreadable_filter_is_kept(groups: ConsumerGroups, expression: str, kind: str) -> None:
    wanted = data("T", expression=expression)
    wanted.subscription_data_set[0].expression_type = kind
    groups.heartbeat(peer("a"), "a", wanted)
    group = group_in(groups)
    assert isinstance(group.subscriptions["T"].message_filter, SubscriptionParseError)


def test_leaving_producer_is_sought_in_its_groups(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client may name a hundred thousand."""
    groups = ProducerGroups(ClientIds(), clock_ms=clock)
    first, second = peer("a"), peer("b")
    for number in range(10):
        groups.heartbeat(first, "client-a", f"P{number}")
    groups.heartbeat(second, "client-b", "P1")
    left: list[str] = []
    leave = groups.leave

    def noted(connection: Connection, group: str) -> None:
        left.append(group)
        leave(connection, group)

    monkeypatch.setattr(groups, "leave", noted)
    groups.forget(second)
    assert left == ["P1"]
    assert len(groups.groups) == 10
    groups.forget(first)
    assert groups.groups == {}
