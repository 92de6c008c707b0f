"""What of a dead letter goes back to its topic."""

import pytest

from tests.records import make_record
from triomq.client.admin.dead_letters import as_new, original_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record

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


def letter(properties: dict[str, str]) -> MessageExt:
    return decode_record(make_record(flag=5, topic=b"%DLQ%G", properties=encode_properties(properties)))


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
