"""Messages by key and by place, units of a queue."""

import json
import threading
from collections.abc import Generator
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import Clock, MakeBroker, Peer, make_steps_short
from tests.unit.storage.making import overwrite
from triomq.broker.services.housekeeping import Indexing
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.java import tags_code
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record, decode_records
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import ColdReads

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


def test_messages_are_found_by_any_key(peer: Peer) -> None:
    """C.2 scenario 63."""
    put(peer, b"one", KEYS="a b", UNIQ_KEY="U1")
    put(peer, b"two", KEYS="b", UNIQ_KEY="U2")
    put(peer, b"other", topic="U", KEYS="b")
    assert query(peer, "a") == [b"one"]
    assert query(peer, "b") == [b"one", b"two"]
    assert query(peer, "U2", _UNIQUE_KEY_QUERY="true") == [b"two"]
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
        put(peer, b"%d" % number, KEYS="all")
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
    store = peer.broker.store
    for number in range(1200):
        put(peer, b"%d" % number, KEYS="all")
    read: list[tuple[int, str]] = []

    def load_log(_: ColdReads, begin: int) -> Generator[list[int], None, int]:
        yield [begin]
        return store.commit_log.max_offset

    monkeypatch.setattr(ColdReads, "load_log", load_log)
    monkeypatch.setattr(
        "triomq.broker.work.read_ranges",
        lambda ranges: read.append((ranges[0], threading.current_thread().name)),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Indexing(peer.broker.store.index, peer.broker.worker, peer.broker.statistics).run)
        with trio.fail_after(30):
            while store.index.lag_bytes:  # noqa: ASYNC110  # a thread has part in it
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    begins, threads = zip(*read, strict=True)
    assert begins[0] == 0
    assert sorted(set(begins)) == list(begins)
    assert len(begins) > 2
    assert threading.main_thread().name not in threads


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
    subscription = tag_subscription("T", "A", 1)
    data = HeartbeatData("me", consumer_data_set=[ConsumerData("G", subscription_data_set=[subscription])])
    assert peer.get(RequestCode.HEART_BEAT, body=data.encode()).code == ResponseCode.SUCCESS
    found = units(peer, consumerGroup="G")
    assert [unit["eval"] for unit in found["queueData"]] == [True, False]
    assert found["subscriptionData"]["subString"] == "A"


def test_queue_units_name_offline_group(peer: Peer) -> None:
    put(peer, b"body")
    found = units(peer, consumerGroup="G")
    assert found["filterData"] == "G@T is not online!"
    assert len(found["queueData"]) == 1


@pytest.mark.parametrize("index", [-1, 1, 2**62])
def test_queue_units_beyond_end_give_remark(peer: Peer, index: int) -> None:
    put(peer, b"body")
    asked = {"topic": "T", "queueId": 0, "index": index, "count": 10}
    response = peer.get(RequestCode.QUERY_CONSUME_QUEUE, asked)
    assert (response.code, response.body) == (ResponseCode.SUCCESS, b"")
    assert response.remark == f"Index {index} of 0@T is not exist!"


def test_units_of_unknown_queue_are_refused(peer: Peer) -> None:
    response = peer.get(RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": 9, "index": 0, "count": 1})
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "9@T is not exist!")
