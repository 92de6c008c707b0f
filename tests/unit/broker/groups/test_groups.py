"""Offsets that members have from a deleted topic, and the locks of their queues."""

from collections.abc import Callable

import pytest

from tests.subscriptions import tag_subscription
from tests.unit.broker.processors.test_client import heartbeat, notices
from tests.unit.broker.recording import Clock, Peer
from triomq.broker.groups.queue_locks import LOST_LIFE_MS
from triomq.broker.server import Broker
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData, LockBatchRequestBody, LockBatchResponseBody
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
from triomq.storage.reading.cold_read import finish

QUEUE = {"topic": "T", "queueId": 0, "consumerGroup": "G"}


def join(peer: Peer) -> None:
    data = ConsumerData("G", subscription_data_set=[tag_subscription("T", "*", 1)])
    peer.get(RequestCode.HEART_BEAT, body=HeartbeatData("c", [], [data]).encode())


def delete(peer: Peer) -> None:
    assert peer.get(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == ResponseCode.SUCCESS


def fill(peer: Peer) -> None:
    for _ in range(30):
        peer.put("T")


def pull(peer: Peer, queue_offset: int) -> tuple[int, str | None]:
    answer = peer.pull("T", queue_offset)
    assert answer is not None
    return answer.code, answer.ext_fields.get("nextBeginOffset")


def commit(peer: Peer, queue_offset: int) -> int:
    return peer.get(RequestCode.UPDATE_CONSUMER_OFFSET, {**QUEUE, "commitOffset": queue_offset}).code


MOVED = (ResponseCode.PULL_OFFSET_MOVED, "0")
FOUND = (ResponseCode.SUCCESS, "30")


@pytest.mark.parametrize(
    "begin",
    [lambda peer: peer.get(RequestCode.QUERY_CONSUMER_OFFSET, QUEUE), lambda peer: pull(peer, 0)],
    ids=["asks for its offset", "pulls the first message"],
)
def test_members_offsets_are_refused_until_they_begin(peer: Peer, begin: Callable[[Peer], object]) -> None:
    join(peer)
    fill(peer)
    for _ in range(2):  # deleted again, the same holds
        delete(peer)
        fill(peer)
        for _ in range(2):
            assert pull(peer, 20) == MOVED
            assert commit(peer, 20) == ResponseCode.TOPIC_NOT_EXIST
        assert finish(peer.broker.groups.offsets.of_topic("T")) == {}
        begin(peer)
        assert pull(peer, 20) == FOUND
        assert commit(peer, 20) == ResponseCode.SUCCESS


def test_pull_of_missing_topic_distrusts_its_offsets(peer: Peer, another_peer: Peer) -> None:
    fill(peer)
    delete(peer)
    join(another_peer)
    assert pull(another_peer, 20)[0] == ResponseCode.TOPIC_NOT_EXIST
    fill(peer)
    assert pull(another_peer, 20) == MOVED
    peer.broker.groups.forget(another_peer.as_connection, True)
    assert pull(another_peer, 20) == FOUND


def test_offsets_of_non_members_are_never_refused(peer: Peer) -> None:
    fill(peer)
    delete(peer)
    assert pull(peer, 20)[0] == ResponseCode.TOPIC_NOT_EXIST
    fill(peer)
    assert pull(peer, 20) == FOUND
    assert commit(peer, 20) == ResponseCode.SUCCESS


Q0, Q1 = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(2))


@pytest.fixture(autouse=True)
def _topic_and_groups(broker: Broker) -> None:
    broker.topics.put(TopicConfig("T"))
    for group in "GH":
        broker.groups.settings.put(SubscriptionGroupConfig(group))


def lock(
    peer: Peer, client_id: str, *queues: MessageQueue, group: str = "G", ends_with_connection: bool | None = None
) -> list[MessageQueue]:
    body = LockBatchRequestBody(client_id, group, list(queues), ends_with_connection)
    response = peer.get(RequestCode.LOCK_BATCH_MQ, body=body.encode())
    assert response.code == ResponseCode.SUCCESS
    return LockBatchResponseBody.decode(response.body).lock_ok_mq_set


def unlock(peer: Peer, client_id: str, *queues: MessageQueue, group: str = "G") -> None:
    body = LockBatchRequestBody(client_id, group, list(queues))
    assert peer.get(RequestCode.UNLOCK_BATCH_MQ, body=body.encode()).code == ResponseCode.SUCCESS


def test_queue_has_one_owner_until_unlocked(peer: Peer, another_peer: Peer) -> None:
    """C.2 scenario 53."""
    assert lock(peer, "a", Q0, Q1) == [Q0, Q1]
    assert lock(another_peer, "b", Q0, Q1) == []
    unlock(peer, "a", Q0)
    assert lock(another_peer, "b", Q0, Q1) == [Q0]


def test_queue_named_twice_is_unlocked_with_the_others(peer: Peer, another_peer: Peer) -> None:
    lock(peer, "a", Q0, Q0, Q1)
    unlock(peer, "a", Q0, Q0, Q1)
    assert lock(another_peer, "b", Q0, Q1) == [Q0, Q1]


def end(broker: Broker, peer: Peer, *, closed_by_peer: bool = True) -> None:
    """Drop a connection from the groups, and release its locks without the grace time."""
    broker.groups.consumers.forget(peer.as_connection)
    release = broker.groups.locks.release(
        peer.as_connection, broker.groups.consumers.connection_of, closed_by_peer=closed_by_peer
    )
    finish(release)


def test_rejected_members_are_notified_when_lost_lock_expires(
    broker: Broker, peer: Peer, another_peer: Peer, clock: Clock
) -> None:
    heartbeat(another_peer, "b", "G")
    lock(peer, "a", Q0)
    clock.now_ms += 10_000
    release = broker.groups.locks.release(peer.as_connection, lambda _group, _client: None, closed_by_peer=True)
    wait_s = finish(release)
    assert lock(another_peer, "b", Q0) == []
    notices(another_peer)
    clock.now_ms += round(wait_s * 1000) - 1
    finish(broker.groups.locks.free_ended())
    assert notices(another_peer) == []
    clock.now_ms += 1
    finish(broker.groups.locks.free_ended())
    assert notices(another_peer) == ["G"]
    assert wait_s == (LOST_LIFE_MS - 10_000 + 1) / 1000


def test_reconnected_client_keeps_its_locks(broker: Broker, peer: Peer, another_peer: Peer) -> None:
    heartbeat(peer, "a", "G")
    lock(peer, "a", Q0, ends_with_connection=True)
    heartbeat(another_peer, "a", "G")
    end(broker, peer)
    assert broker.groups.locks.owner("G", Q0) == "a"
    end(broker, another_peer)
    assert broker.groups.locks.owner("G", Q0) is None


def test_lock_renewed_on_new_connection_outlives_the_first(broker: Broker, peer: Peer, another_peer: Peer) -> None:
    lock(peer, "a", Q0, Q1, ends_with_connection=True)
    lock(another_peer, "a", Q0, ends_with_connection=True)
    end(broker, peer)
    assert (broker.groups.locks.owner("G", Q0), broker.groups.locks.owner("G", Q1)) == ("a", None)


def test_unregistering_frees_the_locks(broker: Broker, peer: Peer, another_peer: Peer) -> None:
    heartbeat(peer, "a", "G")
    lock(another_peer, "a", Q0)
    lock(another_peer, "b", Q1)
    peer.get(RequestCode.UNREGISTER_CLIENT, {"clientID": "a", "consumerGroup": "G"})
    assert (broker.groups.locks.owner("G", Q0), broker.groups.locks.owner("G", Q1)) == (None, "b")


@pytest.mark.parametrize("was_refused", [True, False])
def test_rejected_members_are_notified_when_queue_is_unlocked(
    peer: Peer, another_peer: Peer, was_refused: bool
) -> None:
    heartbeat(peer, "a", "G")
    heartbeat(another_peer, "b", "G")
    lock(peer, "a", Q0)
    if was_refused:
        lock(another_peer, "b", Q0)
    notices(another_peer)
    unlock(peer, "a", Q0)
    assert notices(another_peer) == ["G"] * was_refused


def test_unlock_notifications_respect_group_setting(broker: Broker, peer: Peer, another_peer: Peer) -> None:
    config = SubscriptionGroupConfig(group_name="G", notify_consumer_ids_changed_enable=False)
    broker.groups.settings.put(config)
    heartbeat(another_peer, "b", "G")
    lock(peer, "a", Q0)
    lock(another_peer, "b", Q0)
    unlock(peer, "a", Q0)
    assert notices(another_peer) == []


def test_lock_of_no_queues_grants_none(peer: Peer) -> None:
    assert lock(peer, "a") == []
    unlock(peer, "a", Q0)
