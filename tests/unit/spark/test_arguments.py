import argparse

import pytest

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
    add_stream_arguments(parser)
    return parser.parse_args(words)


def test_arguments_of_a_stream_become_options_of_the_source() -> None:
    assert stream_options(parse("--subscribe", "T")) == {"subscribe": "T", "startingOffsets": "earliest"}
    found = stream_options(parse("--subscribe", "T", "--tags", "A", "--max-per-trigger", "9", "--from", "latest"))
    assert found == {"subscribe": "T", "startingOffsets": "latest", "tags": "A", "maxOffsetsPerTrigger": "9"}


def test_what_spark_submit_needs_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--print-submit")
    assert ended.value.code == 0
    words = capsys.readouterr().out.split()
    assert words[:2] == ["--conf", words[1]]
    assert words[1].startswith("spark.driver.extraJavaOptions=-Dlog4j2.configurationFile=file:///")
    assert words[-1].endswith("/consume.py")
