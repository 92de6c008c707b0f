"""``triomq store``: info, check, dump, repair, export, import, on a store that no broker uses."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from triomq.broker.config import default_store_root
from triomq.cli.arguments.store_options import (
    StoreDumpOptions,
    StoreExportOptions,
    StoreImportOptions,
    StoreOptions,
    StoreRepairOptions,
)
from triomq.cli.errors import UsageError
from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import (
    cells,
    escape_json,
    label,
    local_time,
    progress_bar,
    write_json,
    write_records,
    write_result,
    write_table,
    write_text,
)
from triomq.protocol.errors import StoreError
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record
from triomq.protocol.wire.frame import MAX_FRAME_BYTES
from triomq.storage.commit_log.log_scan import Progress
from triomq.storage.commit_log.log_walk import Damage, find_ends, walk
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.unit_search import newest_unit
from triomq.storage.message_store import MessageStore
from triomq.storage.tools.index_check import find_index_layout
from triomq.storage.tools.message_document import (
    import_messages,
    json_line,
    msgpack_bytes,
    read_json_lines,
    read_msgpack,
    to_document,
)
from triomq.storage.tools.stopped_store import StoppedStore
from triomq.storage.tools.store_check import CheckReport
from triomq.storage.tools.store_check import check as check_store
from triomq.storage.tools.store_repair import RepairPlan, plan_repair
from triomq.storage.tools.store_repair import repair as repair_store

_BODY_SHOWN: Final = 60
_MOST_BODY_BYTES: Final = MAX_FRAME_BYTES - 2 * 64 * 1024  # the rest of a frame is for the record and a header
_PROGRESS_STEP: Final = 1000
_ROWS_OF_A_TABLE: Final = 1000  # the widths of the columns need all rows in memory


def info(options: StoreOptions) -> int:
    """Write the sizes, files and queues of the store."""
    with _stopped(options) as store, progress_bar("reading") as progress:
        log = store.log
        units = (newest_unit(queue) for queue in store.queues)
        known = max((unit.physical_offset for unit in units if unit is not None), default=-1)
        first, last = find_ends(log, known, progress) or (
            None,
            None,
        )  # a power loss may lose units
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
                **_fields(queue, "topic", "queue_id", "min_offset", "max_offset"),
                "messages": queue.max_offset - queue.min_offset,
            }
            for queue in sorted(store.queues, key=lambda queue: (queue.topic, queue.queue_id))
            if queue.files.files
        ]
    if options.json:
        write_json({**found, "queues": queues})
    else:
        write_table(("WHAT", "VALUE"), list(zip(map(label, found), cells(found), strict=True)))
        write_text("\n")
        write_records(("TOPIC", "QUEUE", "MIN", "MAX", "MESSAGES"), queues, as_json=False)
    return ExitCode.OK


def check(options: StoreOptions) -> int:
    """Verify the store and write its problems."""
    with _stopped(options) as store:
        report = _check(store)
    if options.json:
        write_json(_report(report))
    else:
        _write_problems(report)
        sound = "sound" if not report.problems else f"{len(report.problems)} kinds of problems"
        write_text(
            f"{report.records} records, {report.units} units in consume queues, {report.index_units} in index files: "
            f"{sound}\n"
        )
    return ExitCode.FAILED if report.problems else ExitCode.OK


def dump(options: StoreDumpOptions) -> int:
    """Write messages in the order of the commit log."""
    count = min(options.count, sys.maxsize) if options.count is not None else None
    if options.json:
        with _stopped(options) as store, progress_bar("reading", is_writing=True) as progress:
            for message in islice(_wanted(store, options, progress), count):
                write_text(escape_json(json_line(to_document(message, plain=True))).decode())
        return ExitCode.OK
    with _stopped(options) as store, progress_bar("reading") as progress:
        messages = _wanted(store, options, progress)
        rows = [_row(message) for message in islice(messages, _ROWS_OF_A_TABLE if count is None else count)]
        is_cut = count is None and next(messages, None) is not None
    write_table(("STORED", "TOPIC", "QUEUE", "OFFSET", "POSITION", "SIZE", "TAG", "KEYS", "BODY"), rows)
    if is_cut:
        write_text(f"only the first {len(rows)} are shown; --json writes all, --count N as many\n")
    return ExitCode.OK


def repair(options: StoreRepairOptions) -> int:
    """Plan a repair, and do it with ``--apply``."""
    done: dict[str, Any] = {}
    with _stopped(options, writable=options.apply) as store:
        plan = plan_repair(store, _check(store))
        if options.apply and not plan.is_empty:
            with progress_bar("building queues") as progress:
                result = repair_store(store, plan, progress)
            done = _fields(result, "units_built", "records_ignored", "offsets_set")
    text = "\n".join(_plan_lines(plan, is_done=options.apply))
    write_result({"applied": options.apply, **_plan(plan), **done}, text, as_json=options.json)
    return ExitCode.OK


def export(options: StoreExportOptions) -> int:
    """Write the messages of a topic to a file."""
    encode = msgpack_bytes if _is_msgpack(options) else json_line
    count = 0
    with _stopped(options) as store, progress_bar("reading") as progress:
        with _replaced(Path(options.file)) as file:
            for message in _messages(store, progress):
                if message.topic == options.topic:
                    file.write(encode(to_document(message, plain=False)))
                    count += 1
            if not count:
                raise UsageError(f"the store has no message of topic {options.topic!r}")
    return _write_count(options, "exported", count)


def import_(options: StoreImportOptions) -> int:
    """Append messages from a file to a store."""
    read = read_msgpack if _is_msgpack(options) else read_json_lines
    with Path(options.file).open("rb") as file, progress_bar("importing") as progress:
        size = Path(options.file).stat().st_size
        is_sized = file.seekable()  # a pipe is not

        def stored(count: int) -> None:
            if progress is not None and is_sized and count % _PROGRESS_STEP == 0:
                progress(file.tell(), size)

        with MessageStore(_config(options)) as store:
            count = import_messages(store, read(file), stored)
    return _write_count(options, "imported", count)


# --- reading ------------------------------------------------------------------------------------------------


def _root(options: StoreOptions) -> Path:
    return Path(options.store).expanduser() if options.store else default_store_root()


def _stopped(options: StoreOptions, *, writable: bool = False) -> StoppedStore:
    return StoppedStore(_root(options), writable=writable)


def _config(options: StoreOptions) -> StoreConfig:
    """Return the settings of an existing store, else the defaults; with the largest bodies that clients accept."""
    root = _root(options)
    config = StoreConfig(root=root)
    if (root / "commitlog").is_dir():
        with StoppedStore(root) as store:
            config = store.config
            if (layout := find_index_layout(store)) is not None:
                config = replace(config, index_slots=layout.slots, index_units=layout.max_units)
    return replace(config, max_message_size_bytes=_MOST_BODY_BYTES)  # a file may have larger ones


def _check(store: StoppedStore) -> CheckReport:
    with progress_bar("checking") as progress:
        return check_store(store, progress)


def _messages(store: StoppedStore, progress: Progress | None) -> Iterator[MessageExt]:
    """Yield the good messages in the order of the log."""
    for found in walk(store.log, store.file_system, progress=progress):
        if not isinstance(found, Damage):
            record = store.log.look_message(found[0])
            assert record is not None, "the walk has found it"
            yield decode_record(record)


def _wanted(store: StoppedStore, options: StoreDumpOptions, progress: Progress | None) -> Iterator[MessageExt]:
    begin_ms = _ms(options.begin) if options.begin is not None else 0
    end_ms = _ms(options.end) if options.end is not None else 2**63
    for message in _messages(store, progress):
        if (
            (options.topic is None or message.topic == options.topic)
            and (options.queue_id is None or message.queue_id == options.queue_id)
            and begin_ms <= message.store_timestamp < end_ms
            and (options.key is None or options.key in (*message.keys, message.message_id, message.offset_message_id))
        ):
            yield message


def _is_msgpack(options: StoreExportOptions | StoreImportOptions) -> bool:
    return options.format == "msgpack" if options.format else options.file.endswith((".msgpack", ".mp"))


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` when the block succeeds; pipes and the like are written directly."""
    is_plain = path.is_file() or not path.exists()
    target = path.resolve()  # a link stays one
    scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp") if is_plain else path
    try:
        file = scratch.open("wb")
        try:
            with file:
                yield file
                if is_plain:
                    file.flush()
                    os.fsync(file.fileno())  # otherwise a power loss may lose both the old and the new file
            if is_plain:
                scratch.replace(target)
        finally:
            if is_plain:
                scratch.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise StoreError(f"cannot write {path}: {exc.strerror or exc}; choose another file") from exc


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


# --- writing ------------------------------------------------------------------------------------------------


def _row(message: MessageExt) -> list[str | int]:
    body = to_document(message, plain=True)["body"].decode(errors="replace")
    return [
        local_time(message.store_timestamp),
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        message.store_size,
        message.tags or "-",
        ",".join(message.keys) or "-",
        body if len(body) <= _BODY_SHOWN else body[:_BODY_SHOWN] + "...",
    ]


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _report(report: CheckReport) -> dict[str, Any]:
    return {
        "sound": not report.problems,
        **_fields(report, "records", "record_bytes", "units", "index_units", "log_end"),
        "problems": [
            {"kind": problem.kind.value, **_fields(problem, "place", "offset", "text", "count")}
            for problem in report.problems
        ],
    }


def _write_problems(report: CheckReport) -> None:
    if report.problems:
        rows = [[p.kind.value, p.place, p.offset, p.count, p.text] for p in report.problems]
        write_table(("PROBLEM", "WHERE", "FIRST", "COUNT", "WHAT"), rows)


def _plan(plan: RepairPlan) -> dict[str, Any]:
    return {
        **_fields(plan, "cut_at", "cut_bytes", "queues", "index_files"),
        "offsets": [stored._asdict() for stored in plan.offsets],
        "losses": [_fields(loss, "place", "offset", "text") for loss in plan.losses],
    }


def _plan_lines(plan: RepairPlan, *, is_done: bool) -> Iterator[str]:
    verb = "" if is_done else "would be "
    if plan.cut_at is not None:
        yield f"commit log: {verb}cut at {plan.cut_at}, {plan.cut_bytes} bytes after it cleared"
    for name in plan.queues:
        yield f"consume queue {name}: {verb}deleted and rebuilt from the commit log"
    for name in plan.index_files:
        yield f"index file {name}: {verb}deleted; a broker rebuilds it"
    for stored in plan.offsets:
        yield f"offset of group {stored.group} in {stored.topic}:{stored.queue_id}: {verb}set to {stored.offset}"
    for loss in plan.losses:
        yield f"{loss.place}: messages at {loss.offset} are lost ({loss.text}); readers skip them"
    if plan.fillers:
        text = "replaced by empty records, and a copy kept in quarantine"
        yield f"commit log: {len(plan.fillers)} damaged parts {verb}{text}"
    if plan.is_empty:
        yield "nothing to repair"
    elif not is_done:
        yield "nothing was changed; triomq store repair --apply does it"


def _write_count(options: StoreExportOptions | StoreImportOptions, verb: str, count: int) -> int:
    write_result({"file": options.file, verb: count}, f"{count} messages {verb}", as_json=options.json)
    return ExitCode.OK
