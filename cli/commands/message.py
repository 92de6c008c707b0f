"""``triomq message``: show one, find some."""

import time
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Final

from triomq.cli.arguments.client_options import (
    DEFAULT_PRODUCER_GROUP,
    MessageFindOptions,
    MessageRecallOptions,
    MessageShowOptions,
)
from triomq.cli.arguments.values import StartAt, escape_controls
from triomq.cli.errors import IncompleteError, UsageError
from triomq.cli.message_text import message_fields, shown_body
from triomq.cli.output import local_time, write_json, write_result, write_table, write_text
from triomq.cli.session import client_command, client_config, open_admin
from triomq.client import MessageExt, Producer, PullConsumer
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.nursery import in_parallel
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import BrokerResponseError, ProtocolError
from triomq.protocol.message_queue import MessageQueue

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
