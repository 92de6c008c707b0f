"""Offsets that members have from a deleted topic, in a new topic of its name."""

from collections.abc import Callable

import pytest

from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import Peer
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData
from triomq.protocol.codes import RequestCode, ResponseCode
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
