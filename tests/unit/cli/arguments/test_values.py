from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from triomq.cli.arguments.values import (
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
)
from triomq.cli.output import escape_controls, time_text

READ: list[tuple[Callable[[str], object], dict[str, object]]] = [
    (parse_size, {"0": 0, "500": 500, "500B": 500, "64KiB": 65536, "64k": 65536, "2 MiB": 2 * 1024**2, "1G": 1024**3}),
    (parse_speed, {"max": 0, "0": 0, "1": 1, "0.5": 0.5, "10x": 10}),
    (parse_duration, {"3": 3, "1.5s": 1.5, "10m": 600, "2h": 7200, "1d": 86400}),
    (parse_rate, {"500": 500, "500/s": 500, "0.5": 0.5, "1e3/s": 1000}),
    (parse_positive, {"12": 12}),
    (parse_property, {"a=": ("a", ""), "a=b=c": ("a", "b=c")}),
    (parse_hours, {"72": 72, "0.5": 0.5, "0": 0}),
    (parse_hours_of_day, {"04": (4,), "4; 16;23": (4, 16, 23)}),
    (parse_percent, {"75": 75, "75 %": 75, "0": 0, "100": 100}),
    (parse_tag_expression, {"*": "*", "a": "a", "TagA || TagB": "TagA || TagB"}),
    (parse_tag, {"a b": "a b"}),
]
REFUSED: list[tuple[Callable[[str], object], str, tuple[str, ...]]] = [
    (parse_size, "64MiB", ("", "KiB", "-1", "1.5M", "10 apples", "1TiB", "1iB")),
    (parse_speed, r"0\.5, or max", ("", "-1", "fast", "inf", "nan")),
    (parse_duration, "10m", ("", "m", "-1", "10 minutes")),
    (parse_rate, "500/s", ("0", "-5", "fast", "inf", "nan", "5/m")),
    (parse_positive, "whole number above 0", ("0", "-1", "1.0", "many", "")),
    (parse_property, "name=value", ("a", "=b", "")),
    (
        parse_start,
        "earliest, latest",
        (
            "",
            "yesterday",
            "10m",
            "-",
            "-10y",
            "2026-13-01",
            "0001-01-01",
            "-9999999d",
            "-99999999999d",
            f"-{'9' * 400}",
        ),
    ),
    (parse_hours, "write 72", ("", "-1", "inf", "nan", "3d")),
    (parse_hours_of_day, "0 to 23", ("", "24", "4;", "4,5", "-1", "four")),
    (parse_percent, "0 to 100", ("", "-1", "101", "7.5", "-3")),
    (parse_tag_expression, "tag expression", ("a && b", "a OR b", "a | b", "||")),
    (parse_tag, "no consumer can select", ("a||b", " ")),
]


@pytest.mark.parametrize(
    ("read", "text", "value"), [(read, text, value) for read, values in READ for text, value in values.items()]
)
def test_value_is_read(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "advice", "text"), [(read, advice, text) for read, advice, texts in REFUSED for text in texts]
)
def test_wrong_value_is_refused_with_advice(read: Callable[[str], object], advice: str, text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=advice):
        read(text)


def test_a_start_is_a_word_or_a_time() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start("latest") == "latest"
    assert parse_start("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    local = parse_start("2026-01-31T12:00")
    assert isinstance(local, datetime)
    assert local.tzinfo is not None
    assert local.replace(tzinfo=None) == datetime(2026, 1, 31, 12)  # noqa: DTZ001  # the test is about local time


def test_a_relative_start_is_that_long_ago() -> None:
    start = parse_start("-10m")
    assert isinstance(start, datetime)
    assert timedelta(minutes=9, seconds=50) < datetime.now(UTC) - start < timedelta(minutes=10, seconds=10)


def test_control_characters_are_escaped_and_other_text_kept() -> None:
    assert escape_controls("\x1b[31mred\x07") == "\\x1b[31mred\\x07"
    assert escape_controls("one\ntwo\tthree") == "one\\ntwo\\tthree"
    assert escape_controls("träne 涙 \u202e") == "träne 涙 \\u202e"


def test_times_outside_the_calendar_are_numbers() -> None:
    assert time_text(1_769_860_800_001, UTC) == "2026-01-31T12:00:00.001+00:00"
    assert time_text(-1, UTC) == "1969-12-31T23:59:59.999+00:00"
    for milliseconds in (2**63 - 1, -(2**63), 10**15):
        assert time_text(milliseconds) == f"{milliseconds} ms"
