"""What commands write: JSON for programs, tables for people."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import orjson

from triomq.cli.arguments.values import escape_controls

Cell: TypeAlias = str | int | float | None

_JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS
_CONTROLS: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")  # delete, and U+0080 to U+009F in UTF-8


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return one line of JSON with its line break."""
    return escape_json(orjson.dumps(value, option=_JSON_OPTIONS) + b"\n")


def escape_json(line: bytes) -> bytes:
    """Return the same JSON with the control characters escaped that JSON allows as they are: terminals obey them."""
    if b"\x7f" not in line and b"\xc2" not in line:
        return line
    return _CONTROLS.sub(lambda found: b"\\u00%02x" % found[0][-1], line)


def write_json(value: Mapping[str, Any]) -> None:
    """Write one JSON object on a line of its own."""
    write_text(json_bytes(value).decode())


def write_text(text: str) -> None:
    """Write to stdout, at once.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    sys.stdout.write(text)
    sys.stdout.flush()


def write_result(result: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Write what was done, as JSON or as a sentence."""
    if as_json:
        write_json(result)
    else:
        write_text(text + "\n")


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return ``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"


def write_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Write a table: drawn on a terminal; else aligned columns that are never cut, for ``awk`` and files."""
    texts = [[_text(cell) for cell in row] for row in rows]
    are_numbers = [bool(rows) and all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    if sys.stdout.isatty():
        _draw(title, columns, texts, are_numbers)
    else:
        write_text(aligned(columns, texts, are_numbers))


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Return a heading and rows as text, columns two blanks apart; ``right`` tells which are aligned to the right."""
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    text = ""
    for line in lines:
        cells = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        )
        text += "  ".join(cells).rstrip() + "\n"
    return text


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.1f}"
    return escape_controls(str(cell))


def _draw(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], are_numbers: Sequence[bool]) -> None:
    from rich.console import Console  # 50 ms, only where a table is drawn
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for column, is_number in zip(columns, are_numbers, strict=True):
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False, highlight=False).print(table)
