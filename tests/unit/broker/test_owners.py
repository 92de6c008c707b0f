"""Transactions and client ids belong to accounts: others neither see nor decide nor take them over."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.commands import make_command
from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import PLAIN, Clock, MakeBroker, Peer
from triomq.broker.server import Broker
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData, LockBatchRequestBody, ProducerData
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import CommandFlag, RequestCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import Credentials

SHOP: Final = Credentials("shop-key", "secret-of-shop")
THIEF: Final = Credentials("thief-key", "secret-of-thief")
FILE: Final = """
globalWhiteRemoteAddresses: [198.51.100.1]
accounts:
- {accessKey: shop-key, secretKey: secret-of-shop, topicPerms: [secret=PUB|SUB], groupPerms: [G=SUB]}
- {accessKey: thief-key, secretKey: secret-of-thief, topicPerms: [mine=PUB, secret=SUB], groupPerms: [G=SUB]}
"""
QUEUE: Final = MessageQueue("secret", "broker-a", 0)
DENIED: Final = (1, "org.apache.rocketmq.acl.common.AclException: another account uses client id shop")
HALF: Final = {
    **PLAIN,
    "b": "secret",
    "f": "4",
    "g": "1795000000000",
    "i": "TRAN_MSG\x01true\x02UNIQ_KEY\x01C0A8\x02PGROUP\x01P",
}


@pytest.fixture
def broker(make_broker: MakeBroker, tmp_path: Path) -> Broker:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    broker = make_broker(acl=path)
    for topic in ("secret", "mine"):
        broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4))
    return broker


def request(
    account: Credentials, code: int, fields: Mapping[str, Any], body: bytes = b"", *, flag: int = 0
) -> RemotingCommand:
    return make_command(code, 7, flag, account.sign({name: str(value) for name, value in fields.items()}, body), body)


def heartbeat(peer: Peer, account: Credentials, client_id: str, *, consumes: bool = False) -> tuple[int, str]:
    """Join producer group P, or consumer group G."""
    consumers = [ConsumerData("G", subscription_data_set=[tag_subscription("secret", "*", 1)])]
    data = HeartbeatData(client_id, [], consumers) if consumes else HeartbeatData(client_id, [ProducerData("P")], [])
    return peer.answer(request(account, RequestCode.HEART_BEAT, {}, data.encode()))


def begin(peer: Peer, account: Credentials = SHOP, topic: str = "secret") -> dict[str, Any]:
    """Send a half message; return the fields of its commit."""
    peer.sent.clear()
    peer.serve(request(account, RequestCode.SEND_MESSAGE_V2, {**HALF, "b": topic}, b"card number"))
    (sent,) = peer.sent
    place = int(sent.ext_fields["msgId"][16:], 16)
    return {
        "producerGroup": "P", "commitLogOffset": place, "tranStateTableOffset": sent.ext_fields["queueOffset"],
        "commitOrRollback": 8, "msgId": "C0A8",
    }  # fmt: skip


# --- transactions -------------------------------------------------------------------------------------------


async def test_checks_go_to_members_that_may_send(peer: Peer, another_peer: Peer, clock: Clock) -> None:
    begin(peer)
    undecided, config = peer.broker.transactions.undecided, peer.broker.config
    assert heartbeat(another_peer, THIEF, "thief") == (0, "")
    for checks in range(4):
        peer.sent.clear()
        if checks == 1:
            heartbeat(peer, SHOP, "shop")
        clock.now_ms += config.transaction_check_interval_ms + 1
        await peer.broker.transactions._turn()
        assert [each.code for each in another_peer.sent] == []
        assert [each.code for each in peer.sent] == [RequestCode.CHECK_TRANSACTION_STATE] * (checks > 0)
    assert (len(undecided), undecided.halves.max_offset) == (1, 4)


def test_decisions_of_others_get_one_error(peer: Peer, another_peer: Peer) -> None:
    commit = begin(peer)
    undecided, statistics = peer.broker.transactions.undecided, peer.broker.statistics
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"commitOrRollback": 12},
        {"producerGroup": "Q"},
        {"tranStateTableOffset": 5},
        {"commitLogOffset": commit["commitLogOffset"] + 1},
        {"commitLogOffset": 0},
        {"commitLogOffset": 10**9},
    )
    answers = {
        another_peer.answer(request(THIEF, RequestCode.END_TRANSACTION, {**commit, **change})) for change in changes
    }
    assert answers == {(1, "No such transaction, or no permission for its topic")}
    assert statistics.denied_requests == len(changes)
    assert len(undecided) == 1
    assert peer.answer(request(SHOP, RequestCode.END_TRANSACTION, commit)) == (0, "")
    assert len(undecided) == 0


@pytest.mark.parametrize("bits", [8, 12])
def test_plain_decisions_need_the_right_too(peer: Peer, another_peer: Peer, bits: int) -> None:
    undecided, statistics = peer.broker.transactions.undecided, peer.broker.statistics
    begin(peer)  # makes the topics of transactions
    commit = {**begin(peer), "commitOrRollback": bits}
    another_peer.read(request(THIEF, RequestCode.END_TRANSACTION, commit, flag=CommandFlag.ONEWAY))
    assert (len(undecided), statistics.denied_requests) == (2, 1)
    peer.read(request(SHOP, RequestCode.END_TRANSACTION, commit, flag=CommandFlag.ONEWAY))
    assert (len(undecided), statistics.denied_requests) == (1, 1)


async def test_half_message_alike_of_another_topic_decides_nothing(
    peer: Peer, another_peer: Peer, clock: Clock
) -> None:
    """Clients choose the unique key and the time of birth, by which the half messages of a transaction are found."""
    mine = begin(another_peer, THIEF, topic="mine")
    end = request(THIEF, RequestCode.END_TRANSACTION, {**mine, "commitOrRollback": 12})
    assert another_peer.answer(end) == (0, "")
    commit = begin(peer)
    heartbeat(peer, SHOP, "shop")
    clock.now_ms += peer.broker.config.transaction_check_interval_ms + 1
    await peer.broker.transactions._turn()
    assert another_peer.answer(end) == (0, "")
    assert len(peer.broker.transactions.undecided) == 1
    assert peer.answer(request(SHOP, RequestCode.END_TRANSACTION, commit)) == (0, "")
    assert peer.broker.store.reader.max_offset_in_queue("secret", 1) == 1


# --- client ids ---------------------------------------------------------------------------------------------


def other(peer: Peer, ip: str = "192.0.2.20") -> Peer:
    return Peer(peer.broker, f"{ip}:50009")


@pytest.mark.parametrize("owner_consumes", [False, True])
@pytest.mark.parametrize("thief_consumes", [False, True])
@pytest.mark.parametrize("owner_ip", ["192.0.2.20", "198.51.100.1"], ids=["account", "address without account"])
def test_client_id_of_another_account_is_refused(
    peer: Peer, owner_consumes: bool, thief_consumes: bool, owner_ip: str
) -> None:
    groups, owner = peer.broker.groups, other(peer, owner_ip)
    assert heartbeat(owner, SHOP, "shop", consumes=owner_consumes) == (0, "")
    assert heartbeat(peer, THIEF, "shop", consumes=thief_consumes) == DENIED
    assert not groups.consumers.of(peer.as_connection)
    assert not groups.producers.of(peer.as_connection)
    assert groups.producers.connection_of("shop") is (None if owner_consumes else owner.as_connection)
    assert peer.broker.statistics.denied_requests == 1
    groups.forget(owner.as_connection, closed_by_peer=True)
    assert heartbeat(peer, THIEF, "shop", consumes=thief_consumes) == (0, "")


@pytest.mark.parametrize("ip", ["192.0.2.20", "198.51.100.1"], ids=["account", "address without account"])
def test_owner_reconnects_with_its_client_id(peer: Peer, ip: str) -> None:
    again = other(peer, ip)
    for each in (peer, again):
        assert heartbeat(each, SHOP, "shop") == (0, "")
        assert peer.broker.groups.producers.connection_of("shop") is each.as_connection


def locking(peer: Peer, account: Credentials, code: int, client_id: str) -> tuple[int, str]:
    return peer.answer(request(account, code, {}, LockBatchRequestBody(client_id, "G", [QUEUE]).encode()))


def unregister(peer: Peer, account: Credentials, client_id: str) -> tuple[int, str]:
    return peer.answer(request(account, RequestCode.UNREGISTER_CLIENT, {"clientID": client_id, "consumerGroup": "G"}))


def test_locks_of_another_account_stay(peer: Peer, another_peer: Peer) -> None:
    locks = peer.broker.groups.locks
    heartbeat(another_peer, THIEF, "thief", consumes=True)
    assert locking(peer, SHOP, RequestCode.LOCK_BATCH_MQ, "shop") == (0, "")  # before its first heartbeat
    assert locks.owner("G", QUEUE) == "shop"
    assert unregister(another_peer, THIEF, "shop") == (0, "")
    assert locks.owner("G", QUEUE) == "shop"
    heartbeat(peer, SHOP, "shop", consumes=True)
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert locking(another_peer, THIEF, code, "shop") == DENIED
    assert unregister(another_peer, THIEF, "shop") == DENIED
    assert locks.owner("G", QUEUE) == "shop"
    assert unregister(peer, SHOP, "shop") == (0, "")
    assert locks.owner("G", QUEUE) is None
