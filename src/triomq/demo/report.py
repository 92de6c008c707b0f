"""The tables at the end of the demo."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from triomq.cli.histogram import Histogram
from triomq.demo.load import BATCH, LIVE_RATE
from triomq.demo.run import LIVE_FLIGHTS, Results


def print_report(results: Results, console: Console) -> None:
    """Print what was sent and consumed, how fast, whether the counts are right, and where the files lie."""
    console.print(_counts(results))
    console.print(_latencies(results))
    problems = results.problems()
    for problem in problems:
        console.print(f"[red]WRONG[/] {escape(problem)}", soft_wrap=True)
    if not problems:
        console.print(
            "[green]RIGHT[/] every flight was stored once and came once to each group that wants it, unchanged; "
            "the counts of each carrier are those of the file",
            soft_wrap=True,
        )
    console.print(
        f"{results.total_s:.1f} s in all: {results.read_s:.1f} s to read the data, "
        f"{results.drained_s:.1f} s for the bulk; {results.cpu_s:.1f} s of processor time for producer and consumers",
        soft_wrap=True,
    )


def print_files(folder: Path, store: Path, console: Console, *, is_removed: bool) -> None:
    """Print where the store's files lie."""
    if is_removed:
        console.print(f"the store was in {store}; it is removed", soft_wrap=True, highlight=False)
        return
    size = sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())
    console.print(
        f"the store is in {store} ({size / 1024**2:.0f} MiB); look at it again with\n"
        f"  triomq broker --store {store}\n"
        f"and remove it with\n  rm -r {folder}",
        soft_wrap=True,
        highlight=False,
    )


def _counts(results: Results) -> Table:
    table = Table(title="flights", title_justify="left")
    table.add_column("who")
    for name in ("expected", "flights", "per second in the bulk", "check"):
        table.add_column(name, justify="right")
    bulk = max(0, results.flights - LIVE_FLIGHTS)
    sending = results.sending
    table.add_row(
        "sent",
        str(results.flights),
        str(sending.sent),
        _rate(bulk, sending.bulk_s),
        _check(not results.sending_problems()),
    )
    for group in results.groups:
        expected = group.expected.by_carrier.total()
        table.add_section()
        table.add_row(
            f'group {group.name}, tags "{group.expression}"',
            str(expected),
            str(group.consumed),
            _rate(round(bulk * expected / max(1, results.flights)), results.drained_s),
            _check(not group.differences()),
        )
        for number, member in enumerate(group.members, 1):
            table.add_row(f"  member {number}", "", str(member.by_carrier.total()), "", "")
    return table


def _latencies(results: Results) -> Table:
    table = Table(title="milliseconds", title_justify="left")
    table.add_column("what")
    for name in ("p50", "p99", "longest"):
        table.add_column(name, justify="right")
    table.add_row(f"send, one flight, {LIVE_RATE}/s", *_percentiles(results.sending.live_latencies))
    for group in results.groups:
        table.add_row(f"send to handler, {LIVE_RATE}/s, group {group.name}", *_percentiles(group.live_latencies))
    table.add_row(f"bulk: send, up to {BATCH} flights", *_percentiles(results.sending.bulk_latencies))
    for group in results.groups:
        table.add_row(f"bulk: send to handler with backlog, group {group.name}", *_percentiles(group.bulk_latencies))
    return table


def _percentiles(histogram: Histogram) -> tuple[str, str, str]:
    p50, p99 = histogram.percentile_ms(50), histogram.percentile_ms(99)
    if p50 is None or p99 is None:
        return "-", "-", "-"
    return f"{p50:.2f}", f"{p99:.2f}", f"{histogram.longest_s * 1000:.2f}"


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}" if seconds and count else "-"


def _check(is_right: bool) -> str:
    return "[green]ok[/]" if is_right else "[red]wrong[/]"
