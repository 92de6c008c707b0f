"""Tables for people, JSON for programs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; all columns but the first are figures."""
    table = Table(title=title, title_justify="left")
    for position, name in enumerate(head):
        table.add_column(name, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


def write_json(path: str, report: Any) -> None:
    """Write figures to a file."""
    Path(path).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the ordered values lie; not a number for none."""
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latencies_ms(latencies_s: list[float]) -> dict[str, float]:
    """Return the figures that describe latencies given in seconds."""
    ordered = sorted(latencies_s)
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    return {name: percentile(ordered, share) * 1000 for name, share in shares.items()}


def text_of(value: object) -> str:
    """Return a figure as a table shows it."""
    return f"{value:,.3f}" if isinstance(value, float) else str(value)
