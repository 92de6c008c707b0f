"""``triomq replica``: status, promote."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from triomq.cli.arguments.admin_options import ReplicaPromoteOptions, ReplicaStatusOptions
from triomq.cli.output import Cell, local_time, plural, size_text, write_records, write_result
from triomq.cli.session import admin_command
from triomq.client import Admin, Replica, SlaveCopy


@admin_command
async def status(options: ReplicaStatusOptions, admin: Admin) -> None:
    """Write each broker, and below it each slave that is connected to it.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    replicas = await admin.replicas()
    columns = ("BROKER", "ID", "ADDRESS", "ROLE", "END", "LAG", "LAG S", "REPORTED", "STATE")
    write_records(columns, map(describe, replicas), as_json=options.json, rows=rows(replicas))


@admin_command
async def promote(options: ReplicaPromoteOptions, admin: Admin) -> None:
    """Make a slave the master, and write its address when it serves as such.

    Raises:
        NoBrokerError: it is not clear which slave.
        BrokerResponseError: the broker refuses, and says why.
    """
    address = await admin.promote(options.broker, role=options.role, force=options.force)
    result = {"broker": address, "role": options.role}
    write_result(result, f"{address} is the master now ({options.role})", as_json=options.json)


def rows(replicas: Iterable[Replica]) -> Iterator[Sequence[Cell]]:
    """Yield the rows of the table: each broker, and below it each connection of a slave."""
    for each in replicas:
        yield each.name, each.broker_id, each.address, each.role, each.end, *_progress(each), _state(each)
        for copy in each.copies or ():
            state = "in touch" if copy.is_in_touch else "has not reported yet"
            yield each.name, None, copy.address, "connection", copy.end, *_progress(copy), state


def _progress(each: Replica | SlaveCopy) -> tuple[Cell, Cell, Cell]:
    """Return lag and time of the last report as cells."""
    lag = None if each.lag_bytes is None else size_text(each.lag_bytes)
    lag_ms = each.lag_ms if isinstance(each, SlaveCopy) else None
    return lag, None if lag_ms is None else lag_ms / 1000, local_time(each.reported_ms)


def _state(replica: Replica) -> str | None:
    if replica.error is not None:
        return replica.error.partition(";")[0]
    if replica.is_master:
        return None if replica.copies is None else f"{plural(len(replica.copies), 'slave')} connected"
    if replica.is_in_touch is None:
        return None
    touch = "in touch" if replica.is_in_touch else "out of touch"
    return f"{touch} with {replica.master}" if replica.master else "knows no master"


def describe(replica: Replica) -> dict[str, Any]:
    """Return the output of ``--json``; ``None``: it does not apply, or the broker does not report it."""
    return {
        "broker": replica.name,
        "broker_id": replica.broker_id,
        "address": replica.address,
        "role": replica.role,
        "end": replica.end,
        "lag_bytes": replica.lag_bytes,
        "master": replica.master,
        "in_touch": replica.is_in_touch,
        "heard_ms": replica.heard_ms,
        "reported_ms": replica.reported_ms,
        "tails_aside": replica.tails_aside,
        "slaves": None if replica.copies is None else list(map(_describe_copy, replica.copies)),
        "note": replica.error,
    }


def _describe_copy(copy: SlaveCopy) -> dict[str, Any]:
    return {
        "address": copy.address,
        "end": copy.end,
        "lag_bytes": copy.lag_bytes,
        "lag_s": None if copy.lag_ms is None else copy.lag_ms / 1000,
        "reported_ms": copy.reported_ms,
        "in_touch": copy.is_in_touch,
    }
