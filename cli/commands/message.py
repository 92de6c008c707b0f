"""``triomq message`` and ``triomq transaction``: show, find, recall and trace messages; decide transactions."""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from triomq.cli.arguments.admin_options import (
    MessageFindOptions,
    MessageRecallOptions,
    MessageShowOptions,
    MessageTraceOptions,
    TransactionOptions,
)
from triomq.cli.arguments.options import DEFAULT_PRODUCER_GROUP, ClientOptions
from triomq.cli.arguments.values import StartAt
from triomq.cli.errors import IncompleteError, UsageError
from triomq.cli.output import (
    escape_controls,
    local_time,
    message_fields,
    shown_body,
    write_json,
    write_records,
    write_result,
    write_table,
    write_text,
)
from triomq.cli.session import client_command, client_config, open_admin
from triomq.client import MessageExt, Producer, PullConsumer, TransactionState
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.nursery import in_parallel
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import BrokerResponseError, ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.trace import (
    ConsumeBegun,
    ConsumeEnded,
    Published,
    Recalled,
    TraceRecord,
    TransactionEnded,
    decode_trace,
)

_END_OF_TIME_MS: Final = 2**63 - 1
_BODY_CHARACTERS: Final = 60  # of a body in a table


@client_command
async def show(options: MessageShowOptions) -> None:
    """Write one message."""
    async with open_admin(options) as admin:
        try:
            message = await admin.message(options.message_id, options.topic)
        except BrokerResponseError as exc:
            if options.topic is None and exc.code == ResponseCode.QUERY_NOT_FOUND:
                hint = "to search for the id that its producer assigned, add --topic TOPIC"
                raise IncompleteError(f"no message has the offset message id {options.message_id!r}; {hint}") from exc
            raise
    if options.json:
        write_json(message_fields(message))
    else:
        _draw(message)


@client_command
async def recall(options: MessageRecallOptions) -> None:
    """Take a delayed message back."""
    producer = Producer(DEFAULT_PRODUCER_GROUP, namesrv=options.namesrv, config=client_config(options))
    async with producer:
        try:
            message_id = await producer.recall(options.handle)
        except ProtocolError as exc:
            raise UsageError(str(exc)) from exc
    write_result({"message_id": message_id}, f"message {message_id} is taken back", as_json=options.json)


@client_command
async def find(options: MessageFindOptions) -> None:
    """Write messages with a key, or of a time range."""
    if options.key is not None and options.unique_key is not None:
        raise UsageError("--key and --unique-key cannot be used together")
    begin_ms, end_ms = _milliseconds(options.begin), _milliseconds(options.end)
    key = options.key if options.unique_key is None else options.unique_key
    if key is None:
        messages = await _find_by_time(options, begin_ms, end_ms)
    else:
        async with open_admin(options) as admin:
            messages = await admin.find_messages(
                options.topic,
                key,
                max_messages=options.count,
                begin_ms=begin_ms,
                end_ms=end_ms,
                unique=options.unique_key is not None,
            )
    if options.json:
        for message in messages:
            write_json(message_fields(message))
    else:
        _draw_table(messages)


async def _find_by_time(options: MessageFindOptions, begin_ms: int, end_ms: int) -> list[MessageExt]:
    """Return the first messages stored in a time range, in the order of storage time."""
    async with PullConsumer(TOOLS_GROUP, namesrv=options.namesrv, config=client_config(options)) as pull:
        read = partial(_read_queue, pull, begin_ms=begin_ms, end_ms=end_ms, count=options.count)
        found = chain(*await in_parallel(read, await pull.queues(options.topic)))
    return sorted(found, key=lambda message: message.store_timestamp)[: options.count]


async def _read_queue(
    pull: PullConsumer, queue: MessageQueue, begin_ms: int, end_ms: int, count: int
) -> list[MessageExt]:
    found: list[MessageExt] = []
    end = await pull.max_offset(queue)
    now_ms = time.time_ns() // 1_000_000
    offset: int = await (pull.offset_for_timestamp(queue, begin_ms) if begin_ms else pull.min_offset(queue))
    while offset < end and len(found) < count:
        result = await pull.pull(queue, offset)
        found += (message for message in result.messages if begin_ms <= message.store_timestamp <= end_ms)
        is_after = bool(result.messages) and end_ms < result.messages[-1].store_timestamp
        # A message of the future says nothing about those after it: the broker's clock was ahead.
        if result.next_begin_offset <= offset or (is_after and result.messages[-1].store_timestamp <= now_ms):
            break
        offset = result.next_begin_offset
    return found[:count]


def _milliseconds(at: StartAt) -> int:
    if isinstance(at, datetime):
        return max(int(at.timestamp() * 1000), 0)
    return 0 if at == "earliest" else _END_OF_TIME_MS


def _draw(message: MessageExt) -> None:
    body = shown_body(message)
    rows = [
        ("topic", message.topic),
        ("queue", _place(message)),
        ("message id", message.message_id),
        ("offset message id", message.offset_message_id),
        ("stored", local_time(message.store_timestamp)),
        ("born", local_time(message.born_timestamp)),
        ("born at", message.born_host),
        ("tries", str(message.reconsume_times)),
        *((f"property {name}", value) for name, value in message.properties.items()),
        ("body", f"{len(body)} bytes"),
    ]
    write_table(("FIELD", "VALUE"), rows)
    write_text(escape_controls(body.decode(errors="replace")) + "\n")


def _draw_table(messages: Iterable[MessageExt]) -> None:
    columns = ("STORED", "QUEUE", "MESSAGE ID", "TAG", "KEYS", "BODY")
    rows = [
        (
            local_time(message.store_timestamp),
            _place(message),
            message.message_id,
            message.tags,
            " ".join(message.keys) or None,
            _shortened(shown_body(message).decode(errors="replace")),
        )
        for message in messages
    ]
    write_table(columns, rows)


def _place(message: MessageExt) -> str:
    return f"{message.broker_name or '-'}:{message.queue_id}@{message.queue_offset}"


def _shortened(text: str) -> str:
    return text if len(text) <= _BODY_CHARACTERS else text[: _BODY_CHARACTERS - 3] + "..."


_COLUMNS: Final = ("TIME", "WHAT", "MESSAGE ID", "TOPIC", "GROUP", "CLIENT", "BROKER", "TRY", "TOOK MS", "RESULT")
#: By the code of a ``SubAfter`` record.
_RESULTS: Final = ("ok", "ok, late", "raised", "no status", "failed")
_DECISIONS: Final = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}


class Traced(NamedTuple):
    """A record, and the address of the client that wrote it."""

    record: TraceRecord
    client: str


@client_command
async def trace(options: MessageTraceOptions) -> None:
    """Write the steps of a message, or of all messages with a key, in the order of their times."""
    async with open_admin(options) as admin:
        messages = await admin.find_messages(options.trace_topic, options.message_id)
    rows = steps(records_about(messages, options.message_id))
    if not rows:
        raise IncompleteError(
            f"no trace of {options.message_id!r} in topic {options.trace_topic}: "
            "its producer and consumers must trace, and records take about a second to arrive"
        )
    write_records(_COLUMNS, rows, as_json=options.json)


def records_about(messages: Iterable[MessageExt], wanted: str) -> list[Traced]:
    """Return the records about a message id or a key, each once, in the order of trace messages."""
    found: dict[TraceRecord, Traced] = {}
    for message in messages:
        for record in decode_trace(message.body):
            if record.message_id == wanted or wanted in getattr(record, "keys", "").split():
                host = getattr(record, "client_host", "") or message.born_host.rpartition(":")[0]
                found.setdefault(record, Traced(record, host))
    return list(found.values())


def steps(traced: Iterable[Traced]) -> list[dict[str, Any]]:
    """Return one row for each step: each call of a handler, begun and ended, is one."""
    traced = list(traced)
    ends = {(end.request_id, end.message_id): (end, client) for end, client in traced if isinstance(end, ConsumeEnded)}
    topics = {record.message_id: record.topic for record, _ in traced if isinstance(record, Published)}
    rows = []
    for record, client in traced:
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
