"""``triomq dlq``: list, redrive."""

from functools import partial

from triomq.cli.arguments.client_options import DlqListOptions, DlqRedriveOptions
from triomq.cli.commands.group import check_known
from triomq.cli.exit_codes import ExitCode
from triomq.cli.message_text import message_fields
from triomq.cli.output import local_time, plural, write_json, write_records, write_result, write_table
from triomq.cli.session import Counted, Interrupt, client_command, open_admin, run_command
from triomq.client import Redrive


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


async def _redrive(options: DlqRedriveOptions, interrupt: Interrupt) -> int:
    count, done = Counted(), None

    async def work() -> None:
        nonlocal done
        async with open_admin(options) as admin:
            done = await admin.redrive(
                options.group, limit=options.limit, again=options.again, dry_run=options.dry_run, on_sent=count.add
            )
            if not any(done):
                await check_known(admin, options.group)

    await count.run(
        work,
        interrupt,
        progress=lambda: f"{count.sent} sent back\n",
        summary=lambda: f"{count.sent} messages were sent back before it",
    )
    _write(options, count.sent, done)
    return ExitCode.OK


def _write(options: DlqRedriveOptions, sent: int, done: Redrive | None) -> None:
    """Write the result; an interrupted run has only ``sent``."""
    skipped, left = (None, None) if done is None else (done.skipped, done.left)
    result = {"group": options.group, "dry_run": options.dry_run, "sent": sent, "skipped": skipped, "left": left}
    verb = "would be sent" if options.dry_run else "sent"
    more = f", {skipped} skipped whose origin is unknown or that cannot be sent again" if skipped else ""
    more += "" if left is None else f", {left} left"
    text = f"{plural(sent, 'dead letter')} of group {options.group} {verb} back{more}"
    write_result(result, text, as_json=options.json)
