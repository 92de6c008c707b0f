"""What a broker refuses, and leaves alone, because it is a slave."""

from typing import Any, Final

import pytest

from tests.commands import make_command
from tests.unit.broker.recording import PLAIN, MakeBroker, Peer
from triomq.broker import Address
from triomq.broker.server import Broker
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData, SubscriptionData
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.storage.delays import DelayLevels

SLAVE: Final[dict[str, Any]] = {"role": "slave", "broker_id": 1, "ha_master": Address("192.0.2.8", 10912)}
STORES: Final = (10, 310, 320, 324, 325, 36, 370)
CHANGES: Final = (17, 18, 215, 200, 207, 225, 314, 323, 5002, 5003)
PULL: Final = {
    "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
    "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subVersion": 0, "subscription": "*",
}  # fmt: skip


@pytest.fixture
def slave(make_broker: MakeBroker) -> Broker:
    """A slave of the store that a master has filled."""
    master = make_broker({"delay_levels": DelayLevels("1s")})
    master.topics.put(TopicConfig("T", 4, 4))
    peer = Peer(master)
    peer.read(make_command(310, 1, 0, dict(PLAIN)), make_command(310, 2, 0, {**PLAIN, "e": "0"}))
    peer.get(310, {**PLAIN, "i": "DELAY\x011"})
    assert [answer.code for answer in peer.sent] == [0, 0]
    master.groups.offsets.commit("G", "T", 0, 1)
    master.save_tables()
    return make_broker(**SLAVE)


def test_requests_for_the_master_are_refused(slave: Broker, make_broker: MakeBroker) -> None:
    expected = {**dict.fromkeys(STORES, 14), **dict.fromkeys(CHANGES, 1), 37: 11}
    answers = {code: Peer(slave).answer(make_command(code, 7, 0, {})) for code in CATALOGUE}
    assert {code: answer for code, (answer, remark) in answers.items() if "is a slave" in remark} == expected
    assert answers[310][1] == "this broker is a slave: SEND_MESSAGE_V2 is for its master"
    master = make_broker()
    assert not [code for code in expected if "slave" in Peer(master).answer(make_command(code, 7, 0, {}))[1]]


def test_plain_sends_are_refused_and_not_stored(slave: Broker) -> None:
    end, peer = slave.store.commit_log.max_offset, Peer(slave)
    peer.read(make_command(310, 1, 0, dict(PLAIN)), make_command(310, 2, 1, dict(PLAIN)))
    assert [answer.code for answer in peer.sent] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert slave.store.commit_log.max_offset == end


def test_readers_make_neither_groups_nor_topics(slave: Broker) -> None:
    before, peer = set(slave.topics.configs), Peer(slave)
    consumer = ConsumerData("New", subscription_data_set=[SubscriptionData("T")])
    assert peer.get(RequestCode.HEART_BEAT, body=HeartbeatData("c", [], [consumer]).encode()).code == 0
    for queue_id in (0, 1):
        found = peer.get(RequestCode.PULL_MESSAGE, {**PULL, "consumerGroup": "New", "queueId": queue_id})
        assert (found.code, found.remark) == (0, "FOUND")
    assert slave.groups.settings.get("New") is None
    assert set(slave.topics.configs) == before


def test_member_of_unknown_topic_keeps_its_place(slave: Broker) -> None:
    peer, pull = Peer(slave), {**PULL, "queueOffset": 1}
    consumer = ConsumerData("G", subscription_data_set=[SubscriptionData("T")])
    peer.get(RequestCode.HEART_BEAT, body=HeartbeatData("c", [], [consumer]).encode())
    topic = slave.topics.configs["T"]
    slave.topics.delete("T")  # the master's table has yet to come
    assert peer.get(RequestCode.PULL_MESSAGE, pull).code == ResponseCode.TOPIC_NOT_EXIST
    slave.topics.put(topic)
    found = peer.get(RequestCode.PULL_MESSAGE, pull)
    assert found.ext_fields["nextBeginOffset"] == "1"


def test_tables_stay_as_the_master_saved_them(slave: Broker, make_broker: MakeBroker) -> None:
    slave.groups.offsets.commit("G", "T", 1, 1000)  # the slave's log is behind
    slave.topics.delete("T")
    slave.save_tables()
    again = make_broker(**SLAVE)
    assert (again.groups.offsets.query("G", "T", 0), again.groups.offsets.query("G", "T", 1)) == (1, 1000)
    assert again.topics.get("T") is None
    promoted = make_broker()
    assert promoted.groups.offsets.query("G", "T", 1) == 1
    assert promoted.topics.get("T") is not None
