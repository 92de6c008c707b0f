"""The way from a system queue to the real ones."""

import logging

import pytest

from tests.unit.broker.delayed.test_levels import bodies
from tests.unit.broker.recording import Clock, MakeBroker, Peer, set_disk_full
from triomq.broker.delayed.delivery import with_real_place
from triomq.broker.server import Broker
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import MessageIllegalError, StoreError, StoreFullError
from triomq.storage.append import Entry, entry

HOST = bytes(8)
PLACE = b"REAL_TOPIC\x01T\x02REAL_QID\x011"


def waiting(broker: Broker, properties: bytes, body: bytes = b"body") -> Entry | None:
    """Let a message wait, and return what delivers it."""
    queue = broker.store.queue("W", 0)
    ((_, queue_offset),) = broker.store.append([entry(queue, body, properties, born_host=HOST, store_host=HOST)])
    ((copy,), _) = broker.delayed.delivery.copies(broker.store.reader.queue_units("W", 0, queue_offset, 1))
    assert copy is None or copy.properties == properties
    return copy


@pytest.mark.parametrize(
    "properties",
    [
        b"A\x01b\x02" + PLACE,
        PLACE,
        PLACE + b"\x02A\x01b",
        b"A\x01b\x02" + PLACE + b"\x02A\x01b",
        b"REAL_QID\x011\x02A\x01b\x02REAL_TOPIC\x01T",
        b"A\x01b\x02REAL_TOPIC\x01wrong\x02" + PLACE,
    ],
)
def test_real_place_is_found_anywhere_in_properties(broker: Broker, properties: bytes) -> None:
    for _ in range(2):  # known the second time
        copy = waiting(broker, properties)
        assert copy is not None
        assert (copy.queue.topic, copy.queue.queue_id) == ("T", 1)


def test_real_place_is_written_last(broker: Broker) -> None:
    queue = broker.store.queue("U", 7)
    assert with_real_place(PLACE + b"\x02A\x01b", queue) == b"A\x01b\x02REAL_TOPIC\x01U\x02REAL_QID\x017"


def test_equal_suffix_does_not_mask_queue_id(broker: Broker) -> None:
    for queue_id in (1, 2):
        copy = waiting(broker, b"REAL_QID\x01%d\x02REAL_TOPIC\x01T" % queue_id)
        assert copy is not None
        assert copy.queue.queue_id == queue_id


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"REAL_TOPIC\x01T",
        b"REAL_TOPIC\x01T\x02REAL_QID\x01-1",
        b"REAL_TOPIC\x01a b\x02REAL_QID\x011",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010",
        b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010",
        b"REAL_TOPIC\x01rmq_sys_wheel_timer\x02REAL_QID\x010",
    ],
)
def test_message_without_valid_place_is_dropped(
    broker: Broker, caplog: pytest.LogCaptureFixture, properties: bytes
) -> None:
    assert waiting(broker, properties) is None
    assert "delayed message dropped" in caplog.text


def test_damaged_and_missing_records_are_dropped(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    waiting(broker, PLACE)
    assert broker.delayed.delivery.copies([(1, 100, 0), (10**9, 100, 0), (0, 0, 0)])[0] == [None] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING, logging.WARNING]


def test_too_long_copy_does_not_stop_others(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    copies = [waiting(broker, PLACE, b"%d" % number) for number in range(3)]
    good = [copy for copy in copies if copy is not None]
    good[1] = good[1]._replace(body=bytes(broker.store.config.commit_log_file_size_bytes))
    assert broker.delayed.delivery.deliver(good) == 3
    assert broker.delayed.delivery.delivered == 2
    assert broker.store.reader.max_offset_in_queue("T", 1) == 2
    assert broker.statistics.put_by_topic == {"T": 2}
    assert broker.statistics.put_bytes == 2
    assert "delayed message dropped topic=T" in caplog.text


def test_half_deleted_topic_does_not_stop_others(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = PLACE.replace(b"\x01T", b"\x01D")
    copies = [waiting(broker, place) for place in (PLACE, deleted, PLACE, deleted, PLACE)]
    broker.store.queue("D", 1).refusal = StoreError("cannot delete")
    append = broker.store.append
    full = [StoreFullError("no room")]

    def append_one(entries: list[Entry], **options: bool) -> list[tuple[int, int]]:
        if len(entries) > 1:
            raise MessageIllegalError("too many")
        if broker.delayed.delivery.delivered and full:
            raise full.pop()
        return append(entries, **options)

    monkeypatch.setattr(broker.store, "append", append_one)
    assert broker.delayed.delivery.deliver(copies) == 2
    assert caplog.text.count("delayed message dropped topic=D: the topic is being deleted") == 1
    assert broker.delayed.delivery.deliver(copies[2:]) == 3
    assert caplog.text.count("delayed message dropped topic=D: the topic is being deleted") == 2
    assert broker.store.reader.max_offset_in_queue("T", 1) == 3
    assert broker.delayed.delivery.delivered == 3
    assert broker.delayed.delivery.deliver(copies[1:2]) == 1
    broker.store.queue("D", 1).refusal = None
    assert broker.delayed.delivery.deliver(copies[1:2]) == 1
    assert broker.store.reader.max_offset_in_queue("D", 1) == 1


def deliver(broker: Broker, now_ms: int) -> int | None:
    times = broker.delayed.schedule.deliver(now_ms), broker.delayed.timer.deliver(now_ms)
    return min((time for time in times if time is not None), default=None)


@pytest.mark.parametrize("delay", ["DELAY\x011", "TIMER_DELAY_SEC\x011"])
@pytest.mark.parametrize(("record_bytes", "counts"), [(600_000, (2, 4, 5)), (2**19, (3, 5, 5))])
def test_one_call_copies_bounded_bytes(
    make_broker: MakeBroker, clock: Clock, delay: str, record_bytes: int, counts: tuple[int, ...]
) -> None:
    peer = Peer(make_broker({"commit_log_file_size_bytes": 32 * 1024**2}))
    assert peer.put("T", b"", i=delay).code == ResponseCode.SUCCESS
    head_bytes = peer.broker.store.commit_log.max_offset
    deliver(peer.broker, clock.now_ms + 1000)
    for _ in range(5):
        assert peer.put("T", bytes(record_bytes - head_bytes), i=delay).code == ResponseCode.SUCCESS
    for count in counts:
        deliver(peer.broker, clock.now_ms + 1000)
        assert peer.broker.delayed.delivery.delivered == 1 + count


@pytest.mark.parametrize("delay", ["DELAY\x011", "TIMER_DELAY_SEC\x011"])
def test_one_call_delivers_bounded_number_in_order(make_broker: MakeBroker, clock: Clock, delay: str) -> None:
    peer = Peer(make_broker({"consume_queue_file_size_bytes": 20 * 3000}))
    for number in range(600):
        peer.put("T", b"%d" % number, i=delay)
    for delivered in (256, 512, 600):
        assert (deliver(peer.broker, clock.now_ms + 1000) is None) == (delivered == 600)
        assert peer.broker.delayed.delivery.delivered == delivered
    assert bodies(peer.broker) == [b"%d" % number for number in range(600)]


@pytest.mark.parametrize("delay", ["DELAY\x011", "TIMER_DELAY_SEC\x011"])
def test_refused_delivery_is_retried(peer: Peer, clock: Clock, caplog: pytest.LogCaptureFixture, delay: str) -> None:
    broker = peer.broker
    for number in range(3):
        peer.put("T", b"%d" % number, i=delay)
    clock.now_ms += 1000
    set_disk_full(broker.store, is_full=True)
    for _ in range(3):
        assert deliver(broker, clock.now_ms) == clock.now_ms + 100
    messages = [record.message for record in caplog.records if record.name.startswith("triomq.broker")]
    assert [message.partition(": ")[0] for message in messages] == ["delayed messages are not delivered for now"]
    assert b'"firstOffset": 0' in b"".join(broker.delayed.timer.progress.pieces())
    set_disk_full(broker.store, is_full=False)
    assert deliver(broker, clock.now_ms) is None
    assert bodies(broker) == [b"0", b"1", b"2"]
    peer.put("T", i=delay)
    set_disk_full(broker.store, is_full=True)
    deliver(broker, clock.now_ms + 1000)
    assert caplog.text.count("delayed messages are not delivered for now") == 2
