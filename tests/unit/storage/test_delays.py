import pytest

from triomq.protocol.errors import ConfigError, MessageIllegalError
from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.storage.delays import (
    ROLL_WINDOW_MS,
    DelayLevels,
    requested_level,
    requested_time,
    stored_tags_code,
    stored_time,
    wake_time,
    without_request,
)


def test_level_above_highest_is_highest() -> None:
    assert DelayLevels("1s 2m").delivery_time(99, 1_000_000) == 1_120_000
    assert DelayLevels("1s 2m").delivery_time(1, 1_000_000) == 1_001_000


def test_all_units_are_understood() -> None:
    assert DelayLevels("1s 1m 1h 1d").delays_ms == (1000, 60_000, 3_600_000, 86_400_000)


@pytest.mark.parametrize("text", ["", "  ", "5", "5x", "s", "0s", "-1s", "1s 2 3m", "\u0661s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        DelayLevels(text)


@pytest.mark.parametrize(
    ("properties", "level"),
    [(b"", 0), (b"DELAY\x017", 7), (b"DELAY\x01+7\x02a\x01b", 7), (b"DELAY\x01-7", 0), (b"MYDELAY\x017", 0)],
)
def test_message_asks_for_level_by_property(properties: bytes, level: int) -> None:
    assert requested_level(properties) == level


@pytest.mark.parametrize("value", [b"x", b"7s", b"\xd9\xa1", b"12345678901", b"9" * 5000])
def test_level_must_be_number(value: bytes) -> None:
    with pytest.raises(MessageIllegalError, match="not a number"):
        requested_level(b"DELAY\x01" + value)


NOW = 1_800_000_000_000
DAY = 86_400_000


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"TAGS\x01a", None),
        (b"TIMER_DELIVER_MS\x011800000000005", NOW + 5),
        (b"TIMER_DELIVER_MS\x0117", 17),
        (b"TIMER_DELAY_SEC\x013", NOW + 3000),
        (b"TIMER_DELAY_SEC\x01-3", NOW - 3000),
        (b"TIMER_DELAY_MS\x013", NOW + 3),
        (b"TIMER_DELIVER_MS\x0117\x02TIMER_DELAY_MS\x013", NOW + 3),
        (b"TIMER_DELAY_MS\x013\x02TIMER_DELAY_SEC\x013", NOW + 3000),
        (b"TIMER_DELAY_SEC\x01\x02TIMER_DELAY_MS\x013", NOW + 3),
        (b"TIMER_DELAY_SEC\x013\x02TIMER_OUT_MS\x0117", None),
    ],
)
def test_first_requested_delay_applies_unless_already_waited(properties: bytes, expected: int | None) -> None:
    assert requested_time(properties, NOW) == expected


@pytest.mark.parametrize("value", [b"soon", b"1.5", b" 1", b"9" * 19])
def test_delivery_time_must_be_number(value: bytes) -> None:
    with pytest.raises(MessageIllegalError, match=r"TIMER_DELAY_MS .* is not a number of at most 18 digits"):
        requested_time(b"TIMER_DELAY_MS\x01" + value, NOW)


def test_only_requests_are_taken_out() -> None:
    properties = b"TIMER_DELAY_SEC\x013\x02TAGS\x01a\x02TIMER_DELIVER_MS\x0117\x02TIMER_DELAY_MS\x013"
    assert without_request(properties) == b"TAGS\x01a"


@pytest.mark.parametrize(("value", "expected"), [(b"17", 17), (b"", 0), (b"x", 0), (b"9" * 30, 0)])
def test_time_that_cannot_be_read_is_long_ago(value: bytes, expected: int) -> None:
    assert stored_time(b"TAGS\x01a\x02TIMER_OUT_MS\x01" + value) == expected


@pytest.mark.parametrize(
    ("waits_ms", "expected"),
    [
        (0, 0),
        (-5, -5),
        (ROLL_WINDOW_MS - 1, ROLL_WINDOW_MS - 1),
        (ROLL_WINDOW_MS, ROLL_WINDOW_MS // 2),
        (ROLL_WINDOW_MS + ROLL_WINDOW_MS // 3 - 1, ROLL_WINDOW_MS // 2),
        (ROLL_WINDOW_MS + ROLL_WINDOW_MS // 3, ROLL_WINDOW_MS),
        (40 * DAY, ROLL_WINDOW_MS),
    ],
)
def test_message_that_waits_for_days_looked_at_before(waits_ms: int, expected: int) -> None:
    assert wake_time(NOW + waits_ms, NOW) == NOW + expected


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        ("T", b"DELAY\x012", 7),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x012", 60_050),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x015", 60_050),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x010", 7),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x01-1", 7),
        ("SCHEDULE_TOPIC_XXXX", b"TAGS\x01x", 7),
        ("rmq_sys_wheel_timer", b"TIMER_OUT_MS\x01777", 777),
        ("rmq_sys_wheel_timer", b"TIMER_OUT_MS\x01172800050", 86_400_050),
        ("rmq_sys_wheel_timer", b"TAGS\x01x", 0),
        ("T", b"TIMER_OUT_MS\x01777", 7),
    ],
)
def test_tags_code_of_delayed_record_delivery_time(topic: str, properties: bytes, code: int) -> None:
    found = RecordCheck(RecordKind.MESSAGE, 100, topic=topic, properties=properties, store_timestamp=50, tags_code=7)
    assert stored_tags_code(DelayLevels("1s 1m"))(found) == code
