"""Copies of messages: what replay and redrive keep, when and where replay sends them."""

import pytest
import trio
from trio.testing import MockClock

from tests.records import make_record
from tests.unit.client.consumer.fake_cluster import make_message
from triomq.client.admin.dead_letters import as_new, original_topic
from triomq.client.admin.replay import Pace, choose_queue, copy_properties
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName, decode_properties, encode_properties
from triomq.protocol.record.record import decode_record

RETRY = "%RETRY%G2"


def letter(properties: dict[str, str]) -> MessageExt:
    return decode_record(make_record(flag=5, topic=b"%DLQ%G", properties=encode_properties(properties)))


@pytest.mark.parametrize(
    ("speed", "due_s"),
    [(1.0, [0, 0.25, 0.25, 10]), (2.0, [0, 0.125, 0.125, 5]), (0.5, [0, 0.5, 0.5, 20]), (None, [0] * 4)],
)
async def test_messages_are_as_far_apart_as_they_were(
    autojump_clock: MockClock, speed: float | None, due_s: list[float]
) -> None:
    began, pace, times = trio.current_time(), Pace(speed), []
    for store_ms in (1_795_000_000_000, 1_795_000_000_250, 1_795_000_000_200, 1_795_000_010_000):
        await pace.wait(store_ms)  # clocks of brokers may step back
        times.append(trio.current_time() - began)
    assert times == pytest.approx(due_s)


def test_messages_of_one_queue_go_to_one_queue() -> None:
    queues = [MessageQueue(RETRY, broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]
    chosen = []
    for broker, queue_id in (("b", 0), ("b", 1), ("b", 2), ("a", 5), ("gone", 6)):
        message = make_message(0)
        message.broker_name, message.queue_id = broker, queue_id
        chosen.append(queues.index(choose_queue(queues, message)))
    assert chosen == [2, 3, 2, 1, 2]


def test_copy_keeps_user_properties_only() -> None:
    properties = {str(value): "1" for name, value in vars(PropertyName).items() if name.isupper()}
    message = letter({**properties, "color": "red"})
    assert decode_properties(copy_properties(message, "NS%T").encode()) == {
        "color": "red",
        "KEYS": "1",
        "TAGS": "1",
        "UNIQ_KEY": "1",
        "__SHARDINGKEY": "1",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "1",  # users may set it, only half messages obey it
        "RETRY_TOPIC": "NS%T",
        "ORIGIN_MESSAGE_ID": message.offset_message_id,
        "WAIT": "true",
    }


USERS = {"color": "red", "CHECK_IMMUNITY_TIME_IN_SECONDS": "5"}
BOOKKEEPING = {
    "RETRY_TOPIC": "orders",
    "ORIGIN_MESSAGE_ID": "7F00",
    "RECONSUME_TIME": "3",
    "MAX_RECONSUME_TIMES": "16",
    "DELAY": "3",
    "REAL_TOPIC": "%RETRY%G",
    "REAL_QID": "0",
    "UNIQ_KEY": "C0A8",
    "TRAN_MSG": "true",
    "TIMER_DELIVER_MS": "1",
    "__STARTDELIVERTIME": "1",
    "MIN_OFFSET": "0",
}


def test_resend_keeps_user_properties_and_drops_retry_metadata() -> None:
    message = letter({**USERS, **BOOKKEEPING, "TAGS": "a||b", "KEYS": "k l", "__SHARDINGKEY": "s"})
    new = as_new(message, "orders")  # with a tag that our producers refuse
    assert (new.topic, new.body, new.tags, tuple(new.keys), new.flag) == ("orders", b"body", "a||b", ("k", "l"), 5)
    assert (dict(new.properties), new.sharding_key, new.delay_level) == (USERS, "s", 0)


@pytest.mark.parametrize(
    ("properties", "topic"),
    [
        ({"RETRY_TOPIC": "a", "DLQ_ORIGIN_TOPIC": "b"}, "a"),
        ({"DLQ_ORIGIN_TOPIC": "b"}, "b"),
        ({"REAL_TOPIC": "%RETRY%G"}, None),
    ],
)
def test_first_noted_original_topic_counts(properties: dict[str, str], topic: str | None) -> None:
    assert original_topic(letter(properties)) == topic
