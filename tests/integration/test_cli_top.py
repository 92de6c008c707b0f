"""``triomq top``: one frame as text and JSON, and the display in a terminal."""

import io
import json
import os
import pty
import re
import subprocess
import termios
import time
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

from tests.integration.cli_tools import COMMAND, LIMIT_S, complaint, environment, ok
from triomq.cli.commands.top import Frame, GroupRow, Watch, _Keys, _screen, sections, summary
from triomq.client.admin.broker_answers import BrokerAnswer
from triomq.client.admin.diagnosis import Finding, FindingKind
from triomq.client.admin.sampler import BrokerSample, Sampler
from triomq.testing import RunningBroker


@pytest.fixture
def lagging(rocketmq_broker: RunningBroker) -> str:
    """Return the name server of a broker with a group that is 7 messages behind, and one that is not."""
    namesrv = rocketmq_broker.namesrv
    ok("topic", "create", "orders", namesrv=namesrv)
    ok("produce", "orders", "--count", "10", "--json", namesrv=namesrv)
    for group, count in (("behind", "3"), ("at-end", "10")):
        ok("consume", "orders", "--group", group, "--from", "earliest", "--count", count, namesrv=namesrv)
    return namesrv


def test_one_frame_shows_rates_lag_and_problems(lagging: str) -> None:
    frame = json.loads(ok("top", "--once", "--json", namesrv=lagging))
    (broker,) = frame["brokers"]
    assert (broker["broker"], broker["error"], broker["stalled_queues"]) == ("broker-a", None, 0)
    assert broker["stored_per_s"] >= 0
    assert [(each["group"], each["lag"]) for each in frame["groups"]] == [("behind", 7), ("at-end", 0)]

    text = ok("top", "--once", "--sort", "name", namesrv=lagging)
    assert "1 broker: " in text.splitlines()[0]
    assert text.index("broker-a  ") < text.index("\nat-end ") < text.index("\nbehind ")


def test_problems_come_first_and_unknown_values_are_dashes() -> None:
    finding = Finding(FindingKind.STALLED, "queue 1 waits\x1b[2J", "restart", group="billing")
    answer = BrokerAnswer("broker-a", 0, "127.0.0.1:1", error="no answer")
    frame = Frame(0, [BrokerSample(answer)], [GroupRow("billing", 5, 2, None)], [finding], None)
    problems, brokers, groups = (rows for _, rows in sections(frame, "change"))
    assert problems == [("stalled", "billing", "queue 1 waits\x1b[2J")]
    assert brokers == [("broker-a", 0, "127.0.0.1:1", None, None, None, None, None, None, "no answer")]
    assert groups == [("billing", 5, None, 2)]
    assert summary(frame).endswith("1 broker: 0.0 messages/s in, 0.0 out; 1 group 5 messages behind")
    assert summary(frame._replace(error="no name server")).endswith("no name server")


async def test_change_of_lag_is_measured_over_some_seconds(autojump_clock: MockClock) -> None:
    lags = [100, 80, 40]

    async def backlog() -> dict[str, dict[str, int]]:
        return {"orders": {"billing": lags.pop(0)}}

    async def examined() -> None:
        return None

    sampler = SimpleNamespace(look=lambda: None, backlog=backlog, examined=examined, brokers={}, error=None)
    watch = Watch(cast("Sampler", sampler))
    changes = []
    for _ in range(3):
        changes.append((await watch.frame()).groups[0].change_per_s)
        await trio.sleep(3)
    assert changes == [None, None, -10]


@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24), (60, 20), (40, 10)])
def test_screen_fits_the_terminal_in_every_order(width: int, height: int) -> None:
    answers = [BrokerAnswer(f"broker-{i}", 0, "127.0.0.1:10911", error="no answer") for i in range(12)]
    findings = [Finding(FindingKind.NO_OWNER, f"group g{i}: {'waits ' * 40}", "", group=f"g{i}") for i in range(40)]
    findings.append(Finding(FindingKind.STALLED, "group slow: its handler has not finished", "", group="slow"))
    groups = [GroupRow(f"{'long-' * i}group", 10**i, 0, -(3.5**i)) for i in range(9)] * 5
    frame = Frame(0, [BrokerSample(answer) for answer in answers], groups, findings, None)
    headings = set()
    for sort in ("lag", "change", "name"):
        console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
        console.print(_screen(frame, _Keys(sort), console.size, has_keys=True))
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        assert (len(lines), max(map(len, lines)) <= width) == (height, True)
        assert lines[-1].startswith(f"groups by {sort}")
        assert re.match(r"stalled +slow +its", lines[3])
        headings |= {line.rstrip() for line in lines if "STATE" in line or "RETRIES" in line}
    assert len(headings) == (2 if width >= 60 else 0)


def test_display_without_a_terminal_is_refused() -> None:
    assert "--once" in complaint(2, "top")
    assert "name server" in complaint(3, "top", "--once", namesrv="127.0.0.1:1")


def test_keys_sort_and_end_the_display(lagging: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        (*COMMAND, "top", "--interval", "60"),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**environment(lagging), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    try:
        screen = _read_until(ours, b"groups by lag")
        assert screen.rindex(b"behind") < screen.rindex(b"at-end")
        os.write(ours, b"n")
        screen = _read_until(ours, b"groups by name")
        assert screen.rindex(b"at-end") < screen.rindex(b"behind")
        os.write(ours, b"q")
        _read_until(ours, b"\x1b[?1049l")  # back to the screen before
        assert (process.wait(LIMIT_S), process.stderr and process.stderr.read()) == (0, b"")
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
        os.close(theirs)


def _read_until(terminal: int, text: bytes) -> bytes:
    found, deadline = b"", time.monotonic() + LIMIT_S
    while text not in found:
        assert time.monotonic() < deadline, found
        found += os.read(terminal, 65536)
    return found
