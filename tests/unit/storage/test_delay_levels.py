import pytest

from triomq.protocol.errors import ConfigError, MessageIllegalError
from triomq.storage.delay_levels import DelayLevels, requested_level


def test_default_levels_are_rocketmqs_eighteen() -> None:
    levels = DelayLevels()
    assert levels.max_level == 18
    assert levels.delays_ms[:5] == (1000, 5000, 10_000, 30_000, 60_000)
    assert levels.delays_ms[-1] == 7_200_000


def test_a_level_above_the_highest_is_the_highest() -> None:
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
def test_a_message_asks_for_a_level_by_a_property(properties: bytes, level: int) -> None:
    assert requested_level(properties) == level


@pytest.mark.parametrize("value", [b"x", b"7s", b"\xd9\xa1", b"12345678901", b"9" * 5000])
def test_a_level_that_is_no_number_is_illegal(value: bytes) -> None:
    with pytest.raises(MessageIllegalError, match="no number"):
        requested_level(b"DELAY\x01" + value)
