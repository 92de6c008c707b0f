import trio
from trio.testing import MockClock

from triomq.cli.commands.produce import Tally, summary_line
from triomq.protocol.errors import NoRouteError
from triomq.protocol.record.message import Message


async def test_a_summary_tells_sent_and_failed_messages_and_the_latency(autojump_clock: MockClock) -> None:
    tally = Tally()
    await trio.sleep(2)
    tally.succeeded([Message("T", b"abc"), Message("T", b"de")], 0.5)
    tally.refused(3, NoRouteError("no T\nthere"))
    tally.refused(1, NoRouteError("later"))
    tally.unanswered = 1
    summary = tally.summary("T", 7)
    assert summary == {
        "topic": "T",
        "sent": 2,
        "failed": 4,
        "unanswered": 1,
        "skipped_blank_lines": 7,
        "bytes": 5,
        "seconds": 2.0,
        "messages_per_s": 1,
        "requests": 1,
        "p50_ms": 500.0,
        "p99_ms": 500.0,
        "error": "no T there",
    }
    assert summary_line(summary) == (
        "sent 2 messages, 5 bytes, in 2.00 s: 1/s, p50 500.0 ms, p99 500.0 ms; 4 failed; "
        "1 without answer: perhaps stored; 7 blank lines left out\n"
    )


async def test_a_summary_of_nothing_has_no_rate() -> None:
    summary = Tally().summary("T", 0)
    assert (summary["messages_per_s"], summary["p50_ms"], summary["error"]) == (None, None, None)
    assert summary_line(summary) == "sent 0 messages, 0 bytes, in 0.00 s\n"
