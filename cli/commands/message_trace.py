"""``triomq message trace``: the way of a message, as its producer and its consumers recorded it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from triomq.cli.arguments.client_options import MessageTraceOptions
from triomq.cli.errors import IncompleteError
from triomq.cli.output import write_records
from triomq.cli.session import client_command, open_admin
from triomq.client import MessageExt
from triomq.protocol.trace import (
    ConsumeBegun,
    ConsumeEnded,
    Published,
    Recalled,
    TraceRecord,
    TransactionEnded,
    decode_trace,
)

_COLUMNS: Final = ("TIME", "WHAT", "MESSAGE ID", "TOPIC", "GROUP", "CLIENT", "BROKER", "TRY", "TOOK MS", "RESULT")
#: By the code of a ``SubAfter`` record.
_RESULTS: Final = ("ok", "ok, late", "raised", "no status", "failed")
_DECISIONS: Final = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}


class Told(NamedTuple):
    """A record, and the address of the client that wrote it."""

    record: TraceRecord
    client: str


@client_command
async def trace(options: MessageTraceOptions) -> None:
    """Write the steps of a message, or of all messages with a key, in the order of their times."""
    async with open_admin(options) as admin:
        messages = await admin.find_messages(options.trace_topic, options.message_id)
    rows = steps(told_about(messages, options.message_id))
    if not rows:
        raise IncompleteError(
            f"no trace of {options.message_id!r} in topic {options.trace_topic}: "
            "its producer and consumers must trace, and records take about a second to arrive"
        )
    write_records(_COLUMNS, rows, as_json=options.json)


def told_about(messages: Iterable[MessageExt], wanted: str) -> list[Told]:
    """Return the records about a message id or a key, each once, in the order of trace messages."""
    found: dict[TraceRecord, Told] = {}
    for message in messages:
        for record in decode_trace(message.body):
            if record.message_id == wanted or wanted in getattr(record, "keys", "").split():
                host = getattr(record, "client_host", "") or message.born_host.rpartition(":")[0]
                found.setdefault(record, Told(record, host))
    return list(found.values())


def steps(told: Iterable[Told]) -> list[dict[str, Any]]:
    """Return one row for each step: each call of a handler, begun and ended, is one."""
    told = list(told)
    ends = {(end.request_id, end.message_id): (end, client) for end, client in told if isinstance(end, ConsumeEnded)}
    topics = {record.message_id: record.topic for record, _ in told if isinstance(record, Published)}
    rows = []
    for record, client in told:
        if isinstance(record, ConsumeBegun):
            ended, _ = ends.pop((record.request_id, record.message_id), (None, ""))
            rows.append(_consumed(record, ended, client, topics))
        elif not isinstance(record, ConsumeEnded):
            rows.append(_produced(record, client))
    rows += (_consumed(None, ended, client, topics) for ended, client in ends.values())
    return sorted(rows, key=lambda row: row["time_ms"] or 0)


def _produced(record: Published | TransactionEnded | Recalled, client: str) -> dict[str, Any]:
    row = _row(record.time_ms, "recalled", record.message_id, record.topic, record.group, client)
    if isinstance(record, Recalled):
        return row | {"result": "ok" if record.is_success else "failed"}
    row["broker"] = record.store_host
    if isinstance(record, Published):
        result = "ok" if record.is_success else "failed"
        return row | {"what": "sent", "took_milliseconds": record.took_ms, "result": result}
    what = "decided after a check" if record.is_from_check else "decided"
    return row | {"what": what, "result": _DECISIONS.get(record.state, "unknown")}


def _consumed(
    begun: ConsumeBegun | None, ended: ConsumeEnded | None, client: str, topics: Mapping[str, str]
) -> dict[str, Any]:
    record = begun or ended
    assert record is not None
    time_ms, topic = record.time_ms or None, topics.get(record.message_id)
    row = _row(time_ms, "consumed", record.message_id, topic, record.group, client)
    if begun is not None:
        row["try"] = begun.retry_times + 1
    if ended is None:
        return row | {"result": "not ended"}
    result = _RESULTS[ended.code] if 0 <= ended.code < len(_RESULTS) else "failed"
    return row | {"took_milliseconds": ended.took_ms, "result": result if ended.is_success or ended.code else "failed"}


def _row(time_ms: int | None, what: str, message_id: str, topic: str | None, group: str, client: str) -> dict[str, Any]:
    return {
        "time_ms": time_ms,
        "what": what,
        "message_id": message_id,
        "topic": topic,
        "group": group or None,
        "client": client,
        "broker": None,
        "try": None,
        "took_milliseconds": None,
        "result": "",
    }
