"""Messages by key and by place, units of a queue, offsets of groups and queues."""

import json
import threading
from collections.abc import Generator
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.commands import make_command
from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import Clock, MakeBroker, Peer, make_steps_short
from tests.unit.storage.making import overwrite
from triomq.broker.services.housekeeping import Indexing
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.bodies.statistics import QueryCorrectionOffsetBody
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.java import tags_code
from triomq.protocol.record.index_unit import key_hash
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record, decode_records
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import ColdReads, finish

FOREVER = 2**63 - 1


def put(peer: Peer, body: bytes, *, topic: str = "T", **properties: str) -> None:
    assert peer.put(topic, body, i=encode_properties(properties).decode()).code == ResponseCode.SUCCESS


def query_fields(key: str, **fields: Any) -> dict[str, Any]:
    return {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": FOREVER, **fields}


def query(peer: Peer, key: str, **fields: Any) -> list[bytes]:
    response = peer.get(RequestCode.QUERY_MESSAGE, query_fields(key, **fields))
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        assert response.body == b""
        return []
    assert response.code == ResponseCode.SUCCESS
    return bodies(decode_records(response.body))


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return [message.stored_body for message in messages]


def test_key_is_found_behind_newer_equal_hashes(peer: Peer) -> None:
    """All of one millisecond, which no client can search in parts."""
    for number in range(70):
        put(peer, b"%d" % number, KEYS="Aa")
        put(peer, b"other", KEYS="BB")
    for _ in range(200):
        put(peer, b"other", KEYS="BB")
    assert query(peer, "Aa") == [b"%d" % number for number in range(38, 70)]
    assert query(peer, "Aa", maxNum=64) == [b"%d" % number for number in range(6, 70)]


@pytest.mark.parametrize("is_unique", [False, True])
def test_equal_hash_of_another_topic_reveals_nothing(peer: Peer, is_unique: bool) -> None:
    put(peer, b"hidden", topic="secretAa", KEYS="4711 kBB", UNIQ_KEY="U-Aa")
    for wanted, own in (("4711", "4711"), ("kBB", "kAa"), ("U-Aa", "U-BB")):
        assert key_hash("secretAa", wanted) == key_hash("secretBB", own)
        collision, unknown = (
            peer.get(RequestCode.QUERY_MESSAGE, query_fields(key, topic="secretBB", _UNIQUE_KEY_QUERY=is_unique))
            for key in (own, "unknown")
        )
        assert (collision.code, collision.body, collision.ext_fields) == (unknown.code, b"", unknown.ext_fields)


def test_messages_are_found_by_any_key(peer: Peer) -> None:
    """C.2 scenario 63."""
    put(peer, b"one", KEYS="a b", UNIQ_KEY="U1")
    put(peer, b"two", KEYS="b", UNIQ_KEY="U2")
    put(peer, b"other", topic="U", KEYS="b")
    assert query(peer, "a") == [b"one"]
    assert query(peer, "b") == [b"one", b"two"]
    assert query(peer, "U2", _UNIQUE_KEY_QUERY="true") == query(peer, "U2") == [b"two"]
    assert query(peer, "a", _UNIQUE_KEY_QUERY="true") == []
    assert query(peer, "b", topic="U") == [b"other"]


def test_answer_contains_index_progress(peer: Peer, clock: Clock) -> None:
    put(peer, b"one", KEYS="a")
    clock.now_ms += 5
    put(peer, b"two", KEYS="c")
    response = peer.get(RequestCode.QUERY_MESSAGE, query_fields("a"))
    (place,) = (unit.physical_offset for unit in peer.broker.store.reader.queue_units("T", 0, 1, 1))
    assert response.ext_fields == {
        "indexLastUpdateTimestamp": str(clock.now_ms),
        "indexLastUpdatePhyoffset": str(place),
    }


def test_unknown_key_is_not_found(peer: Peer) -> None:
    """C.2 scenario 63."""
    put(peer, b"one", KEYS="a")
    response = peer.get(RequestCode.QUERY_MESSAGE, query_fields("b"))
    assert response.code == ResponseCode.QUERY_NOT_FOUND
    assert response.remark == "can not find message, maybe time range not correct"
    assert response.ext_fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


def test_newest_messages_are_found_up_to_limit(peer: Peer) -> None:
    for number in range(70):
        put(peer, b"%d" % number, UNIQ_KEY="all")
    assert query(peer, "all", maxNum=2) == [b"68", b"69"]
    assert len(query(peer, "all", maxNum=1000)) == 64
    assert len(query(peer, "all", maxNum=1, _UNIQUE_KEY_QUERY="true")) == 32
    assert query(peer, "all", maxNum=0) == []
    assert query(peer, "all", maxNum=-1) == []


def test_only_messages_in_time_range_are_found(peer: Peer, clock: Clock) -> None:
    begin = clock.now_ms
    for number in range(5):
        put(peer, b"%d" % number, KEYS="all")
        clock.now_ms += 10_000
    assert query(peer, "all", beginTimestamp=begin + 10_000, endTimestamp=begin + 30_000) == [b"1", b"2", b"3"]
    assert query(peer, "all", beginTimestamp=begin + 50_000) == []
    assert query(peer, "all", beginTimestamp=begin + 30_000, endTimestamp=begin + 10_000) == []


def test_newest_messages_fill_one_frame(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker(max_frame_bytes=64 * 1024 + 2500))
    for number in range(3):
        put(peer, b"%d" % number * 1000, KEYS="all")
    assert query(peer, "all") == [b"1" * 1000, b"2" * 1000]


def test_records_that_are_gone_are_left_out(peer: Peer) -> None:
    put(peer, b"one", KEYS="a")
    put(peer, b"two", KEYS="a")
    assert len(query(peer, "a")) == 2
    overwrite(peer.broker.store.config.root / "commitlog" / f"{0:020d}", 4, b"gone")
    assert query(peer, "a") == [b"two"]


async def test_long_search_leaves_steps_to_others(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.storage.index.index_file._CHAIN_STEPS_AT_ONCE", 2)
    peer = Peer(make_broker())
    make_steps_short(peer.broker)
    for number in range(20):
        put(peer, b"%d" % number, KEYS="all")
    fields = {name: str(value) for name, value in query_fields("all", maxNum=64).items()}
    async with trio.open_nursery() as nursery:
        peer.broker.worker.nursery = nursery
        assert peer.ask(RequestCode.QUERY_MESSAGE, fields) is None
        peer.serve(RemotingCommand(RequestCode.QUERY_MESSAGE, 1, CommandFlag.ONEWAY, fields))
    (response,) = peer.sent
    assert len(decode_records(response.body)) == 20


async def test_indexing_lags_behind_load_within_limit(
    peer: Peer, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triomq.broker.services.housekeeping._BUSY_MESSAGES", 100)
    monkeypatch.setattr("triomq.broker.services.housekeeping._MAX_LAG_BYTES", 200_000)
    index = peer.broker.store.index
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Indexing(peer.broker.store.index, peer.broker.worker, peer.broker.statistics).run)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(200):
            put(peer, b"%d" % number, KEYS="all")
        await trio.sleep(0.15)
        assert index.position == 0
        await trio.sleep(0.1)  # nothing came in this time
        assert index.lag_bytes == 0
        for _ in range(200):
            put(peer, bytes(2000), KEYS="all")
        behind = index.lag_bytes
        await trio.sleep(0.1)
        assert 0 < index.lag_bytes <= 200_000 < behind
        nursery.cancel_scope.cancel()


async def test_cold_log_is_read_in_thread_before_indexing(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    store, threads = peer.broker.store, set()
    put(peer, b"one", KEYS="all")

    def load_log(_: ColdReads, begin: int) -> Generator[list[int], None, int]:
        yield [begin]
        return store.commit_log.max_offset

    monkeypatch.setattr(ColdReads, "load_log", load_log)
    monkeypatch.setattr("triomq.broker.work.read_ranges", lambda _: threads.add(threading.current_thread()))
    assert not await peer.broker.worker.run(store.index.follow(), urgent=True)
    assert store.index.lag_bytes == 0
    assert threads
    assert threading.main_thread() not in threads


async def test_indexing_survives_a_disk_that_refuses(
    peer: Peer, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(peer, b"one", KEYS="a")
    index = peer.broker.store.index
    index.files.directory.parent.joinpath("index").write_text("in the way")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Indexing(peer.broker.store.index, peer.broker.worker, peer.broker.statistics).run)
        await trio.sleep(1)
        assert caplog.text.count("not indexed for now") == 1
        index.files.directory.unlink()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert query(peer, "a") == [b"one"]


def test_message_is_viewed_by_offset_in_id(peer: Peer) -> None:
    peer.put("T", b"before")
    _, _, physical_offset = parse_offset_message_id(peer.put("T", b"this one").ext_fields["msgId"])
    response = peer.get(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset, "topic": "T"})
    assert response.code == ResponseCode.SUCCESS
    assert decode_record(response.body).stored_body == b"this one"


@pytest.mark.parametrize("physical_offset", [1, -1, 10**6, 2**63 - 1, -(2**63)])
def test_a_place_without_message_is_refused(peer: Peer, physical_offset: int) -> None:
    peer.put("T")
    response = peer.get(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset})
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark == f"can not find message by the offset, {physical_offset}"


def units(peer: Peer, **fields: Any) -> dict[str, Any]:
    asked = {"topic": "T", "queueId": 0, "index": 0, "count": 10, **fields}
    response = peer.get(RequestCode.QUERY_CONSUME_QUEUE, asked)
    assert response.code == ResponseCode.SUCCESS
    found: dict[str, Any] = json.loads(bytes(response.body))
    return found


def test_queue_units_have_offset_size_and_tags_code(peer: Peer) -> None:
    for tag in ("A", "B", "C"):
        put(peer, b"body", TAGS=tag)
    found = units(peer, index=1, count=5)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
    stored = peer.broker.store.reader.queue_units("T", 0, 1, 2)
    assert found["queueData"] == [
        {"physicOffset": unit.physical_offset, "physicSize": unit.size, "tagsCode": tags_code(tag), "eval": False}
        for unit, tag in zip(stored, "BC", strict=True)
    ]
    assert "subscriptionData" not in found
    assert len(units(peer, count=1)["queueData"]) == 1
    assert units(peer, count=-1)["queueData"] == []


def test_queue_units_show_matches_of_group(peer: Peer) -> None:
    for tag in ("A", "B"):
        put(peer, b"body", TAGS=tag)
    assert units(peer, consumerGroup="G")["filterData"] == "G@T is not online!"
    subscription = tag_subscription("T", "A", 1)
    data = HeartbeatData("me", consumer_data_set=[ConsumerData("G", subscription_data_set=[subscription])])
    assert peer.get(RequestCode.HEART_BEAT, body=data.encode()).code == ResponseCode.SUCCESS
    found = units(peer, consumerGroup="G")
    assert [unit["eval"] for unit in found["queueData"]] == [True, False]
    assert found["subscriptionData"]["subString"] == "A"


@pytest.mark.parametrize(
    ("queue_id", "index", "code", "remark"),
    [
        *((0, index, ResponseCode.SUCCESS, f"Index {index} of 0@T is not exist!") for index in (-1, 1, 2**62)),
        (9, 0, ResponseCode.SYSTEM_ERROR, "9@T is not exist!"),
    ],
)
def test_units_that_do_not_exist(peer: Peer, queue_id: int, index: int, code: int, remark: str) -> None:
    put(peer, b"body")
    asked = {"topic": "T", "queueId": queue_id, "index": index, "count": 10}
    response = peer.get(RequestCode.QUERY_CONSUME_QUEUE, asked)
    assert (response.code, response.body, response.remark) == (code, b"", remark)


NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
QUEUE = {"topic": "T", "queueId": 0}
GROUP_QUEUE = {"consumerGroup": "G", **QUEUE}


def group_offset(peer: Peer, **fields: Any) -> tuple[int, str | None]:
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
    peer.put("T")
    assert group_offset(peer) == (ResponseCode.SUCCESS, "0")
    assert group_offset(peer, topic="unknown") == (ResponseCode.SUCCESS, "0")
    assert group_offset(peer, queueId=77) == (ResponseCode.SUCCESS, "0")
    assert peer.broker.topics.get("unknown") is None
    assert group_offset(peer, setZeroIfNotFound="false")[0] == ResponseCode.QUERY_NOT_FOUND


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
    assert group_offset(peer) == (ResponseCode.SUCCESS, "0")
    peer.put("T", bytes(900))
    assert group_offset(peer)[0] == ResponseCode.QUERY_NOT_FOUND


def test_lower_offset_replaces_stored_one(peer: Peer) -> None:
    """C.2 scenario 30."""
    peer.put("T")
    for queue_offset, kept in ((10, "10"), (3, "3"), (-1, "3")):
        assert commit(peer, queue_offset) == ResponseCode.SUCCESS
        assert group_offset(peer) == (ResponseCode.SUCCESS, kept)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "a@b"}, ResponseCode.SYSTEM_ERROR),
        *(({"queueId": queue_id}, ResponseCode.SYSTEM_ERROR) for queue_id in (-1, 4)),
        *(({"commitOffset": at}, ResponseCode.SYSTEM_ERROR) for at in ((2**63 - 1) // 20 + 1, 2**63, "x")),
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
    elsewhere = peer.get(RequestCode.CLONE_GROUP_OFFSET, {**clone, "topic": "on another broker"})
    assert elsewhere.code == ResponseCode.SUCCESS
    assert group_offset(peer, consumerGroup="copy") == (ResponseCode.SUCCESS, "0")
    assert peer.get(RequestCode.CLONE_GROUP_OFFSET, clone).code == ResponseCode.SUCCESS
    assert group_offset(peer, consumerGroup="copy") == (ResponseCode.SUCCESS, "1")
