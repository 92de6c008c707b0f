"""``triomq group replay``: deliver the messages of a time span again, to another group."""

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from triomq.cli.arguments.client_options import GroupReplayOptions
from triomq.cli.arguments.values import time_text
from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import plural, write_json, write_records, write_text
from triomq.cli.session import Counted, Interrupt, open_admin, run_command
from triomq.client import ReplayPlan, ReplayQueue

_COLUMNS: Final = ("TOPIC", "BROKER", "QUEUE", "BEGIN", "MESSAGES", "FIRST", "LAST")


def run(options: GroupReplayOptions) -> int:
    """Deliver messages again; a signal ends it after the current message."""
    return run_command(partial(_run, options))


class _Replay(Counted):
    """A replay, also an interrupted one; ``plan`` is ``None`` before it is made."""

    plan: ReplayPlan | None = None

    def progress(self) -> str:
        """Return a line for the terminal, once messages have been sent."""
        if self.plan is None or self.last_ms is None:
            return ""
        total = sum(queue.messages for queue in self.plan.queues)
        return f"{self.sent} of {total} delivered, up to {time_text(self.last_ms)}\n"

    def summary(self) -> str:
        """Return the number of messages sent, and the time at which another run continues."""
        more = "" if self.last_ms is None else f"; to go on: --from {time_text(self.last_ms)}"
        return f"{plural(self.sent, 'message')} delivered before{more}"


async def _run(options: GroupReplayOptions, interrupt: Interrupt) -> int:
    replay = _Replay()

    async def work() -> None:
        async with open_admin(options) as admin:
            end = options.end or datetime.now(UTC)
            replay.plan = await admin.plan_replay(options.group, options.into, options.begin, end, topics=options.topic)
            if not options.dry_run:
                await admin.replay(replay.plan, speed=options.speed or None, on_sent=replay.add)

    is_cut = await replay.run(work, interrupt, replay.progress, replay.summary)
    _write(options, replay, is_cut=is_cut)
    return ExitCode.OK


def _write(options: GroupReplayOptions, done: _Replay, *, is_cut: bool) -> None:
    """Write the result, also of an interrupted run."""
    result = describe(options, done.plan, done.sent, done.last_ms)
    if options.json:
        write_json(result)
        return
    if options.dry_run:
        write_records(_COLUMNS, result["queues"], as_json=False)
        count = sum(queue["messages"] for queue in result["queues"])
        text = f"{plural(count, 'message')} of group {options.group} would be delivered to group {options.into}"
    elif is_cut:
        text = f"interrupted; {done.summary()}"
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
