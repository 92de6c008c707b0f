from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta

import pytest

from triomq.cli.arguments.values import (
    escape_controls,
    parse_duration,
    parse_hours,
    parse_hours_of_day,
    parse_percent,
    parse_positive,
    parse_property,
    parse_rate,
    parse_size,
    parse_speed,
    parse_start,
    parse_tag,
    parse_tag_expression,
    time_text,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("500", 500), ("500B", 500), ("64KiB", 65536), ("64k", 65536), ("2 MiB", 2 * 1024**2), ("1G", 1024**3)],
)
def test_sizes_are_read_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1.5M", "10 apples", "1TiB", "1iB"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="64MiB"):
        parse_size(text)


@pytest.mark.parametrize(("text", "speed"), [("max", 0), ("0", 0), ("1", 1), ("0.5", 0.5), ("10x", 10)])
def test_a_speed_is_a_factor_or_max(text: str, speed: float) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["", "-1", "fast", "inf", "nan"])
def test_what_is_no_speed_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"0\.5, or max"):
        parse_speed(text)


@pytest.mark.parametrize(("text", "seconds"), [("3", 3), ("1.5s", 1.5), ("10m", 600), ("2h", 7200), ("1d", 86400)])
def test_durations_are_seconds_unless_they_say_otherwise(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-1", "10 minutes"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_duration(text)


@pytest.mark.parametrize(("text", "rate"), [("500", 500), ("500/s", 500), ("0.5", 0.5), ("1e3/s", 1000)])
def test_rates_are_per_second(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["0", "-5", "fast", "inf", "nan", "5/m"])
def test_a_rate_that_cannot_be_kept_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="500/s"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.0", "many", ""])
def test_counts_are_whole_numbers_above_zero(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_positive(text)
    assert parse_positive("12") == 12


def test_property_value_may_be_empty_or_contain_separator() -> None:
    assert parse_property("a=") == ("a", "")
    assert parse_property("a=b=c") == ("a", "b=c")


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_a_property_without_name_or_separator_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="name=value"):
        parse_property(text)


def test_a_start_is_a_word_or_a_time_with_a_zone() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start("latest") == "latest"
    assert parse_start("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    local = parse_start("2026-01-31T12:00")
    assert isinstance(local, datetime)
    assert local.tzinfo is not None
    assert local.replace(tzinfo=None) == datetime(2026, 1, 31, 12)  # noqa: DTZ001  # local time is what is tested


def test_a_relative_start_is_that_long_ago() -> None:
    start = parse_start("-10m")
    assert isinstance(start, datetime)
    assert timedelta(minutes=9, seconds=50) < datetime.now(UTC) - start < timedelta(minutes=10, seconds=10)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "10m", "-", "-10y", "2026-13-01", "0001-01-01", "-9999999d", "-99999999999d", f"-{'9' * 400}"],
)
def test_what_is_no_start_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="earliest, latest"):
        parse_start(text)


def test_control_characters_are_escaped_and_other_text_kept() -> None:
    assert escape_controls("\x1b[31mred\x07") == "\\x1b[31mred\\x07"
    assert escape_controls("one\ntwo\tthree") == "one\\ntwo\\tthree"
    assert escape_controls("träne 涙 \u202e") == "träne 涙 \\u202e"


def test_a_time_is_text_also_if_no_calendar_has_it() -> None:
    assert time_text(1_769_860_800_001, UTC) == "2026-01-31T12:00:00.001+00:00"
    assert time_text(-1, UTC) == "1969-12-31T23:59:59.999+00:00"
    for milliseconds in (2**63 - 1, -(2**63), 10**15):
        assert time_text(milliseconds) == f"{milliseconds} ms"


def test_hours_may_have_fractions() -> None:
    assert [parse_hours("72"), parse_hours("0.5"), parse_hours("0")] == [72, 0.5, 0]


@pytest.mark.parametrize("text", ["", "-1", "inf", "nan", "3d"])
def test_what_is_no_number_of_hours_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="write 72"):
        parse_hours(text)


def test_hours_of_the_day_are_separated_as_rocketmq_does() -> None:
    assert parse_hours_of_day("04") == (4,)
    assert parse_hours_of_day("4; 16;23") == (4, 16, 23)


@pytest.mark.parametrize("text", ["", "24", "4;", "4,5", "-1", "four"])
def test_what_is_no_hour_of_the_day_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="0 to 23"):
        parse_hours_of_day(text)


def test_a_percentage_may_have_its_sign() -> None:
    assert [parse_percent("75"), parse_percent("75 %"), parse_percent("1"), parse_percent("100")] == [75, 75, 1, 100]


@pytest.mark.parametrize("text", ["", "0", "101", "7.5", "-3"])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="1 to 100"):
        parse_percent(text)


@pytest.mark.parametrize("text", ["*", "a", "TagA || TagB"])
def test_tag_expression_is_kept(text: str) -> None:
    assert parse_tag_expression(text) == text


@pytest.mark.parametrize("text", ["a && b", "a OR b", "a | b", "||"])
def test_tag_expression_that_never_matches_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="tag expression"):
        parse_tag_expression(text)


def test_tag_that_no_consumer_can_select_is_refused() -> None:
    assert parse_tag("a b") == "a b"
    for text in ("a||b", " "):
        with pytest.raises(ArgumentTypeError, match="no consumer can select"):
            parse_tag(text)
