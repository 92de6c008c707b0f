"""Counts the results of ``triomq produce``, with the latencies in little memory."""

import math
from typing import Any, Final

import trio

from triomq.cli.errors import one_line
from triomq.cli.output import plural
from triomq.protocol.errors import TriomqError
from triomq.protocol.record.message import Message

_PER_DOUBLING: Final = 32
"""Buckets per doubling: the error of a percentile is at most 2.2 %."""
_SMALLEST_S: Final = 1e-6


class Histogram:
    """Durations in exponential buckets."""

    __slots__ = ("_buckets", "count", "longest_s")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.longest_s = 0.0

    def add(self, duration_s: float, times: int = 1) -> None:
        """Count a duration."""
        bucket = math.ceil(math.log2(max(duration_s, _SMALLEST_S)) * _PER_DOUBLING)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += times
        self.longest_s = max(self.longest_s, duration_s)

    def percentile_s(self, percent: float) -> float | None:
        """Return a percentile, ``None`` without durations."""
        wanted = self.count * percent / 100
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed >= wanted:
                return min(math.exp2(bucket / _PER_DOUBLING), self.longest_s)
        return None

    def percentile_ms(self, percent: float) -> float | None:
        """Return a percentile in milliseconds, with three decimals."""
        found = self.percentile_s(percent)
        return None if found is None else round(found * 1000, 3)


class Tally:
    """Counts of messages and the latency of requests.

    Attributes:
        sent: messages stored by a broker.
        failed: messages that could not be read or sent.
        unsent: messages read but not sent when the command had to end.
        unanswered: messages in flight when the command had to end: perhaps stored.
        sent_bytes: total length of their bodies.
        began, ended: times of the first request and the last answer.
        latencies: of the requests.
        recall_handle: takes the message back that was sent last, if it is delayed and the broker allows it.
        first_error: the first failure.
        first_place: its input line, as a prefix for its text.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.failed = 0
        self.unsent = 0
        self.unanswered = 0
        self.sent_bytes = 0
        self.recall_handle: str | None = None
        self.latencies: Final = Histogram()
        self.first_error: TriomqError | None = None
        self.first_place = ""
        self.began = trio.current_time()
        self.ended = self.began

    def sending(self, messages: int) -> None:
        """Count messages of a request that is about to be sent."""
        if not self.unanswered and not self.latencies.count:
            self.began = trio.current_time()
        self.unanswered += messages

    def succeeded(self, messages: list[Message], took_s: float, recall_handle: str | None = None) -> None:
        """Count a request that a broker accepted."""
        self.sent += len(messages)
        self.recall_handle = recall_handle
        self.sent_bytes += sum([len(message.body) for message in messages])
        self.latencies.add(took_s)
        self.ended = trio.current_time()

    def failed_with(self, error: TriomqError, messages: int = 1, place: str = "") -> None:
        """Count messages that were not sent; ``place`` names their input lines."""
        self.failed += messages
        if self.first_error is None:
            self.first_error, self.first_place = error, place

    @property
    def error_text(self) -> str | None:
        """The first error on one line, with the number of its input line."""
        return None if self.first_error is None else self.first_place + one_line(self.first_error)

    def summary(self, topic: str, skipped: int, rate: float | None = None) -> dict[str, Any]:
        """Return the output of ``--json``; ``rate`` is the limit of messages per second."""
        seconds = self.ended - self.began
        per_s = self.sent / seconds if seconds else None
        if per_s and rate:  # n messages have n - 1 pauses between them
            per_s = min(per_s, rate)
        return {
            "topic": topic,
            "sent": self.sent,
            "failed": self.failed,
            "unsent": self.unsent,
            "unanswered": self.unanswered,
            "skipped_blank_lines": skipped,
            "bytes": self.sent_bytes,
            "seconds": round(seconds, 3),
            "messages_per_s": per_s and round(per_s, 1 if per_s < _FEW else None),
            "requests": self.latencies.count,
            "p50_ms": self.latencies.percentile_ms(50),
            "p99_ms": self.latencies.percentile_ms(99),
            "error": self.error_text,
            "recall_handle": self.recall_handle if self.sent == 1 else None,
        }


def summary_line(summary: dict[str, Any]) -> str:
    """Return the summary as a sentence."""
    text = f"sent {plural(summary['sent'], 'message')}, {plural(summary['bytes'], 'byte')}"
    text += f", in {summary['seconds']:.2f} s"
    if summary["sent"] and summary["messages_per_s"]:
        text += f": {summary['messages_per_s']:g}/s, p50 {summary['p50_ms']} ms, p99 {summary['p99_ms']} ms"
    for name, words in _REMARKS:
        if summary[name]:
            text += f"; {summary[name]} {words}"
    if summary["skipped_blank_lines"]:
        text += f"; skipped {plural(summary['skipped_blank_lines'], 'blank line')}"
    if summary["recall_handle"]:
        text += f"\ntake it back with: triomq message recall {summary['recall_handle']}"
    return text + "\n"


_FEW: Final = 10  # messages per second that are given with a decimal place
_REMARKS: Final = (
    ("failed", "failed"),
    ("unsent", "read but not sent"),
    ("unanswered", "without an answer: perhaps stored"),
)
