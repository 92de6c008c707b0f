"""Delay levels: due times, order, saved offsets, damaged queues; ``tests/property`` has restarts, kills and clocks."""

import logging
from typing import Any

import pytest

from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.broker.server import Broker
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import StoreFullError
from triomq.protocol.java import tags_code
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record, decode_records
from triomq.storage.append import entry
from triomq.storage.delays import DelayLevels

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HOST = bytes(8)


def messages(broker: Broker, topic: str = "T", queue_id: int = 0) -> list[MessageExt]:
    found: list[MessageExt] = []
    while (result := broker.store.reader.get_message((topic, queue_id), len(found), 32)).buffers:
        found += [message for view in result.buffers for message in decode_records(view)]
    return found


def bodies(broker: Broker, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.stored_body for message in messages(broker, topic, queue_id)]


def put(peer: Peer, body: bytes = b"body", level: int = 1, topic: str = "T", more: str = "", **fields: Any) -> None:
    assert peer.put(topic, body, i=f"DELAY\x01{level}{more}", **fields).code == ResponseCode.SUCCESS


def test_delayed_message_is_delivered_once_and_unchanged(peer: Peer, clock: Clock) -> None:
    """C.2 scenario 14."""
    broker = peer.broker
    put(peer, more="\x02UNIQ_KEY\x01ID\x02TAGS\x01A\x02WAIT\x01true", queue_id=2, f=1, h=-5, g=17, j=3)
    (waiting,) = messages(broker, SCHEDULE)
    clock.now_ms += 999
    assert broker.delayed.schedule.deliver(clock.now_ms) == clock.now_ms + 1
    assert messages(broker, "T", 2) == []
    clock.now_ms += 1
    assert broker.delayed.schedule.deliver(clock.now_ms) is None
    (message,) = messages(broker, "T", 2)
    assert message.stored_body == b"body"
    assert (message.flag, message.sys_flag, message.born_timestamp, message.reconsume_times) == (-5, 1, 17, 3)
    assert (message.born_host, message.store_host) == ("192.0.2.9:50001", "192.0.2.1:10911")
    assert message.store_timestamp == clock.now_ms
    assert (message.unique_id, message.tags) == ("ID", "A")
    assert message.encoded_properties == waiting.encoded_properties
    assert message.properties | {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "2"} == message.properties
    assert broker.store.reader.queue_units("T", 2, 0, 1)[0].tags_code == tags_code("A")
    clock.now_ms += 10**7
    assert broker.delayed.schedule.deliver(clock.now_ms) is None
    assert len(messages(broker, "T", 2)) == 1
    assert broker.delayed.delivery.delivered == 1
    assert broker.statistics.put_by_topic == {SCHEDULE: 1, "T": 1}


def test_only_an_empty_level_wakes_the_service(peer: Peer) -> None:
    woken = []
    for level in (1, 1, 2):
        peer.broker.delayed.arrived.clear()
        put(peer, level=level)
        woken.append(peer.broker.delayed.arrived.is_set())
    assert woken == [True, False, True]


def put_raw(broker: Broker, properties: bytes, code: int = 0, body: bytes = b"raw") -> int:
    """Put a record into the queue of level 1 as another broker may have left it; return where."""
    queue = broker.store.queue(SCHEDULE, 0)
    message = entry(queue, body, properties, tags_code=code, born_host=HOST, store_host=HOST)
    return broker.store.append([message])[0][0]


GOOD = b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010"


@pytest.mark.parametrize("code", [tags_code("TagA"), tags_code("polygenelubricants"), 0])
def test_unit_with_tags_hash_uses_store_time(broker: Broker, clock: Clock, code: int) -> None:
    put_raw(broker, GOOD, code)
    assert broker.delayed.schedule.deliver(clock.now_ms + 500) == clock.now_ms + 1000
    assert messages(broker) == []
    assert broker.delayed.schedule.deliver(clock.now_ms + 1000) is None
    assert bodies(broker) == [b"raw"]


def test_delivery_times_beyond_level_delay_count_from_now(broker: Broker, clock: Clock) -> None:
    """The clock was set back, or the levels were made shorter."""
    for _ in range(3):
        put_raw(broker, GOOD, clock.now_ms + 86_400_000)
    assert broker.delayed.schedule.deliver(clock.now_ms) == clock.now_ms + 1000
    assert broker.delayed.schedule.deliver(clock.now_ms + 999) == clock.now_ms + 1000
    assert bodies(broker) == []
    assert broker.delayed.schedule.deliver(clock.now_ms + 1000) is None
    assert bodies(broker) == [b"raw"] * 3


def test_configured_levels_replace_the_default(make_broker: MakeBroker, clock: Clock) -> None:
    peer = Peer(make_broker({"delay_levels": DelayLevels("2s 7m")}))
    put(peer, b"1", 1)
    put(peer, b"2", 18)
    (unit,) = peer.broker.store.reader.queue_units(SCHEDULE, 1, 0, 9)
    assert unit.tags_code == clock.now_ms + 420_000
    assert peer.broker.delayed.schedule.deliver(clock.now_ms + 2000) == clock.now_ms + 420_000
    assert peer.broker.delayed.schedule.deliver(clock.now_ms + 420_000) is None
    assert bodies(peer.broker) == [b"1", b"2"]
    assert messages(peer.broker)[1].properties["DELAY"] == "2"


def test_undeliverable_records_do_not_block_later_ones(
    broker: Broker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    put_raw(broker, b"REAL_TOPIC\x01../etc\x02REAL_QID\x010")
    put_raw(broker, b"REAL_TOPIC\x01T\x02REAL_QID\x01" + b"9" * 5000)
    broker.store.queue(SCHEDULE, 0).append_visible(10**9, 200, clock.now_ms)
    put_raw(broker, GOOD, body=b"next")
    assert broker.delayed.schedule.deliver(clock.now_ms + 1000) is None
    assert bodies(broker) == [b"next"]
    assert [record.message[:23] for record in caplog.records] == [
        "delayed message dropped", "delayed message dropped", "delayed message is miss",
    ]  # fmt: skip


@pytest.mark.parametrize(("saved", "first"), [(99, 3), (-5, 0), (2, 2)])
def test_saved_offsets_are_clamped_to_their_queue_range(
    make_broker: MakeBroker, clock: Clock, saved: int, first: int
) -> None:
    broker = make_broker()
    for number in range(3):
        put(Peer(broker), b"%d" % number)
    path = broker.config.store.root / "config" / "delayOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'{"offsetTable":{1:%d}}' % saved)
    broker = make_broker()
    put(Peer(broker), b"new")
    broker.delayed.schedule.deliver(clock.now_ms)
    clock.now_ms += 1000
    broker.delayed.schedule.deliver(clock.now_ms)
    assert bodies(broker) == [b"0", b"1", b"2", b"new"][first:]


def test_messages_deleted_by_retention_are_skipped(peer: Peer, clock: Clock) -> None:
    for number in range(3):
        put(peer, b"%d" % number)
    peer.broker.store.queue(SCHEDULE, 0).min_offset = 2
    clock.now_ms += 1000
    assert peer.broker.delayed.schedule.deliver(clock.now_ms) is None
    assert bodies(peer.broker) == [b"2"]
    put(peer, b"3")
    assert peer.broker.delayed.schedule.deliver(clock.now_ms + 1000) is None
    assert bodies(peer.broker) == [b"2", b"3"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_failed_flush_saves_no_delay_offsets(
    peer: Peer, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_lost: bool
) -> None:
    """It may be lost, also where only a file could not be opened: it is delivered again."""
    broker = peer.broker
    put(peer)
    clock.now_ms += 1000
    broker.delayed.schedule.deliver(clock.now_ms)

    def fail() -> None:
        if is_lost:
            broker.store.refused.failed(StoreFullError("lost"))
        raise StoreFullError("lost")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "triomq.broker"):
        patch.setattr(broker.store, "flush", fail)
        broker.save_tables()
    if is_lost:
        broker.save_tables()
    assert not (broker.config.store.root / "config" / "delayOffset.json").exists()
    assert "delivered again" in caplog.text


def test_delivery_keeps_ipv6_hosts(broker: Broker, clock: Clock) -> None:
    peer = Peer(broker, "::1:50001")
    put(peer)
    broker.delayed.schedule.deliver(clock.now_ms + 1000)
    (message,) = messages(broker)
    assert message.born_host == "[::1]:50001"
    assert decode_record(broker.store.commit_log.look_message(message.physical_offset) or b"").sys_flag & 0x10
