"""``triomq transaction``: list, commit, rollback, check."""

import time

from triomq.cli.arguments.client_options import ClientOptions, TransactionOptions
from triomq.cli.output import local_time, write_records, write_result
from triomq.cli.session import client_command, open_admin
from triomq.client import TransactionState


@client_command
async def list_undecided(options: ClientOptions) -> None:
    """Write the undecided transactions, oldest first."""
    async with open_admin(options) as admin:
        found = await admin.transactions()
    now_ms = time.time_ns() // 1_000_000
    columns = ("SENT", "AGE_S", "CHECKS", "GROUP", "TOPIC", "ID")
    records = [
        {
            "sent": each.born_ms if options.json else local_time(each.born_ms),
            "age_s": max(now_ms - each.born_ms, 0) // 1000,
            "checks": each.checks,
            "group": each.group,
            "topic": each.topic,
            "id": each.transaction_id,
        }
        for each in found
    ]
    write_records(columns, records, as_json=options.json)


@client_command
async def commit(options: TransactionOptions) -> None:
    """Commit an undecided transaction."""
    await _decide(options, TransactionState.COMMIT, "committed")


@client_command
async def rollback(options: TransactionOptions) -> None:
    """Roll back an undecided transaction."""
    await _decide(options, TransactionState.ROLLBACK, "rolled back")


@client_command
async def check(options: TransactionOptions) -> None:
    """Have a producer asked about a transaction."""
    await _decide(options, TransactionState.UNKNOWN, "is checked: a producer of its group is asked now")


async def _decide(options: TransactionOptions, state: TransactionState, done: str) -> None:
    async with open_admin(options) as admin:
        await admin.decide_transaction(options.id, state)
    write_result({"id": options.id, "state": state.name.lower()}, f"{options.id} {done}", as_json=options.json)
