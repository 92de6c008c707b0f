"""``triomq store``: info, check and dump, on a store that no broker uses."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Final

from triomq.broker.addresses import Address
from triomq.broker.config import default_store_root
from triomq.cli import output
from triomq.cli.arguments.admin_options import StoreDumpOptions, StoreOptions
from triomq.cli.errors import ExitCode
from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.errors import TriomqError
from triomq.protocol.host import decode_host
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record
from triomq.storage.commit_log.log_scan import FILLER_TOPIC, DamagedPart, Progress
from triomq.storage.tools.stopped_store import StoppedStore
from triomq.storage.tools.store_check import check as check_store

_BODY_SHOWN: Final = 60
_COMPRESSION: Final = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB)
_ROWS_OF_A_TABLE: Final = 1000  # the widths of the columns need all rows in memory


def info(options: StoreOptions) -> None:
    """Write the sizes, files and queues of the store."""
    with _stopped(options) as store, output.progress_bar("reading") as progress:
        log = store.log
        first, last = store.ends(progress) or (None, None)
        found: dict[str, Any] = {
            "store": str(store.root),
            "closed_properly": store.is_clean,
            "commit_log_file_size_bytes": store.config.commit_log_file_size_bytes,
            "consume_queue_file_size_bytes": store.config.consume_queue_file_size_bytes,
            "commit_log_files": len(log.files.files),
            "commit_log_begin": log.files.start,
            "commit_log_end": last[0] + last[1].size if last is not None else log.files.start,
            "oldest_stored_ms": first[1].store_timestamp if first is not None else -1,
            "newest_stored_ms": last[1].store_timestamp if last is not None else -1,
            "messages": sum(queue.max_offset - queue.min_offset for queue in store.queues),
        }
        queues = [
            {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
                "messages": queue.max_offset - queue.min_offset,
            }
            for queue in sorted(store.queues, key=lambda queue: (queue.topic, queue.queue_id))
            if queue.files.files
        ]
    values = output.Table(("WHAT", "VALUE"), list(zip(map(output.label, found), output.cells(found), strict=True)))
    table = output.table_of(("TOPIC", "QUEUE", "MIN", "MAX", "MESSAGES"), queues)
    output.write_result({**found, "queues": queues}, values, "", table, as_json=options.json)


def check(options: StoreOptions) -> int:
    """Verify the store and write its problems."""
    with _stopped(options) as store, output.progress_bar("checking") as progress:
        report = check_store(store, progress)
    rows = [[p.kind.value, p.place, p.offset, p.count, p.text] for p in report.problems]
    tables = [output.Table(("PROBLEM", "WHERE", "FIRST", "COUNT", "WHAT"), rows)] if rows else []
    sound = f"{len(rows)} kinds of problems" if rows else "sound"
    text = f"{report.records} records, {report.units} units in consume queues, {report.index_units} in index files"
    output.write_result({"sound": not rows, **asdict(report)}, *tables, f"{text}: {sound}", as_json=options.json)
    return ExitCode.FAILED if report.problems else ExitCode.OK


def dump(options: StoreDumpOptions) -> None:
    """Write messages in the order of the commit log."""
    count = min(options.count, sys.maxsize) if options.count is not None else None
    with _stopped(options) as store, output.progress_bar("reading", is_writing=options.json) as progress:
        messages = _wanted(store, options, progress)
        if options.json:
            for message in islice(messages, count):
                output.write_json(_document(message))
            return
        rows = list(map(_row, islice(messages, _ROWS_OF_A_TABLE if count is None else count)))
        is_cut = count is None and next(messages, None) is not None
    output.write_table(("STORED", "TOPIC", "QUEUE", "OFFSET", "POSITION", "SIZE", "TAG", "KEYS", "BODY"), rows)
    if is_cut:
        output.write_text(f"only the first {len(rows)} are shown; --json writes all, --count N as many\n")


# --- reading ------------------------------------------------------------------------------------------------


def _stopped(options: StoreOptions) -> StoppedStore:
    return StoppedStore(Path(options.store).expanduser() if options.store else default_store_root())


def _wanted(store: StoppedStore, options: StoreDumpOptions, progress: Progress | None) -> Iterator[MessageExt]:
    """Yield the good messages in the order of the log that the options select."""
    begin_ms = int(options.begin.timestamp() * 1000) if options.begin is not None else 0
    end_ms = int(options.end.timestamp() * 1000) if options.end is not None else 2**63
    for found in store.walk(progress):
        if isinstance(found, DamagedPart) or found[1].topic == FILLER_TOPIC:
            continue
        record = store.log.look_message(found[0])
        assert record is not None, "the walk has found it"
        message = decode_record(record)
        if (
            (options.topic is None or message.topic == options.topic)
            and (options.queue_id is None or message.queue_id == options.queue_id)
            and begin_ms <= message.store_timestamp < end_ms
            and (options.key is None or options.key in (*message.keys, message.message_id, message.offset_message_id))
        ):
            yield message


# --- writing ------------------------------------------------------------------------------------------------


def _row(message: MessageExt) -> Sequence[output.Cell]:
    body = _body(message)[0].decode(errors="replace")
    shown = body if len(body) <= _BODY_SHOWN else body[:_BODY_SHOWN] + "..."
    place = (message.topic, message.queue_id, message.queue_offset, message.physical_offset)
    tags, keys = message.tags or "-", ",".join(message.keys) or "-"
    return output.local_time(message.store_timestamp), *place, message.store_size, tags, keys, shown


def _document(message: MessageExt) -> dict[str, Any]:
    """Return all fields of a record; the body is ``body_base64`` if it is not UTF-8."""
    body, sys_flag = _body(message)
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size_bytes": message.store_size,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "stored_ms": message.store_timestamp,
        "store_host": str(Address(*decode_host(message.encoded_store_host))),
        "born_ms": message.born_timestamp,
        "born_host": str(Address(*decode_host(message.encoded_born_host))),
        "flag": message.flag,
        "sys_flag": sys_flag,
        "tries": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "properties": message.properties,
        **output.body_fields(body),
    }


def _body(message: MessageExt) -> tuple[bytes, int]:
    """Return the decompressed body and the flags that fit it; a body that cannot be decompressed, as stored."""
    if message.sys_flag & MessageSysFlag.COMPRESSED:
        try:
            return message.body, message.sys_flag & ~_COMPRESSION
        except TriomqError:  # damaged, or a package is missing
            pass
    return message.stored_body, message.sys_flag
