"""``triomq dlq`` and ``triomq group replay``: deliver dead letters, or the messages of a time span, again."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import trio

from triomq.cli import output
from triomq.cli.arguments.admin_options import DlqListOptions, DlqRedriveOptions, GroupReplayOptions
from triomq.cli.commands.group import check_known
from triomq.cli.errors import IncompleteError, UsageError, one_line
from triomq.cli.session import Interrupt, admin_command, cancel_at, interruptible_command, open_admin
from triomq.client import Admin, DeadLetter, MessageExt, Redrive, ReplayPlan
from triomq.client.nursery import open_service_nursery
from triomq.protocol.errors import TriomqError

_COLUMNS: Final = ("TOPIC", "BROKER", "QUEUE", "BEGIN", "MESSAGES", "FIRST", "LAST")
_REPORT_INTERVAL_S: Final = 1.0


class _Sent:
    """Messages that a command has sent so far, which is known even if a signal or an error ends it.

    Attributes:
        count: their number.
        last_ms: store time of the last one.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last_ms: int | None = None

    def add(self, message: MessageExt) -> None:
        """Count a message."""
        self.count += 1
        self.last_ms = message.store_timestamp

    def progress(self) -> str:
        """Return a line for the terminal, or "" for none."""
        return f"{self.count} sent back\n"

    def summary(self) -> str:
        """Return the text about the messages sent, for an error after the first one."""
        return f"{self.count} messages were sent back before it"

    async def run(self, work: Callable[[], Awaitable[None]], interrupt: Interrupt) -> bool:
        """Run work that calls :meth:`add`, until a signal; return whether one ended it.

        Raises:
            IncompleteError: an error ended the work after the first message.
        """
        with trio.CancelScope() as scope:
            async with open_service_nursery() as nursery:
                nursery.start_soon(cancel_at, interrupt.came, scope)
                nursery.start_soon(self._report)
                try:
                    await work()
                except TriomqError as exc:
                    if not self.count:
                        raise
                    raise IncompleteError(f"{one_line(exc)}; {self.summary()}") from exc
        return scope.cancelled_caught

    async def _report(self) -> None:
        while sys.stderr.isatty():
            await trio.sleep(_REPORT_INTERVAL_S)
            sys.stderr.write(self.progress())


@admin_command
async def list_letters(options: DlqListOptions, admin: Admin) -> None:
    """Write the number of dead letters of each group, or the dead letters of one."""
    if options.group is None:
        counts = [count._asdict() for count in await admin.dead_letter_counts()]
        output.write_records(("GROUP", "MESSAGES", "REDRIVEN"), counts, as_json=options.json)
        return
    letters = await admin.dead_letters(options.group, options.limit)
    if not letters:
        await check_known(admin, options.group)
    columns = ("STORED", "OFFSET", "TOPIC", "TAG", "KEYS", "TRIES", "MESSAGE ID", "REDRIVEN")
    output.write_records(columns, map(_describe, letters), as_json=options.json, rows=map(_row, letters))


def _describe(letter: DeadLetter) -> dict[str, Any]:
    fields = output.message_fields(letter.message)
    return {**fields, "original_topic": letter.original_topic, "redriven": letter.is_redriven}


def _row(letter: DeadLetter) -> Sequence[output.Cell]:
    message, redriven = letter.message, "yes" if letter.is_redriven else "no"
    stored, keys = output.local_time(message.store_timestamp), ", ".join(message.keys) or None
    place = (message.queue_offset, letter.original_topic)
    return stored, *place, message.tags, keys, message.reconsume_times, message.message_id, redriven


@interruptible_command
async def redrive(options: DlqRedriveOptions, interrupt: Interrupt) -> None:
    """Send dead letters back; a signal ends it after the current message.

    Raises:
        UsageError: places do not go with other choices.
    """
    if options.at and (options.again or options.limit is not None):
        raise UsageError("--at names the dead letters to send: leave out --again and --limit")
    sent = _Sent()
    done: Redrive | None = None

    async def work() -> None:
        nonlocal done
        async with open_admin(options) as admin:
            if options.at:
                done = await admin.redrive_chosen(options.group, options.at, dry_run=options.dry_run, on_sent=sent.add)
            else:
                done = await admin.redrive(
                    options.group, limit=options.limit, again=options.again, dry_run=options.dry_run, on_sent=sent.add
                )
            if not any(done):
                await check_known(admin, options.group)

    await sent.run(work, interrupt)
    result = {
        "group": options.group,
        "dry_run": options.dry_run,
        "sent": sent.count,
        "skipped": None if done is None else done.skipped,  # an interrupted run does not know them
        "left": None if done is None else done.left,
    }
    text = f"{output.plural(sent.count, 'dead letter')} of group {options.group} "
    text += "would be sent back" if options.dry_run else "sent back"
    if done is not None:
        if done.skipped:
            text += f", {done.skipped} skipped whose origin is unknown or that cannot be sent again"
        text += f", {done.left} left"
    output.write_result(result, text, as_json=options.json)


class _Replayed(_Sent):
    """A replay, also an interrupted one; ``plan`` is ``None`` before it is made."""

    plan: ReplayPlan | None = None

    def progress(self) -> str:
        if self.plan is None or self.last_ms is None:
            return ""
        total = sum(queue.messages for queue in self.plan.queues)
        return f"{self.count} of {total} delivered, up to {output.time_text(self.last_ms)}\n"

    def summary(self) -> str:
        """Return the number of messages sent, and the time at which another run continues."""
        more = "" if self.last_ms is None else f"; to go on: --from {output.time_text(self.last_ms)}"
        return f"{output.plural(self.count, 'message')} delivered before{more}"


@interruptible_command
async def replay(options: GroupReplayOptions, interrupt: Interrupt) -> None:
    """Deliver messages again; a signal ends it after the current message."""
    done = _Replayed()

    async def work() -> None:
        async with open_admin(options) as admin:
            end = options.end or datetime.now(UTC)
            done.plan = await admin.plan_replay(options.group, options.into, options.begin, end, topics=options.topic)
            if not options.dry_run:
                await admin.replay(done.plan, speed=options.speed or None, on_sent=done.add)

    is_cut = await done.run(work, interrupt)
    queues = _queues(done.plan)
    result = {
        "group": options.group,
        "into": options.into,
        "dry_run": options.dry_run,
        "online": None if done.plan is None else done.plan.is_online,
        "sent": done.count,
        "last_stored_ms": done.last_ms,
        "queues": queues,
    }
    if options.dry_run:
        count = sum(queue["messages"] for queue in queues)
        text = f"{output.plural(count, 'message')} of group {options.group} would be delivered to group {options.into}"
    elif is_cut:
        text = f"interrupted; {done.summary()}"
    else:
        text = f"{output.plural(done.count, 'message')} of group {options.group} delivered to group {options.into}"
    is_waiting = done.plan is not None and not done.plan.is_online
    text += "; it has no member online: they wait for one" if is_waiting else ""
    tables = [output.table_of(_COLUMNS, queues)] if options.dry_run else []
    output.write_result(result, *tables, text, as_json=options.json)


def _queues(plan: ReplayPlan | None) -> list[dict[str, Any]]:
    """Return the queues of a plan for JSON; without a plan the command was interrupted at once."""
    return [
        {
            "topic": found.queue.topic,
            "broker": found.queue.broker_name,
            "queue_id": found.queue.queue_id,
            "begin_offset": found.begin,
            "messages": found.messages,
            "first_ms": found.first_ms,
            "last_ms": found.last_ms,
        }
        for found in ([] if plan is None else plan.queues)
    ]
