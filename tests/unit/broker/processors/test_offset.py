"""Offsets of groups and queues by request, and a record by its place."""

from typing import Any

import pytest

from tests.commands import make_command
from tests.unit.broker.recording import MakeBroker, Peer
from triomq.protocol.bodies.client import ConsumerData
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.bodies.statistics import QueryCorrectionOffsetBody
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.storage.reading.cold_read import finish

NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
QUEUE = {"topic": "T", "queueId": 0}
GROUP_QUEUE = {"consumerGroup": "G", **QUEUE}


def query(peer: Peer, **fields: Any) -> tuple[int, str | None]:
    response = peer.get(RequestCode.QUERY_CONSUMER_OFFSET, {**GROUP_QUEUE, **fields})
    return response.code, response.ext_fields.get("offset")


def commit(peer: Peer, queue_offset: int, **fields: Any) -> int:
    return peer.get(RequestCode.UPDATE_CONSUMER_OFFSET, {**GROUP_QUEUE, "commitOffset": queue_offset, **fields}).code


def ask_offset(peer: Peer, code: int, **fields: Any) -> int:
    response = peer.get(code, {**QUEUE, **fields})
    assert response.code == ResponseCode.SUCCESS
    return int(response.ext_fields["offset"])


def test_new_group_on_young_queue_begins_at_0(peer: Peer) -> None:
    """C.2 scenario 30."""
    for _ in range(3):
        peer.put("T")
    assert query(peer) == (ResponseCode.SUCCESS, "0")


def test_empty_or_unknown_queue_is_young(peer: Peer) -> None:
    assert query(peer, topic="unknown") == (ResponseCode.SUCCESS, "0")
    assert query(peer, queueId=77) == (ResponseCode.SUCCESS, "0")
    assert peer.broker.topics.get("unknown") is None


def test_5x_caller_can_decline_zero(peer: Peer) -> None:
    assert query(peer, setZeroIfNotFound="false")[0] == ResponseCode.QUERY_NOT_FOUND
    assert query(peer, setZeroIfNotFound="true") == (ResponseCode.SUCCESS, "0")


def test_offset_query_on_truncated_queue_returns_not_found(peer: Peer) -> None:
    """C.2 scenario 39, the broker's part."""
    for _ in range(3):
        peer.put("T")
    peer.broker.store.queue("T", 0).min_offset = 1
    response = peer.get(RequestCode.QUERY_CONSUMER_OFFSET, GROUP_QUEUE)
    assert (response.code, response.remark) == (ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)
    assert "offset" not in response.ext_fields


def test_offset_query_on_aged_queue_returns_not_found(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker({"physical_memory_bytes": 1500, "in_memory_max_ratio": 100}))
    peer.put("T", bytes(900))
    assert query(peer) == (ResponseCode.SUCCESS, "0")
    peer.put("T", bytes(900))
    assert query(peer)[0] == ResponseCode.QUERY_NOT_FOUND


def test_lower_offset_replaces_stored_one(peer: Peer) -> None:
    """C.2 scenario 30."""
    peer.put("T")
    for queue_offset in (10, 3):
        assert commit(peer, queue_offset) == ResponseCode.SUCCESS
        assert query(peer) == (ResponseCode.SUCCESS, str(queue_offset))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "a@b"}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": -1}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 4}, ResponseCode.SYSTEM_ERROR),
        ({"commitOffset": (2**63 - 1) // 20 + 1}, ResponseCode.SYSTEM_ERROR),
        ({"commitOffset": 2**63}, ResponseCode.SYSTEM_ERROR),
        ({"commitOffset": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_commit_that_means_nothing_is_refused(peer: Peer, fields: dict[str, Any], code: int) -> None:
    peer.put("T")
    assert commit(peer, 0, **fields) == code
    assert finish(peer.broker.groups.offsets.groups()) == {}


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [
        ({"consumerGroup": "known"}, True),
        ({"consumerGroup": "member"}, True),
        ({"consumerGroup": "new"}, True),
        ({"consumerGroup": "known", "topic": "%RETRY%known"}, False),  # not there yet
        ({"consumerGroup": "known", "queueId": 3, "commitOffset": (2**63 - 1) // 20}, True),
        ({"consumerGroup": "known", "topic": "wide", "queueId": 9}, True),
        ({"consumerGroup": "known", "topic": "shrunk", "queueId": 9}, True),
        ({"consumerGroup": "known", "topic": "shrunk", "queueId": 8}, False),
    ],
)
def test_oneway_commit_needs_existing_queue(peer: Peer, fields: dict[str, Any], is_kept: bool) -> None:
    peer.put("T")
    topics, groups = peer.broker.topics, peer.broker.groups
    topics.put(TopicConfig("wide", read_queue_nums=10, write_queue_nums=1))
    topics.put(TopicConfig("shrunk", read_queue_nums=10, write_queue_nums=10))
    peer.put("shrunk", queue_id=9)
    topics.put(TopicConfig("shrunk", read_queue_nums=1, write_queue_nums=1))
    groups.settings.put(SubscriptionGroupConfig("known"))
    groups.consumers.heartbeat(peer.as_connection, "c", ConsumerData("member"))
    sent = {**GROUP_QUEUE, "commitOffset": 7, **fields}
    texts = {name: str(value) for name, value in sent.items()}
    command = make_command(RequestCode.UPDATE_CONSUMER_OFFSET, 1, CommandFlag.ONEWAY, texts)
    peer.serve(command)
    assert peer.broker.statistics.failed_requests == (0 if is_kept else 1)
    kept = groups.offsets.query(sent["consumerGroup"], sent["topic"], sent["queueId"])
    assert kept == (sent["commitOffset"] if is_kept else None)


def test_commit_creates_group_if_allowed(make_broker: MakeBroker) -> None:
    for is_allowed in (False, True):
        peer = Peer(make_broker(auto_create_group=is_allowed))
        peer.put("T")
        code = ResponseCode.SUCCESS if is_allowed else ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert commit(peer, 5) == code
        assert (peer.broker.groups.settings.get("G") is not None) == is_allowed


def test_number_of_group_topics_is_limited(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker(max_group_topics=2))
    for topic in "TUV":
        peer.put(topic)
    assert [commit(peer, 1, topic=topic) for topic in "TUVTU"] == [0, 0, 1, 0, 0]
    pulled = [peer.pull(topic, 0, sysFlag=5) for topic in "TUV"]
    assert [response.code for response in pulled if response is not None] == [0, 0, 1]
    peer.broker.groups.offsets.commit("the broker's own", "T", 0, 1)


def test_commit_below_zero_keeps_offset(peer: Peer) -> None:
    peer.put("T")
    assert commit(peer, 5) == commit(peer, -1) == ResponseCode.SUCCESS
    assert query(peer) == (ResponseCode.SUCCESS, "5")


def test_correction_offset_is_lowest_of_other_groups(peer: Peer) -> None:
    """Groups that are left out keep their offsets, unlike in RocketMQ 4.9."""
    for _ in range(9):
        peer.put("T")
    for group, queue_offset in (("slow", 2), ("G", 4), ("fast", 8)):
        commit(peer, queue_offset, consumerGroup=group)

    def told(**fields: str) -> dict[int, int]:
        response = peer.get(RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "T", **fields})
        return QueryCorrectionOffsetBody.decode(response.body).correction_offsets

    assert told() == {0: 2}
    assert told(filterGroups="slow,other", compareGroup="G") == {0: 4}
    assert told(filterGroups="slow", compareGroup="slow") == {0: 2**63 - 1}
    assert told(filterGroups="slow,G,fast", compareGroup="G") == {}
    assert told() == {0: 2}


def test_min_and_max_offset_of_queue(peer: Peer) -> None:
    for _ in range(5):
        peer.put("T")
    peer.broker.store.queue("T", 0).min_offset = 2
    assert ask_offset(peer, RequestCode.GET_MIN_OFFSET) == 2
    assert ask_offset(peer, RequestCode.GET_MAX_OFFSET) == 5


@pytest.mark.parametrize("code", [RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET])
@pytest.mark.parametrize("fields", [{"topic": "unknown"}, {"queueId": 9}, {"queueId": -1}, {"topic": "../../etc"}])
def test_unknown_queue_has_offsets_0_uncreated(peer: Peer, code: int, fields: dict[str, Any]) -> None:
    before = len(peer.broker.store.queues)
    assert ask_offset(peer, code, **fields) == 0
    assert len(peer.broker.store.queues) == before


def test_search_by_time_finds_nearest_message(peer: Peer, clock: Any) -> None:
    begin = clock.now_ms
    for at_ms in (0, 100, 200):
        clock.now_ms = begin + at_ms
        peer.put("T")
    for at_ms, queue_offset in ((-50, 0), (0, 0), (49, 0), (50, 0), (51, 1), (100, 1), (5000, 2)):
        assert ask_offset(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=begin + at_ms) == queue_offset
    assert ask_offset(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=begin, queueId=3) == 0


def test_earliest_store_time_of_first_message(peer: Peer, clock: Any) -> None:
    stored_ms = clock.now_ms
    peer.put("T")
    clock.now_ms += 1000
    peer.put("T")
    response = peer.get(RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE)
    assert response.ext_fields == {"timestamp": str(stored_ms)}
    response = peer.get(RequestCode.GET_EARLIEST_MSG_STORETIME, {**QUEUE, "queueId": 2})
    assert (response.code, response.ext_fields) == (ResponseCode.SUCCESS, {"timestamp": "-1"})


def test_offsets_are_cloned_from_known_group(peer: Peer) -> None:
    peer.put("T")
    clone = {"srcGroup": "G", "destGroup": "copy", "topic": "T", "offline": "true"}
    refused = peer.get(RequestCode.CLONE_GROUP_OFFSET, clone)
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "nothing to clone: there is no group G")
    commit(peer, 1)
    assert (
        peer.get(RequestCode.CLONE_GROUP_OFFSET, {**clone, "topic": "on another broker"}).code == ResponseCode.SUCCESS
    )
    assert query(peer, consumerGroup="copy") == (ResponseCode.SUCCESS, "0")
    assert peer.get(RequestCode.CLONE_GROUP_OFFSET, clone).code == ResponseCode.SUCCESS
    assert query(peer, consumerGroup="copy") == (ResponseCode.SUCCESS, "1")
