import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from triomq.cli.tally import Histogram, Tally, summary_line
from triomq.protocol.errors import NoRouteError
from triomq.protocol.record.message import Message


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=200), st.sampled_from([1.0, 50.0, 90.0, 99.0, 100.0]))
def test_percentile_is_close_to_the_exact_one(durations: list[float], percent: float) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    exact = sorted(durations)[max(0, -int(-len(durations) * percent // 100) - 1)]
    found = histogram.percentile_s(percent)
    assert found is not None
    assert exact * (1 - 1e-9) <= found <= exact * 1.023
    assert histogram.longest_s == max(durations)


def test_a_duration_may_count_many_times() -> None:
    histogram = Histogram()
    histogram.add(0.001, 99)
    histogram.add(1.0)
    assert histogram.count == 100
    assert histogram.percentile_ms(99) == pytest.approx(1, rel=0.023)
    assert histogram.percentile_ms(100) == 1000


async def test_summary_reports_sent_and_failed_counts_and_latency(autojump_clock: MockClock) -> None:
    tally = Tally()
    await trio.sleep(2)
    tally.succeeded([Message("T", b"abc"), Message("T", b"de")], 0.5)
    tally.failed_with(NoRouteError("no T\nthere"), 3, "lines 3 to 5: ")
    tally.failed_with(NoRouteError("later"))
    tally.unanswered = 1
    tally.unsent = 8
    summary = tally.summary("T", 7)
    assert summary == {
        "topic": "T",
        "sent": 2,
        "failed": 4,
        "unsent": 8,
        "unanswered": 1,
        "skipped_blank_lines": 7,
        "bytes": 5,
        "seconds": 2.0,
        "messages_per_s": 1,
        "requests": 1,
        "p50_ms": 500.0,
        "p99_ms": 500.0,
        "error": "lines 3 to 5: no T there",
        "recall_handle": None,
    }
    assert summary_line(summary) == (
        "sent 2 messages, 5 bytes, in 2.00 s: 1/s, p50 500.0 ms, p99 500.0 ms; 4 failed; 8 read but not sent; "
        "1 without an answer: perhaps stored; skipped 7 blank lines\n"
    )


async def test_summary_of_delayed_message_has_recall_command() -> None:
    tally = Tally()
    tally.succeeded([Message("T", b"a")], 0.5, "HANDLE")
    assert summary_line(tally.summary("T", 0)).startswith("sent 1 message, 1 byte, in ")
    assert "\ntake it back with: triomq message recall HANDLE\n" in summary_line(tally.summary("T", 0))
    tally.succeeded([Message("T", b"a")], 0.5, "OTHER")
    assert "recall" not in summary_line(tally.summary("T", 0))


async def test_a_summary_of_nothing_has_no_rate() -> None:
    summary = Tally().summary("T", 1)
    assert (summary["messages_per_s"], summary["p50_ms"], summary["error"]) == (None, None, None)
    assert summary_line(summary) == "sent 0 messages, 0 bytes, in 0.00 s; skipped 1 blank line\n"


@pytest.mark.parametrize(("rate", "printed"), [(10, "10/s"), (None, "12/s"), (0.5, "0.5/s")])
async def test_rate_of_few_messages_counts_from_first(
    autojump_clock: MockClock, rate: float | None, printed: str
) -> None:
    tally = Tally()
    await trio.sleep(60)  # connecting
    for _ in range(5):
        tally.sending(1)
        tally.succeeded([Message("T", b"a")], 0.0)
        tally.unanswered -= 1
        await trio.sleep(0.1)
    assert f", in 0.40 s: {printed}" in summary_line(tally.summary("T", 0, rate))
