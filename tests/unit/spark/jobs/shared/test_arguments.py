import argparse

import pytest

from triomq.protocol.errors import ConfigError
from triomq.spark.jobs.shared.arguments import JobParser, add_stream_arguments, start_options, stream_options


@pytest.mark.parametrize(
    ("edge", "start", "options"),
    [
        ("starting", None, {}),
        ("starting", "latest", {"startingOffsets": "latest"}),
        ("starting", "5", {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}),
        ("ending", "2026-01-01", {"endingTimestamp": "2026-01-01"}),
    ],
)
def test_an_end_of_a_range_is_a_word_or_a_time(edge: str, start: str | None, options: dict[str, str]) -> None:
    assert start_options(edge, start) == options


def parse(*words: str) -> argparse.Namespace:
    parser = JobParser("consume", "")
    add_stream_arguments(parser, own_checkpoint="none")
    return parser.parse_args(words)


def test_arguments_of_a_stream_become_options_of_the_source() -> None:
    assert stream_options(parse("--subscribe", "T")) == {"subscribe": "T", "startingOffsets": "earliest"}
    found = stream_options(parse("--subscribe", "T", "--tags", "A", "--max-per-trigger", "9", "--from", "latest"))
    assert found == {"subscribe": "T", "startingOffsets": "latest", "tags": "A", "maxOffsetsPerTrigger": "9"}


@pytest.mark.parametrize("text", ["10 seconds", "1 hour 30 minutes", "interval 2 days", "500 milliseconds", "1 Minute"])
def test_an_interval_is_as_spark_reads_it(text: str) -> None:
    assert parse("--subscribe", "T", "--follow", "--trigger", text).trigger == text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trigger", "soon"), "argument --trigger: 'soon' is not an interval"),
        (("--trigger", "10"), "argument --trigger: '10' is not an interval"),
        (("--max-per-trigger", "0"), "argument --max-per-trigger: '0' is not a whole number above 0"),
    ],
)
def test_invalid_value_error_names_command_line_option(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--subscribe", "T", *words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_trigger_without_follow_and_bad_start_are_rejected() -> None:
    with pytest.raises(ConfigError, match="--trigger needs --follow"):
        stream_options(parse("--subscribe", "T", "--trigger", "1 second"))
    with pytest.raises(ConfigError, match="--from soon is neither milliseconds"):
        stream_options(parse("--subscribe", "T", "--from", "soon"))
    with pytest.raises(ConfigError, match="--to soon is neither milliseconds"):
        start_options("ending", "soon")


def test_what_spark_submit_needs_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--print-submit")
    assert ended.value.code == 0
    words = capsys.readouterr().out.split()
    assert words[:2] == ["--conf", words[1]]
    assert words[1].startswith("spark.driver.extraJavaOptions=-Dlog4j2.configurationFile=file:///")
    assert words[-1].endswith("/consume.py")
