"""``triomq group replay``: deliver the messages of a time span again, to another group."""

import sys
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import trio

from triomq.cli.arguments.client_options import GroupReplayOptions
from triomq.cli.arguments.values import time_text
from triomq.cli.errors import IncompleteError, one_line
from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import plural, write_json, write_records, write_text
from triomq.cli.session import Interrupt, cancel_at, open_admin, run_command
from triomq.client import MessageExt, ReplayPlan, ReplayQueue
from triomq.client.nursery import open_service_nursery
from triomq.protocol.errors import TriomqError

_REPORT_INTERVAL_S: Final = 1.0
_COLUMNS: Final = ("TOPIC", "BROKER", "QUEUE", "BEGIN", "MESSAGES", "FIRST", "LAST")


def run(options: GroupReplayOptions) -> int:
    """Deliver messages again; a signal ends it after the current message."""
    return run_command(partial(_run, options))


class _Done:
    """What was done so far; also known if the run is interrupted.

    Attributes:
        plan: what is to be delivered, once it is known.
        sent: number of messages.
        last_ms: store time of the last one.
    """

    def __init__(self) -> None:
        self.plan: ReplayPlan | None = None
        self.sent = 0
        self.last_ms: int | None = None

    def add(self, message: MessageExt) -> None:
        """Count a message."""
        self.sent += 1
        self.last_ms = message.store_timestamp

    async def report(self) -> None:
        """Report progress on a terminal every second."""
        while sys.stderr.isatty():
            await trio.sleep(_REPORT_INTERVAL_S)
            if self.plan is not None and self.last_ms is not None:
                total = sum(queue.messages for queue in self.plan.queues)
                sys.stderr.write(f"{self.sent} of {total} delivered, up to {time_text(self.last_ms)}\n")

    def text(self) -> str:
        """Return what was done, and how to go on."""
        more = "" if self.last_ms is None else f"; to go on: --from {time_text(self.last_ms)}"
        return f"{plural(self.sent, 'message')} delivered before{more}"


async def _run(options: GroupReplayOptions, interrupt: Interrupt) -> int:
    done = _Done()
    with trio.CancelScope() as scope:
        async with open_service_nursery() as nursery:
            nursery.start_soon(cancel_at, interrupt.came, scope)
            nursery.start_soon(done.report)
            try:
                await _replay(options, done)
            except TriomqError as exc:
                if not done.sent:
                    raise
                raise IncompleteError(f"{one_line(exc)}; {done.text()}") from exc
    _tell(options, done, is_cut=scope.cancelled_caught)
    return ExitCode.OK


async def _replay(options: GroupReplayOptions, done: _Done) -> None:
    async with open_admin(options) as admin:
        end = options.end or datetime.now(UTC)
        done.plan = await admin.plan_replay(options.group, options.into, options.begin, end, topics=options.topic)
        if not options.dry_run:
            await admin.replay(done.plan, speed=options.speed or None, on_sent=done.add)


def _tell(options: GroupReplayOptions, done: _Done, *, is_cut: bool) -> None:
    """Write what was or would be done, also of an interrupted run."""
    result = describe(options, done.plan, done.sent, done.last_ms)
    if options.json:
        write_json(result)
        return
    if options.dry_run:
        write_records(_COLUMNS, result["queues"], as_json=False)
        count = sum(queue["messages"] for queue in result["queues"])
        text = f"{plural(count, 'message')} of group {options.group} would be delivered to group {options.into}"
    elif is_cut:
        text = f"interrupted; {done.text()}"
    else:
        text = f"{plural(done.sent, 'message')} of group {options.group} delivered to group {options.into}"
    is_waiting = done.plan is not None and not done.plan.is_online
    write_text(text + ("; it has no member online: they wait for one" if is_waiting else "") + "\n")


def describe(options: GroupReplayOptions, plan: ReplayPlan | None, sent: int, last_ms: int | None) -> dict[str, Any]:
    """Return the output of ``--json``; without a plan it was interrupted at once."""
    return {
        "group": options.group,
        "into": options.into,
        "dry_run": options.dry_run,
        "online": None if plan is None else plan.is_online,
        "sent": sent,
        "last_stored_ms": last_ms,
        "queues": [] if plan is None else [_describe_queue(queue) for queue in plan.queues],
    }


def _describe_queue(found: ReplayQueue) -> dict[str, Any]:
    return {
        "topic": found.queue.topic,
        "broker": found.queue.broker_name,
        "queue_id": found.queue.queue_id,
        "begin_offset": found.begin,
        "messages": found.messages,
        "first_ms": found.first_ms,
        "last_ms": found.last_ms,
    }
