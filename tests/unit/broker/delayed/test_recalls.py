"""Delayed messages that are taken back: by request 370 and by ``TIMER_DEL_UNIQKEY``, across restarts and rolls."""

from typing import Any

import pytest

from tests.unit.broker.delayed.test_levels import bodies, messages
from tests.unit.broker.delayed.test_timer import DAY_S, deliver_all, put
from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.record.message_id import RecallHandle
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.delays import ROLL_WINDOW_MS


def send(peer: Peer, message_id: str, delay_ms: int, body: bytes = b"body") -> str:
    response = peer.put("T", body, i=f"TIMER_DELAY_MS\x01{delay_ms}\x02UNIQ_KEY\x01{message_id}")
    return response.ext_fields["recallHandle"]


def recall(peer: Peer, handle: str, **fields: Any) -> RemotingCommand:
    return peer.get(RequestCode.RECALL_MESSAGE, {"producerGroup": "P", "topic": "T", "recallHandle": handle, **fields})


def test_recalled_message_is_not_delivered(peer: Peer, clock: Clock) -> None:
    handle = send(peer, "A", 5000, b"a")
    assert RecallHandle.decode(handle) == ("T", "broker-a", clock.now_ms + 5000, "A")
    send(peer, "B", 5000, b"b")
    clock.now_ms += 2000
    response = recall(peer, handle)
    assert (response.code, response.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "A")
    assert recall(peer, handle).code == ResponseCode.SUCCESS  # again
    send(peer, "A", 10_000, b"another message with this id")
    clock.now_ms += 3000
    deliver_all(peer.broker, clock)
    assert bodies(peer.broker) == [b"b"]
    clock.now_ms += 60_000
    deliver_all(peer.broker, clock)
    assert bodies(peer.broker) == [b"b", b"another message with this id"]
    assert len(peer.broker.delayed.timer) == 0


@pytest.mark.parametrize("lead_ms", [1, 500, 1000, 4000])
def test_recall_works_until_due_time(peer: Peer, clock: Clock, lead_ms: int) -> None:
    handle = send(peer, "A", 5000)
    send(peer, "B", 4000, b"b")
    clock.now_ms += 5000 - lead_ms
    deliver_all(peer.broker, clock)
    assert recall(peer, handle).code == ResponseCode.SUCCESS
    clock.now_ms += lead_ms
    deliver_all(peer.broker, clock)
    assert bodies(peer.broker) == [b"b"]


@pytest.mark.parametrize("key", ["A", "T+A"])
def test_message_with_delete_key_recalls_too(peer: Peer, clock: Clock, key: str) -> None:
    due_ms = clock.now_ms + 5000
    put(peer, f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01A")
    put(peer, f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01D\x02TIMER_DEL_UNIQKEY\x01{key}")
    clock.now_ms += 10_000
    deliver_all(peer.broker, clock)
    assert bodies(peer.broker) == []
    refused = peer.put("T", i=f"TIMER_DELIVER_MS\x01{due_ms}\x02TIMER_DEL_UNIQKEY\x01{key}")
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("key", ["A", "T+A"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_delete_key_recalls_only_from_its_topic(
    make_broker: MakeBroker, clock: Clock, key: str, is_restarted: bool
) -> None:
    peer = Peer(make_broker())
    due_ms = clock.now_ms + 5000
    send(peer, "A", 5000, b"a")
    recall(peer, send(peer, "B", 5000, b"b"))
    put(peer, f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01D\x02TIMER_DEL_UNIQKEY\x01{key}", b="U")
    clock.now_ms += 4500
    deliver_all(peer.broker, clock)
    if is_restarted:
        peer.broker.save_tables()
        peer = Peer(make_broker())
    clock.now_ms += 500
    deliver_all(peer.broker, clock)
    assert bodies(peer.broker) == [b"a"]


def test_recall_survives_restarts(make_broker: MakeBroker, clock: Clock) -> None:
    broker = make_broker()
    handles = [send(Peer(broker), f"ID{number}", 3000 + 100 * number, b"%d" % number) for number in range(30)]
    for handle in handles[::2]:
        recall(Peer(broker), handle)
    for _ in range(70):
        clock.now_ms += 100
        deliver_all(broker, clock)
        broker.save_tables()
        broker = make_broker()
    assert bodies(broker) == [b"%d" % number for number in range(1, 30, 2)]


def test_recall_works_for_rolled_messages(make_broker: MakeBroker, clock: Clock) -> None:
    broker = make_broker(timer_max_delay_s=10 * DAY_S)
    handle = send(Peer(broker), "A", 5 * DAY_S * 1000)
    clock.now_ms += ROLL_WINDOW_MS // 3
    recall(Peer(broker), handle)
    while (next_ms := broker.delayed.timer.deliver(clock.now_ms)) is not None:
        clock.now_ms = next_ms
        broker.save_tables()
        broker = make_broker(timer_max_delay_s=10 * DAY_S)
    assert bodies(broker) == []
    assert len(messages(broker, "rmq_sys_wheel_timer")) > 4


def test_only_timed_messages_with_id_have_handles(peer: Peer) -> None:
    for properties in ("UNIQ_KEY\x01A", "TIMER_DELAY_MS\x015000", "DELAY\x013\x02UNIQ_KEY\x01A"):
        assert "recallHandle" not in peer.put("T", i=properties).ext_fields


def test_other_handles_are_refused(peer: Peer, clock: Clock) -> None:
    good = RecallHandle("T", "broker-a", clock.now_ms + 5000, "A")
    peer.put("T")
    for handle in (
        "", "garbage!", "djEgYQ==", good._replace(topic="U").encode(), good._replace(broker_name="other").encode(),
        good._replace(deliver_ms=clock.now_ms).encode(), good._replace(deliver_ms=clock.now_ms + 10**10).encode(),
    ):  # fmt: skip
        assert recall(peer, handle).code == ResponseCode.ILLEGAL_OPERATION, handle
    assert recall(peer, good.encode(), topic="unknown").code == ResponseCode.TOPIC_NOT_EXIST
