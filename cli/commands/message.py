"""``triomq message`` and ``triomq transaction``: show, find, recall and trace messages; decide transactions."""

import time
from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import Final

from triomq.cli import output
from triomq.cli.arguments import admin_options
from triomq.cli.arguments.options import DEFAULT_PRODUCER_GROUP, ClientOptions
from triomq.cli.arguments.values import StartAt
from triomq.cli.errors import IncompleteError, UsageError
from triomq.cli.session import admin_command, client_command, client_config, open_admin
from triomq.client import Admin, MessageExt, Producer, PullConsumer, TransactionState
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.nursery import in_parallel
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import BrokerResponseError, ProtocolError
from triomq.protocol.message_queue import MessageQueue

_END_OF_TIME_MS: Final = 2**63 - 1
_BODY_CHARACTERS: Final = 60  # of a body in a table


@admin_command
async def show(options: admin_options.MessageShowOptions, admin: Admin) -> None:
    """Write one message."""
    try:
        message = await admin.message(options.message_id, options.topic)
    except BrokerResponseError as exc:
        if options.topic is None and exc.code == ResponseCode.QUERY_NOT_FOUND:
            hint = "to search for the id that its producer assigned, add --topic TOPIC"
            raise IncompleteError(f"no message has the offset message id {options.message_id!r}; {hint}") from exc
        raise
    if options.json:
        output.write_json(output.message_fields(message))
    else:
        _draw(message)


@client_command
async def recall(options: admin_options.MessageRecallOptions) -> None:
    """Take a delayed message back."""
    producer = Producer(DEFAULT_PRODUCER_GROUP, namesrv=options.namesrv, config=client_config(options))
    async with producer:
        try:
            message_id = await producer.recall(options.handle)
        except ProtocolError as exc:
            raise UsageError(str(exc)) from exc
    output.write_result({"message_id": message_id}, f"message {message_id} is taken back", as_json=options.json)


@client_command
async def find(options: admin_options.MessageFindOptions) -> None:
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
    columns = ("STORED", "QUEUE", "MESSAGE ID", "TAG", "KEYS", "BODY")
    records, rows = map(output.message_fields, messages), map(_row, messages)
    output.write_records(columns, records, as_json=options.json, rows=rows)


def _row(message: MessageExt) -> Sequence[output.Cell]:
    body, keys = output.shown_body(message).decode(errors="replace"), " ".join(message.keys) or None
    if len(body) > _BODY_CHARACTERS:
        body = body[: _BODY_CHARACTERS - 3] + "..."
    stored = output.local_time(message.store_timestamp)
    return stored, _place(message), message.message_id, message.tags, keys, body


async def _find_by_time(options: admin_options.MessageFindOptions, begin_ms: int, end_ms: int) -> list[MessageExt]:
    """Return the first messages stored in a time range, in the order of storage time."""
    pull = PullConsumer(TOOLS_GROUP, namesrv=options.namesrv, config=client_config(options))

    async def read(queue: MessageQueue) -> list[MessageExt]:
        found: list[MessageExt] = []
        end, now_ms = await pull.max_offset(queue), time.time_ns() // 1_000_000
        offset: int = await (pull.offset_for_timestamp(queue, begin_ms) if begin_ms else pull.min_offset(queue))
        while offset < end and len(found) < options.count:
            result = await pull.pull(queue, offset)
            found += (message for message in result.messages if begin_ms <= message.store_timestamp <= end_ms)
            is_after = bool(result.messages) and end_ms < result.messages[-1].store_timestamp
            # A message of the future says nothing about those after it: the broker's clock was ahead.
            if result.next_begin_offset <= offset or (is_after and result.messages[-1].store_timestamp <= now_ms):
                break
            offset = result.next_begin_offset
        return found[: options.count]

    async with pull:
        messages = chain(*await in_parallel(read, await pull.queues(options.topic)))
    return sorted(messages, key=lambda message: message.store_timestamp)[: options.count]


def _milliseconds(at: StartAt) -> int:
    if isinstance(at, datetime):
        return max(int(at.timestamp() * 1000), 0)
    return 0 if at == "earliest" else _END_OF_TIME_MS


def _draw(message: MessageExt) -> None:
    body = output.shown_body(message)
    rows = [
        ("topic", message.topic),
        ("queue", _place(message)),
        ("message id", message.message_id),
        ("offset message id", message.offset_message_id),
        ("stored", output.local_time(message.store_timestamp)),
        ("born", output.local_time(message.born_timestamp)),
        ("born at", message.born_host),
        ("tries", str(message.reconsume_times)),
        *((f"property {name}", value) for name, value in message.properties.items()),
        ("body", f"{len(body)} bytes"),
    ]
    output.write_table(("FIELD", "VALUE"), rows)
    output.write_text(output.escape_controls(body.decode(errors="replace")) + "\n")


def _place(message: MessageExt) -> str:
    return f"{message.broker_name or '-'}:{message.queue_id}@{message.queue_offset}"


_COLUMNS: Final = ("TIME", "WHAT", "MESSAGE ID", "TOPIC", "GROUP", "CLIENT", "BROKER", "TRY", "TOOK MS", "RESULT")


@admin_command
async def trace(options: admin_options.MessageTraceOptions, admin: Admin) -> None:
    """Write the steps of a message, or of all messages with a key, in the order of their times."""
    rows = await admin.trace(options.message_id, options.trace_topic)
    if not rows:
        raise IncompleteError(
            f"no trace of {options.message_id!r} in topic {options.trace_topic}: "
            "its producer and consumers must trace, and records take about a second to arrive"
        )
    output.write_records(_COLUMNS, rows, as_json=options.json)


@admin_command
async def list_undecided(options: ClientOptions, admin: Admin) -> None:
    """Write the undecided transactions, oldest first."""
    found = await admin.transactions()
    now_ms = time.time_ns() // 1_000_000
    columns = ("SENT", "AGE_S", "CHECKS", "GROUP", "TOPIC", "ID")
    records = [
        {
            "sent": each.born_ms if options.json else output.local_time(each.born_ms),
            "age_s": max(now_ms - each.born_ms, 0) // 1000,
            "checks": each.checks,
            "group": each.group,
            "topic": each.topic,
            "id": each.transaction_id,
        }
        for each in found
    ]
    output.write_records(columns, records, as_json=options.json)


_DECIDED: Final = {
    "transaction commit": (TransactionState.COMMIT, "committed"),
    "transaction rollback": (TransactionState.ROLLBACK, "rolled back"),
    "transaction check": (TransactionState.UNKNOWN, "is checked: a producer of its group is asked now"),
}


@admin_command
async def decide(options: admin_options.TransactionOptions, admin: Admin) -> None:
    """Commit or roll back an undecided transaction, or have a producer asked about it."""
    state, done = _DECIDED[options.command]
    await admin.decide_transaction(options.id, state)
    output.write_result({"id": options.id, "state": state.name.lower()}, f"{options.id} {done}", as_json=options.json)
