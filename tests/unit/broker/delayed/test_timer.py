"""Timed messages: due times, limits, long waits, damaged queues; ``tests/property`` has restarts, kills and clocks."""

from typing import Any

import pytest

from tests.unit.broker.delayed.test_levels import bodies, messages
from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.broker.server import Broker
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import StoreFullError
from triomq.protocol.java import tags_code
from triomq.storage.append import entry
from triomq.storage.delays import ROLL_WINDOW_MS

TIMER = "rmq_sys_wheel_timer"
HOST = bytes(8)
DAY_S = 86_400
HUGE = {"commit_log_file_size_bytes": 8 * 1024**2, "consume_queue_file_size_bytes": 20 * 3000}


def put(peer: Peer, properties: str, body: bytes = b"body", **fields: Any) -> None:
    assert peer.put("T", body, i=properties, **fields).code == ResponseCode.SUCCESS


def deliver_all(broker: Broker, clock: Clock) -> None:
    """Deliver all that is due now, however many calls that takes."""
    while broker.delayed.timer.deliver(clock.now_ms) == clock.now_ms:
        pass


@pytest.mark.parametrize("request_of", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_timer_message_is_delivered_once_and_unchanged(peer: Peer, clock: Clock, request_of: str) -> None:
    broker, sent_ms = peer.broker, clock.now_ms
    value = {"TIMER_DELIVER_MS": sent_ms + 3000, "TIMER_DELAY_MS": 3000, "TIMER_DELAY_SEC": 3}[request_of]
    more = "\x02UNIQ_KEY\x01ID\x02TAGS\x01A\x02WAIT\x01true"
    put(peer, f"{request_of}\x01{value}{more}", queue_id=2, f=1, h=-5, g=17)
    assert messages(broker, TIMER)[0].properties["REAL_QID"] == "2"
    clock.now_ms += 2999
    assert broker.delayed.timer.deliver(clock.now_ms) == clock.now_ms + 1
    assert messages(broker, "T", 2) == []
    clock.now_ms += 1
    assert broker.delayed.timer.deliver(clock.now_ms) is None
    (message,) = messages(broker, "T", 2)
    assert (message.stored_body, message.flag, message.sys_flag, message.born_timestamp) == (b"body", -5, 1, 17)
    assert (message.born_host, message.store_host) == ("192.0.2.9:50001", "192.0.2.1:10911")
    assert message.properties == {
        request_of: str(value), "UNIQ_KEY": "ID", "TAGS": "A", "WAIT": "true", "CLUSTER": "DefaultCluster",
        "TIMER_OUT_MS": str(sent_ms + 3000), "REAL_TOPIC": "T", "REAL_QID": "2",
        "TIMER_ENQUEUE_MS": str(sent_ms), "TIMER_DEQUEUE_MS": str(clock.now_ms),
    }  # fmt: skip
    assert broker.store.reader.queue_units("T", 2, 0, 1)[0].tags_code == tags_code("A")
    clock.now_ms += 10**7
    assert broker.delayed.timer.deliver(clock.now_ms) is None
    assert len(messages(broker, "T", 2)) == 1
    assert broker.statistics.put_by_topic == {TIMER: 1, "T": 1}


@pytest.mark.parametrize("properties", ["TIMER_DELIVER_MS\x0117", "TIMER_DELAY_SEC\x010", "TIMER_DELAY_MS\x01-9"])
def test_past_time_is_delivered_at_once(peer: Peer, properties: str) -> None:
    put(peer, properties)
    assert bodies(peer.broker) == [b"body"]
    assert len(peer.broker.delayed.timer) == 0


def test_excessive_delay_is_rejected_like_in_rocketmq(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker(timer_max_delay_s=60))
    put(peer, "TIMER_DELAY_SEC\x0160")
    response = peer.put("T", i="TIMER_DELAY_MS\x0160001")
    assert (response.code, response.remark) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay 60000ms; or if set del msg,"
        " the delay time should be bigger than the current time (triomq broker: --timer-max-delay SECONDS)",
    )
    assert len(peer.broker.delayed.timer) == 1


def test_delivered_timer_message_is_not_delayed_on_resend(peer: Peer) -> None:
    put(peer, "TIMER_DELAY_SEC\x0160\x02TIMER_OUT_MS\x0117")
    assert bodies(peer.broker) == [b"body"]


def test_delay_level_has_priority_over_time(peer: Peer, clock: Clock) -> None:
    put(peer, "TIMER_DELAY_SEC\x0160\x02DELAY\x011\x02TIMER_DELIVER_MS\x011")
    peer.broker.delayed.schedule.deliver(clock.now_ms + 1000)
    (message,) = messages(peer.broker)
    assert not {name for name in message.properties if name.startswith("TIMER_")}


def test_dead_letter_is_not_delayed(peer: Peer) -> None:
    assert peer.put("%RETRY%G", i="TIMER_DELAY_SEC\x0160", j=16, l=16).code == ResponseCode.SUCCESS
    assert bodies(peer.broker, "%DLQ%G") == [b"hello"]


def test_full_properties_get_no_timer_times(make_broker: MakeBroker, clock: Clock) -> None:
    peer = Peer(make_broker(HUGE))
    waits = "TIMER_DELAY_SEC\x011\x02TAGS\x01a"
    put(peer, waits + "\x02A\x01" + "x" * (32_767 - len(waits) - 90))
    peer.broker.delayed.timer.deliver(clock.now_ms + 1000)
    (message,) = messages(peer.broker)
    assert message.tags == "a"
    assert "TIMER_DEQUEUE_MS" not in message.properties


def test_messages_reusing_offsets_lost_in_crash_are_delivered(
    make_broker: MakeBroker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker()
    put(Peer(broker), "TIMER_DELAY_SEC\x011", b"before")
    clock.now_ms += 1000
    broker.delayed.timer.deliver(clock.now_ms)
    path = broker.config.store.root / "config" / "timerProgress.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'{"timeMs":%d,"queueOffset":9,"firstOffset":10}' % clock.now_ms)
    broker = make_broker()
    assert "timer progress lowered queue_offset=9 first_offset=10 end=1" in caplog.text
    put(Peer(broker), "TIMER_DELAY_SEC\x015", b"new")
    broker.save_tables()
    broker = make_broker()
    assert broker.delayed.timer.deliver(clock.now_ms + 5000) is None
    assert bodies(broker) == [b"before", b"new"]


def test_units_rebuilt_by_rocketmq_are_read_from_records(broker: Broker, clock: Clock) -> None:
    """Its recovery writes the hash of the tags where we write the time."""
    queue = broker.store.queue(TIMER, 0)
    properties = b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01T\x02REAL_QID\x010" % (clock.now_ms + 5000)
    broker.store.append([entry(queue, b"body", properties, tags_code=tags_code("a"), born_host=HOST, store_host=HOST)])
    queue.append_visible(10**9, 200, 3)
    broker.delayed.timer.load()
    assert len(broker.delayed.timer) == 2
    assert broker.delayed.timer.deliver(clock.now_ms) == clock.now_ms + 5000
    assert broker.delayed.timer.deliver(clock.now_ms + 5000) is None
    assert bodies(broker) == [b"body"]


def test_message_waiting_for_days_is_rewritten_meanwhile(make_broker: MakeBroker, clock: Clock) -> None:
    """Retention would delete it."""
    broker = make_broker(timer_max_delay_s=10 * DAY_S)
    put(Peer(broker), f"TIMER_DELAY_SEC\x01{5 * DAY_S}")
    began = clock.now_ms
    woken = []
    while (next_ms := broker.delayed.timer.deliver(clock.now_ms)) is not None:
        woken.append((next_ms - began) / ROLL_WINDOW_MS)
        clock.now_ms = next_ms
        broker.save_tables()
        broker = make_broker()
    assert woken == [1, 2, 2.5]
    (message,) = messages(broker)
    assert message.store_timestamp - began == 5 * DAY_S * 1000
    assert message.properties["TIMER_ROLL_TIMES"] == "2"
    assert message.properties["TIMER_OUT_MS"] == str(clock.now_ms)


@pytest.mark.parametrize("count", ["x", "9" * 5000])
def test_invalid_roll_count_of_the_sender_is_ignored(make_broker: MakeBroker, clock: Clock, count: str) -> None:
    """Python refuses to make a number of so many digits."""
    broker = make_broker(timer_max_delay_s=10 * DAY_S)
    put(Peer(broker), f"TIMER_ROLL_TIMES\x01{count}\x02TIMER_DELAY_SEC\x01{3 * DAY_S}")
    while (next_ms := broker.delayed.timer.deliver(clock.now_ms)) is not None:
        clock.now_ms = next_ms
    (message,) = messages(broker)
    assert message.properties["TIMER_ROLL_TIMES"] == "1"


@pytest.mark.parametrize("step_ms", [5000, 2000])
def test_clock_set_back_neither_loses_nor_repeats_messages(make_broker: MakeBroker, clock: Clock, step_ms: int) -> None:
    """After a small step a message is due no earlier than the one delivered last, also after a restart."""
    broker = make_broker()
    put(Peer(broker), "TIMER_DELAY_SEC\x0110", b"first")
    clock.now_ms += 10_000
    broker.delayed.timer.deliver(clock.now_ms)
    broker.save_tables()
    clock.now_ms -= step_ms
    put(Peer(make_broker()), "TIMER_DELAY_SEC\x011", b"second")
    broker = make_broker()
    held_ms = 1000 if step_ms == 5000 else step_ms
    assert broker.delayed.timer.deliver(clock.now_ms) == clock.now_ms + held_ms
    clock.now_ms += held_ms
    assert broker.delayed.timer.deliver(clock.now_ms) is None
    assert bodies(broker) == [b"first", b"second"]
    broker.save_tables()
    assert len(make_broker().delayed.timer) == 0


def test_full_next_file_delivers_into_current_one(peer: Peer, clock: Clock) -> None:
    broker = peer.broker
    for number in range(10):
        put(peer, f"TIMER_DELAY_MS\x01{1000 + number}", bytes([number]) * 30_000)
    clock.now_ms += 2000
    append = broker.store.append
    errors = [StoreFullError("no room")]

    def refuse_second(entries: Any, **options: Any) -> Any:
        if bodies(broker) and errors:
            raise errors.pop()
        return append(entries, **options)

    broker.store.append = refuse_second  # type: ignore[method-assign]
    assert broker.delayed.timer.deliver(clock.now_ms) == clock.now_ms + 100
    assert len(bodies(broker)) == 10 - len(broker.delayed.timer) > 0
    assert broker.delayed.timer.progress.done[1] == len(bodies(broker)) - 1
    deliver_all(broker, clock)
    assert [body[0] for body in bodies(broker)] == list(range(10))


def test_only_a_new_earliest_message_wakes_service(peer: Peer, clock: Clock) -> None:
    def wakes(delay_s: int) -> bool:
        peer.broker.delayed.arrived.clear()
        put(peer, f"TIMER_DELAY_SEC\x01{delay_s}")
        return peer.broker.delayed.arrived.is_set()

    assert [wakes(delay_s) for delay_s in (10, 20, 5, 5, 1)] == [True, False, True, False, True]
    clock.now_ms += 1000
    assert peer.broker.delayed.timer.deliver(clock.now_ms) == clock.now_ms + 4000
    assert [wakes(delay_s) for delay_s in (4, 3)] == [False, True]


@pytest.mark.parametrize(("hours", "max_delay_s", "warned"), [(72, 3 * DAY_S, 0), (24, 3 * DAY_S, 1), (24, 3600, 0)])
def test_retention_shorter_than_maximum_delay_is_logged(
    make_broker: MakeBroker, caplog: pytest.LogCaptureFixture, hours: int, max_delay_s: int, warned: int
) -> None:
    make_broker({"retention_hours": hours}, timer_max_delay_s=max_delay_s)
    assert caplog.text.count("may be deleted while they wait") == warned
