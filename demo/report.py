"""The tables at the end of the demo."""

from collections.abc import Iterator
from pathlib import Path

from triomq.cli.histogram import Histogram
from triomq.cli.output import Cell, write_table, write_text
from triomq.demo.load import BATCH, LIVE_RATE
from triomq.demo.run import LIVE_FLIGHTS, Results


def print_report(results: Results) -> None:
    """Print how many flights were sent and consumed, how fast, and whether the counts are right."""
    write_table(("FLIGHTS", "EXPECTED", "COUNTED", "BULK PER SECOND", "CHECK"), list(_counts(results)))
    write_text("\n")
    write_table(("MILLISECONDS", "P50", "P99", "LONGEST"), list(_latencies(results)))
    write_text("\n")
    problems = results.problems()
    for problem in problems:
        write_text(f"WRONG {problem}\n")
    if not problems:
        write_text(
            "RIGHT every flight was stored once and delivered once to each group that wants it, unchanged; "
            "the counts of each carrier are those of the file\n"
        )
    write_text(
        f"{results.total_s:.1f} s in all: {results.read_s:.1f} s to read the data, {results.drained_s:.1f} s for the "
        f"bulk; {results.cpu_s:.1f} s of processor time for producer and consumers\n"
    )


def print_files(folder: Path, store: Path, *, is_removed: bool) -> None:
    """Print where the store's files are."""
    if is_removed:
        write_text(f"the store was in {store}; it is removed\n")
        return
    size = sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())
    write_text(
        f"the store is in {store} ({size / 1024**2:.0f} MiB); open it again with\n"
        f"  triomq broker --store {store}\n"
        f"and remove it with\n  rm -r {folder}\n"
    )


def _counts(results: Results) -> Iterator[tuple[Cell, ...]]:
    bulk = max(0, results.flights - LIVE_FLIGHTS)
    sending, is_right = results.sending, not results.sending_problems()
    yield "sent", results.flights, sending.sent, _rate(bulk, sending.bulk_s), _check(is_right)
    for group in results.groups:
        expected = group.expected.by_carrier.total()
        rate = _rate(round(bulk * expected / max(1, results.flights)), results.drained_s)
        name = f'group {group.name}, tags "{group.expression}"'
        yield name, expected, group.consumed, rate, _check(not group.differences())
        for number, member in enumerate(group.members, 1):
            yield f"  member {number}", None, member.by_carrier.total(), None, ""


def _latencies(results: Results) -> Iterator[tuple[Cell, ...]]:
    yield f"send, one flight, {LIVE_RATE}/s", *_percentiles(results.sending.live_latencies)
    for group in results.groups:
        yield f"send to handler, {LIVE_RATE}/s, group {group.name}", *_percentiles(group.live_latencies)
    yield f"bulk: send, up to {BATCH} flights", *_percentiles(results.sending.bulk_latencies)
    for group in results.groups:
        yield f"bulk: send to handler with backlog, group {group.name}", *_percentiles(group.bulk_latencies)


def _percentiles(histogram: Histogram) -> tuple[str, str, str]:
    p50, p99 = histogram.percentile_ms(50), histogram.percentile_ms(99)
    if p50 is None or p99 is None:
        return "-", "-", "-"
    return f"{p50:.2f}", f"{p99:.2f}", f"{histogram.longest_s * 1000:.2f}"


def _rate(count: int, seconds: float) -> int | None:
    return round(count / seconds) if seconds and count else None


def _check(is_right: bool) -> str:
    return "ok" if is_right else "wrong"
