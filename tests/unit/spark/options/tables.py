"""``python -m tests.unit.spark.options.tables``: the options and columns as the tables of docs/spark.md."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from triomq.spark.options.options import OPTIONS, Use
from triomq.spark.schema import READ_COLUMNS, WRITE_COLUMNS

_USES: Final = {Use.BATCH_READ: "batch", Use.STREAM_READ: "stream", Use.WRITE: "write"}


def tables() -> dict[str, str]:
    """Return Markdown tables by name: ``options``, ``read columns``, ``write columns``."""
    options = (
        (f"`{option.name}`", _uses(option.uses), _default(option.default), option.values, option.doc)
        for option in OPTIONS
    )
    read = ((f"`{column.name}`", f"`{column.type}`", column.doc) for column in READ_COLUMNS)
    write = ((f"`{name}`", " or ".join(f"`{one}`" for one in types)) for name, types in WRITE_COLUMNS.items())
    return {
        "options": _table(("option", "for", "default", "values", "meaning"), options),
        "read columns": _table(("column", "type", "meaning"), read),
        "write columns": _table(("column", "types"), write),
    }


def _uses(uses: frozenset[Use]) -> str:
    if uses == frozenset(Use):
        return "all"
    if uses == frozenset((Use.BATCH_READ, Use.STREAM_READ)):
        return "read"
    return ", ".join(word for use, word in _USES.items() if use in uses)


def _default(value: Any) -> str:
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write("\n".join(tables().values()))
