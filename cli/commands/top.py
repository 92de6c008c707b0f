"""``triomq top``: rates, lag and faults of a cluster on one screen, again and again."""

import os
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from triomq.cli.arguments.admin_options import TopOptions
from triomq.cli.errors import UsageError
from triomq.cli.output import Cell, cell_text, local_time, plural, size_text, write_json, write_table, write_text
from triomq.cli.session import client_command, open_admin
from triomq.client.admin.diagnosis import Finding, FindingKind
from triomq.client.admin.sampler import BrokerSample, Sampler
from triomq.client.admin.traffic import lag_by_group, retry_lag
from triomq.client.environment import wall_clock_ms
from triomq.protocol.errors import NameServerError

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions, RenderableType
    from rich.table import Table

_SORTS: Final = {"l": "lag", "c": "change", "n": "name"}
_QUIT: Final = "q"
_PAUSE: Final = "p"
_WITHOUT_CURSOR: Final = ("dumb", "unknown")  # terminals
_KEYS: Final = "l lag  c change  n name  p pause  q quit"
_CHANGE_S: Final = 5.0
_MOST_ROWS: Final = 8  # of problems and brokers, but not more than a part of the screen; groups get the rest
_PARTS: Final = 4
_PROBLEM_LINES: Final = 2
_NAME_WIDTH: Final = 26
_NUMBER_WIDTH: Final = 7
_GAP: Final = 2
_LESS_IMPORTANT: Final = ("ADDRESS", "LOG", "ID", "CLIENTS", "DISK %")  # left out on a narrow screen, in this order


class GroupRow(NamedTuple):
    """A consumer group.

    Attributes:
        lag: messages that it has not consumed, retries included.
        retry: those of them that wait to be consumed again.
        change_per_s: how fast the lag grows; ``None``: not known yet.
    """

    name: str
    lag: int
    retry: int
    change_per_s: float | None


class Frame(NamedTuple):
    """The state of a cluster at one moment.

    Attributes:
        at_ms: this machine's time.
        brokers: sorted by name and id.
        groups: all consumer groups, in no order.
        findings: of the doctor, at most 30 s old; ``None``: it could not examine the cluster, or has not finished.
        error: why no name server answered.
    """

    at_ms: int
    brokers: Sequence[BrokerSample]
    groups: Sequence[GroupRow]
    findings: Sequence[Finding] | None
    error: str | None

    def total(self, name: str) -> float:
        """Return the sum of a rate of all brokers' meters."""
        return sum(getattr(each.meter, name) or 0.0 for each in self.brokers)


class Watch:
    """Reads frames of a cluster from a sampler."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._base: tuple[float, Mapping[str, int]] | None = None
        self._changes: Mapping[str, float] = {}

    async def frame(self) -> Frame:
        """Return the state now."""
        sampler = self._sampler
        sampler.look()
        backlog = await sampler.backlog()
        found = await sampler.examined()
        lags = lag_by_group(backlog)
        self._compare(trio.current_time(), lags)
        return Frame(
            at_ms=wall_clock_ms(),
            brokers=[sampler.brokers[key] for key in sorted(sampler.brokers)],
            groups=[
                GroupRow(name, lag, retry_lag(backlog, name), self._changes.get(name)) for name, lag in lags.items()
            ],
            findings=None if found is None else found.findings,
            error=sampler.error,
        )

    def _compare(self, now: float, lags: Mapping[str, int]) -> None:
        """Learn how fast the lags change; over some seconds, since consumers commit their offsets every 5 s."""
        at, before = self._base or (now, lags)
        if self._base is None or now - at >= _CHANGE_S:
            self._base = now, lags
        if now - at >= _CHANGE_S:
            self._changes = {name: (lag - before[name]) / (now - at) for name, lag in lags.items() if name in before}


@client_command
async def top(options: TopOptions) -> None:
    """Show frames until q or a signal, or one with ``--once``.

    Raises:
        UsageError: the output is no terminal.
        NameServerError: with ``--once``: no name server answered, or it knows no broker.
    """
    is_live = not (options.once or options.json)
    if is_live and not (sys.stdout.isatty() and os.environ.get("TERM") not in _WITHOUT_CURSOR):
        raise UsageError("the display needs a terminal: add --once for one frame, or --json for a line every interval")
    async with open_admin(options) as admin, trio.open_nursery() as nursery:
        sampler = Sampler(admin)
        sampler.look()
        await nursery.start(sampler.keep_asking)
        await sampler.sampled.wait()
        if options.once and sampler.error is not None:
            raise NameServerError(sampler.error)
        if is_live:
            await _show(Watch(sampler), options)
        else:
            await _write(Watch(sampler), options)
        nursery.cancel_scope.cancel()


async def _write(watch: Watch, options: TopOptions) -> None:
    while True:
        frame = await watch.frame()
        if options.json:
            write_json(describe(frame, options.sort))
        else:
            _write_text(frame, options.sort)
        if options.once:
            return
        await trio.sleep(options.interval)


def _write_text(frame: Frame, sort: str) -> None:
    write_text(summary(frame) + "\n")
    for columns, rows in sections(frame, sort):
        if rows:
            write_text("\n")
            write_table(columns, rows)


def summary(frame: Frame) -> str:
    """Return the first line of a frame."""
    if frame.error is not None:
        return f"{local_time(frame.at_ms)}  {frame.error}"
    lag = sum(each.lag for each in frame.groups)
    rates = f"{frame.total('put_per_s'):.1f} messages/s in, {frame.total('got_per_s'):.1f} out"
    groups = f"{plural(len(frame.groups), 'group')} {lag} messages behind"
    return f"{local_time(frame.at_ms)}  {plural(len(frame.brokers), 'broker')}: {rates}; {groups}"


def sections(frame: Frame, sort: str) -> Iterator[tuple[Sequence[str], list[Sequence[Cell]]]]:
    """Yield heading and rows of each table: problems, brokers, groups."""
    # Groups without members may be many.
    findings = sorted(frame.findings or (), key=lambda each: each.kind is FindingKind.NO_OWNER)
    yield ("PROBLEM", "WHERE", "WHAT"), [_problem_row(each) for each in findings]
    columns = "BROKER", "ID", "ADDRESS", "IN/S", "OUT/S", "LOG", "DISK %", "CLIENTS", "STALLED QUEUES", "STATE"
    yield columns, [_broker_row(each) for each in frame.brokers]
    yield (
        ("GROUP", "LAG", "CHANGE/S", "RETRIES"),
        [(each.name, each.lag, each.change_per_s, each.retry) for each in in_order(frame.groups, sort)],
    )


def in_order(groups: Sequence[GroupRow], sort: str) -> list[GroupRow]:
    """Return groups in the order of a key: the largest lag or growth first, or by name."""
    by_name = sorted(groups)
    if sort == "name":
        return by_name
    return sorted(by_name, key=lambda each: each.lag if sort == "lag" else each.change_per_s or 0.0, reverse=True)


def _problem_row(finding: Finding) -> Sequence[Cell]:
    text = finding.text.removeprefix(f"group {finding.group}: ")
    return finding.kind, finding.group or finding.topic or finding.broker, text


def _broker_row(sample: BrokerSample) -> Sequence[Cell]:
    answer, counters, meter = sample.answer, sample.counters, sample.meter
    disk = None if counters.disk is None else round(counters.disk * 100)
    size = None if counters.log_bytes is None else size_text(counters.log_bytes)
    state = answer.error or (answer.refusal and f"refuses messages: {answer.refusal}") or "ok"
    place = answer.name, answer.broker_id, answer.address
    return *place, meter.put_per_s, meter.got_per_s, size, disk, counters.connections, counters.stalled_queues, state


def describe(frame: Frame, sort: str) -> dict[str, Any]:
    """Return the output of ``--json``; ``None``: not known, or the broker does not report it."""
    return {
        "at_ms": frame.at_ms,
        "error": frame.error,
        "brokers": [
            {
                "broker": each.answer.name,
                "broker_id": each.answer.broker_id,
                "address": each.answer.address,
                "stored_per_s": each.meter.put_per_s,
                "delivered_per_s": each.meter.got_per_s,
                "commit_log_bytes": each.counters.log_bytes,
                "disk_used": each.counters.disk,
                "connections": each.counters.connections,
                "stalled_queues": each.counters.stalled_queues,
                "refuses_messages": each.answer.refusal,
                "error": each.answer.error,
            }
            for each in frame.brokers
        ],
        "groups": [
            {"group": each.name, "lag": each.lag, "lag_change_per_s": each.change_per_s, "retries": each.retry}
            for each in in_order(frame.groups, sort)
        ],
        "findings": None if frame.findings is None else [each._asdict() for each in frame.findings],
    }


# --- the display ---------------------------------------------------------------------------------------------


class _Keys:
    """What the user has typed so far.

    Attributes:
        sort: the order of the groups.
        is_paused: whether the frame stays as it is.
        has_quit: whether the display ends.
        pressed: set by each key.
    """

    def __init__(self, sort: str) -> None:
        self.sort = sort
        self.is_paused = self.has_quit = False
        self.pressed = trio.Event()

    async def read(self) -> None:
        """Read keys of the terminal until cancelled, or the terminal is closed."""
        while not self.has_quit:
            await trio.lowlevel.wait_readable(sys.stdin)
            text = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
            self.has_quit = not text
            for key in text:
                self.sort = _SORTS.get(key, self.sort)
                self.is_paused ^= key == _PAUSE
                self.has_quit |= key == _QUIT
            self.pressed.set()


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Have the terminal pass on keys without Enter, and without showing them; Ctrl-C stays a signal."""
    saved = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, saved)


async def _show(watch: Watch, options: TopOptions) -> None:
    """Refresh the screen every interval and after each key, until q; without a keyboard until a signal."""
    from rich.console import Console  # 50 ms, only where a screen is drawn
    from rich.live import Live

    console, keys, has_keys = Console(highlight=False), _Keys(options.sort), sys.stdin.isatty()
    with (
        _keys_at_once() if has_keys else nullcontext(),
        Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
    ):
        async with trio.open_nursery() as nursery:
            if has_keys:
                nursery.start_soon(keys.read)
            frame = await watch.frame()
            while not keys.has_quit:
                keys.pressed = trio.Event()
                live.update(_screen(frame, keys, console.size, has_keys=has_keys), refresh=True)
                with trio.move_on_after(options.interval) as waiting:
                    await keys.pressed.wait()
                if waiting.cancelled_caught and not keys.is_paused:
                    frame = await watch.frame()
            nursery.cancel_scope.cancel()


def _screen(frame: Frame, keys: _Keys, size: "ConsoleDimensions", *, has_keys: bool) -> "RenderableType":
    """Return a frame for a screen: all that does not fit is left out, but not the last line."""
    from rich.console import Group
    from rich.layout import Layout
    from rich.text import Text

    parts: list[RenderableType] = [Text(_head(frame), style="bold", no_wrap=True, overflow="ellipsis")]
    left = size.height - 2
    for columns, rows in sections(frame, keys.sort):
        if not rows:
            continue
        lines = _PROBLEM_LINES if columns[0] == "PROBLEM" else 1
        room = min(_MOST_ROWS, size.height // _PARTS // lines)
        if columns[0] == "GROUP":  # they get the rest
            room = left - 2 - (len(rows) > left - 2)
        shown = rows[: max(1, room)]
        parts += [Text(), _table(columns, rows, len(shown), size.width)]
        left -= 2 + lines * len(shown)
        if len(shown) < len(rows):
            parts.append(Text(f"and {len(rows) - len(shown)} more", style="dim"))
            left -= 1
    state = "paused" if keys.is_paused else f"groups by {keys.sort}"
    last = Text(f"{state}    {_KEYS if has_keys else 'Ctrl-C ends'}", style="dim", no_wrap=True)
    layout = Layout()
    layout.split_column(Layout(Group(*parts)), Layout(last, size=1))
    return layout


def _head(frame: Frame) -> str:
    """Return the first line of a screen: shorter, without the date."""
    time, _, rest = summary(frame).replace(" messages", "").partition("  ")
    return f"{time[11:19]}  {rest}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], count: int, width: int) -> "Table":
    """Return the first rows as wide as the screen; widths are those of all rows, so that sorting moves no column."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    is_number = [all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    longest = [max(cell_len(cell_text(row[i])) for row in rows) for i in range(len(columns))]
    name_width = _NAME_WIDTH if is_number[-1] else min(_NAME_WIDTH, width // 4)
    sizes = [
        max(len(column), _NUMBER_WIDTH if is_number[i] else 0, min(name_width, longest[i]))
        for i, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    for name in _LESS_IMPORTANT:
        if sum(sizes[i] + _GAP for i in kept) > width:
            kept = [i for i in kept if columns[i] != name]
    *others, last = kept
    if not is_number[last]:
        sizes[last] = max(len(columns[last]), width - sum(sizes[i] + _GAP for i in others))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold reverse")
    for i in kept:
        table.add_column(columns[i], justify="right" if is_number[i] else "left", no_wrap=True, width=sizes[i])
    is_problem = columns[0] == "PROBLEM"
    for row in rows[:count]:
        texts = [cell_text(row[i]) for i in kept]
        if is_problem:
            texts[-1] = "\n".join(wrap(texts[-1], sizes[last], max_lines=_PROBLEM_LINES, placeholder=" …"))
        table.add_row(*map(Text, texts), style="red" if is_problem else "")
    return table
