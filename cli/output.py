"""The output of commands: JSON for programs, tables and progress bars for people, messages as lines of either."""

import base64
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from triomq.common.logs import escape_controls as escape_controls
from triomq.protocol.errors import ProtocolError
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName

LOGGER: Final = logging.getLogger("triomq.cli.output")

Formatter: TypeAlias = Callable[[MessageExt], bytes]
Cell: TypeAlias = str | int | float | None
Report: TypeAlias = Callable[[int, int], None]
"""Gets the amount done so far, and the total."""

_JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS
_BORDER: Final = 3  # characters between two columns
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_CONTROLS: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")  # delete, and U+0080 to U+009F in UTF-8


def time_text(milliseconds: int, zone: tzinfo | None = None) -> str:
    """Return a time as text, local time without a zone.

    A time outside the calendar, from a wrong clock or a damaged disk, is returned as a number.
    """
    try:
        time = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(zone)
    except (ValueError, OverflowError):
        return f"{milliseconds} ms"
    return time.isoformat(timespec="milliseconds")


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return one line of JSON with its line break."""
    return escape_json(orjson.dumps(value, option=_JSON_OPTIONS) + b"\n")


def escape_json(line: bytes) -> bytes:
    """Escape the control characters that JSON allows unescaped, because terminals obey them."""
    if b"\x7f" not in line and b"\xc2" not in line:
        return line
    return _CONTROLS.sub(lambda found: b"\\u00%02x" % found[0][-1], line)


def write_json(value: Mapping[str, Any]) -> None:
    """Write a JSON object as one line."""
    write_text(json_bytes(value).decode())


def write_text(text: str) -> None:
    """Write to stdout and flush.

    Raises:
        BrokenPipeError: the reader has closed the pipe.
    """
    sys.stdout.write(text)
    sys.stdout.flush()


class Table(NamedTuple):
    """A table for people."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def table_of(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> Table:
    """Return the table of records of JSON; ``columns`` are the names of all their values."""
    return Table(columns, list(map(cells, records)))


def write_result(result: Mapping[str, Any], *parts: str | Table, as_json: bool) -> None:
    """Write a result, as JSON or as lines and tables for people."""
    if as_json:
        write_json(result)
        return
    for part in parts:
        if isinstance(part, Table):
            write_table(*part)
        else:
            write_text(part + "\n")


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return ``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"


def local_time(milliseconds: int | None) -> str:
    """Return a broker's time as local time."""
    return "-" if milliseconds is None or milliseconds < 0 else time_text(milliseconds)


def label(name: str) -> str:
    """Return the name of a member of JSON for people: the value is shown with its unit."""
    return name.removesuffix("_ms").removesuffix("_bytes").replace("_", " ")


def size_text(size_bytes: int) -> str:
    """Return a size in the unit that suits it: ``1.5 GiB``."""
    power = min(max(size_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size_bytes} bytes" if power == 0 else f"{size_bytes / 1024**power:.1f} {_UNITS[power]}"


def cells(record: Mapping[str, Any]) -> list[Cell]:
    """Return the values of a JSON record as cells of a table: local times, sizes, lists with commas, yes and no."""
    found: list[Cell] = []
    for name, value in record.items():
        if name.endswith("_ms"):
            found.append(local_time(value))
        elif name.endswith("_bytes") and value is not None:
            found.append(size_text(value))
        elif isinstance(value, list | tuple):
            found.append(", ".join(value) or None)
        else:
            found.append(("no", "yes")[value] if isinstance(value, bool) else value)
    return found


def write_records(
    columns: Sequence[str],
    records: Iterable[Mapping[str, Any]],
    *,
    as_json: bool,
    rows: Iterable[Sequence[Cell]] | None = None,
) -> None:
    """Write records as lines of JSON or as a table; its ``rows`` have all values of the records, unless given."""
    if as_json:
        for record in records:
            write_json(record)
    else:
        write_table(columns, list(map(cells, records) if rows is None else rows))


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Write a table: drawn on a terminal, otherwise as aligned columns that are never cut, for ``awk`` and files."""
    texts = [[cell_text(cell) for cell in row] for row in rows]
    are_numbers = [bool(rows) and all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    if sys.stdout.isatty():
        _draw(columns, texts, are_numbers)
    else:
        write_text(aligned(columns, texts, are_numbers))


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Return a heading and rows as text, two blanks between columns; ``right``: which columns are right-aligned."""
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


def cell_text(cell: Cell) -> str:
    """Return a value as the text of a table."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.1f}"
    return escape_controls(str(cell))


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]], are_numbers: Sequence[bool]) -> None:
    """Draw a table, or a block of lines for each row if words would have to be broken to fit the terminal."""
    from rich.console import Console  # 50 ms, only where a table is drawn
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)
    widths = _fitting(columns, rows, console.width)
    if widths is None:
        for row in rows:
            write_text(aligned(("", ""), list(zip(columns, row, strict=True)), (False, False)))
        return
    table = Table()
    for column, is_number, width in zip(columns, are_numbers, widths, strict=True):
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", width=width)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], limit: int) -> list[int] | None:
    """Return the widths of columns whose lines break between words only; ``None`` if they do not fit."""
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    least = [max(len(word) for line in lines for word in line[i].split(" ")) for i in range(len(columns))]
    over = sum(widths) + _BORDER * len(columns) + 1 - limit
    while over > 0:
        widest = max(range(len(columns)), key=lambda i: widths[i] - least[i])
        cut = min(over, widths[widest] - least[widest])
        if not cut:
            return None
        widths[widest] -= cut
        over -= cut
    return widths


@contextmanager
def progress_bar(text: str, *, is_writing: bool = False) -> Iterator[Report | None]:
    """Show a bar on stderr while the block runs; give ``None`` if stderr is not a terminal.

    With ``is_writing`` no bar appears if stdout is a terminal too: it would mix with the output of the block.
    """
    if not sys.stderr.isatty() or (is_writing and sys.stdout.isatty()):
        yield None
        return
    from rich.console import Console  # 50 ms, only where a bar is drawn
    from rich.progress import Progress

    # otherwise rich redirects stdout, and a file that stdout was redirected to stays empty
    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# --- messages ------------------------------------------------------------------------------------------------


def choose_formatter(*, as_json: bool, as_long: bool, is_terminal: bool) -> Formatter:
    """Return the function that makes the line of a message, with its line break.

    A terminal gets control characters escaped; anything else gets the body unchanged.
    """
    if as_json:
        return json_line
    if as_long:
        return long_line
    return terminal_line if is_terminal else body_line


def shown_body(message: MessageExt) -> bytes:
    """Return the body; if it cannot be decompressed, log a warning and return it as it is stored."""
    try:
        return message.body
    except ProtocolError as exc:
        place = f"{message.topic}:{message.broker_name}:{message.queue_id}@{message.queue_offset}"
        LOGGER.warning("body shown as it is stored message=%s error=%s", place, exc)
        return message.stored_body


def body_line(message: MessageExt) -> bytes:
    """Return the body unchanged."""
    return shown_body(message) + b"\n"


def terminal_line(message: MessageExt) -> bytes:
    """Return the body as text, with control characters escaped."""
    return escape_controls(shown_body(message).decode(errors="replace")).encode() + b"\n"


@lru_cache(maxsize=1024)  # a broker stores many messages in one millisecond
def utc_text(milliseconds: int) -> str:
    """Return a time in UTC, with milliseconds."""
    return time_text(milliseconds, UTC).replace("+00:00", "Z")


def long_line(message: MessageExt) -> bytes:
    """Return the time and place of storage, the tag, the keys, and the body as text."""
    place = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
    head = f"{utc_text(message.store_timestamp)} {place} tag={message.tags or '-'} keys={','.join(message.keys) or '-'}"
    return escape_controls(f"{head} {shown_body(message).decode(errors='replace')}").encode() + b"\n"


def json_line(message: MessageExt) -> bytes:
    """Return all fields as JSON, which ``triomq produce --json-lines`` reads."""
    return json_bytes(message_fields(message))


def message_fields(message: MessageExt) -> dict[str, Any]:
    """Return all fields of a message for JSON.

    A body that is not UTF-8 is in base64.  One that cannot be decompressed has another name and comes with the reason,
    so that ``produce`` does not send it.
    """
    properties, offset_message_id = message.properties, message.offset_message_id
    found: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": properties.get(PropertyName.UNIQUE_KEY) or offset_message_id,
        "offset_message_id": offset_message_id,
        "tags": properties.get(PropertyName.TAGS),
        "keys": properties.get(PropertyName.KEYS, "").split(),
        "properties": message.user_properties,
        "born_ms": message.born_timestamp,
        "stored_ms": message.store_timestamp,
        "tries": message.reconsume_times,
    }
    try:
        return found | body_fields(message.body)
    except ProtocolError as exc:
        return found | {"body_error": str(exc), "stored_body_base64": base64.b64encode(message.stored_body).decode()}


def body_fields(body: bytes) -> dict[str, str]:
    """Return a body as ``body``, or as ``body_base64`` if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
