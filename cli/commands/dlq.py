"""``triomq dlq``: list, redrive."""

import sys
from functools import partial
from typing import Final

import trio

from triomq.cli.arguments.client_options import DlqListOptions, DlqRedriveOptions
from triomq.cli.commands.group import check_known
from triomq.cli.errors import IncompleteError, one_line
from triomq.cli.exit_codes import ExitCode
from triomq.cli.message_text import message_fields
from triomq.cli.output import local_time, plural, write_json, write_records, write_result, write_table
from triomq.cli.session import Interrupt, cancel_at, client_command, open_admin, run_command
from triomq.client import MessageExt, Redrive
from triomq.client.nursery import open_service_nursery
from triomq.protocol.errors import TriomqError

_REPORT_INTERVAL_S: Final = 1.0


@client_command
async def list_letters(options: DlqListOptions) -> None:
    """Write the number of dead letters of each group, or the dead letters of one."""
    async with open_admin(options) as admin:
        if options.group is None:
            counts = [count._asdict() for count in await admin.dead_letter_counts()]
            write_records(("GROUP", "MESSAGES", "REDRIVEN"), counts, as_json=options.json)
            return
        letters = await admin.dead_letters(options.group, options.limit)
        if not letters:
            await check_known(admin, options.group)
    if options.json:
        for message, original_topic, is_redriven in letters:
            write_json({**message_fields(message), "original_topic": original_topic, "redriven": is_redriven})
        return
    rows = [
        (
            local_time(message.store_timestamp),
            message.queue_offset,
            original_topic,
            message.tags,
            ", ".join(message.keys) or None,
            message.reconsume_times,
            message.message_id,
            "yes" if is_redriven else "no",
        )
        for message, original_topic, is_redriven in letters
    ]
    write_table(("STORED", "OFFSET", "TOPIC", "TAG", "KEYS", "TRIES", "MESSAGE ID", "REDRIVEN"), rows)


def redrive(options: DlqRedriveOptions) -> int:
    """Send dead letters back; a signal ends it after the current message."""
    return run_command(partial(_redrive, options))


class _Count:
    """Messages sent back so far; also known if the run is interrupted."""

    def __init__(self) -> None:
        self.sent = 0

    def add(self, _message: MessageExt) -> None:
        self.sent += 1

    async def report(self) -> None:
        """Report progress on a terminal every second."""
        while sys.stderr.isatty():
            await trio.sleep(_REPORT_INTERVAL_S)
            sys.stderr.write(f"{self.sent} sent back\n")


async def _redrive(options: DlqRedriveOptions, interrupt: Interrupt) -> int:
    count, done = _Count(), None
    with trio.CancelScope() as scope:
        async with open_service_nursery() as nursery:
            nursery.start_soon(cancel_at, interrupt.came, scope)
            nursery.start_soon(count.report)
            try:
                done = await _run(options, count)
            except TriomqError as exc:
                if not count.sent:
                    raise
                raise IncompleteError(f"{one_line(exc)}; {count.sent} messages were sent back before it") from exc
    _tell(options, count.sent, done)
    return ExitCode.OK


async def _run(options: DlqRedriveOptions, count: _Count) -> Redrive:
    async with open_admin(options) as admin:
        done = await admin.redrive(
            options.group, limit=options.limit, again=options.again, dry_run=options.dry_run, on_sent=count.add
        )
        if not any(done):
            await check_known(admin, options.group)
        return done


def _tell(options: DlqRedriveOptions, sent: int, done: Redrive | None) -> None:
    """Write what was done; of an interrupted run only ``sent`` is known."""
    skipped, left = (None, None) if done is None else (done.skipped, done.left)
    result = {"group": options.group, "dry_run": options.dry_run, "sent": sent, "skipped": skipped, "left": left}
    verb = "would be sent" if options.dry_run else "sent"
    more = f", {skipped} skipped whose origin is unknown or that cannot be sent again" if skipped else ""
    more += "" if left is None else f", {left} left"
    text = f"{plural(sent, 'dead letter')} of group {options.group} {verb} back{more}"
    write_result(result, text, as_json=options.json)
