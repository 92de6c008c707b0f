"""The store without a broker, compared with the bare machine: append, read, flush, start, rebuild."""

import argparse
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Final

from bench.report import percentile, print_table, write_json
from triomq.protocol.host import encode_host
from triomq.storage.append import Entry, entry
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.message_store import MessageStore

_HOST: Final = encode_host("127.0.0.1", 10911)
_TOPIC: Final = "Bench"
_PROPERTIES: Final = b"UNIQ_KEY\x017F0000010001B4AAC216D2F36E000100\x02CLUSTER\x01DefaultCluster"
_MIB: Final = 1024**2
_FLUSHES: Final = 200
_READS: Final = 5000
_SYNC_BODY_BYTES: Final = 128
Figures = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this mode."""
    parser.add_argument("--dir", type=Path, help="working directory (default: the one for temporary files)")
    parser.add_argument("--megabytes", type=int, default=256, help="length of the log of each part")
    parser.add_argument("--queues", type=int, default=8, help="queues that share the messages")
    parser.add_argument(
        "--slower-ms",
        type=float,
        nargs="*",
        default=[0.0],
        help="added to each fdatasync, as on a slower disk (default 0)",
    )
    parser.add_argument("--only-sync", action="store_true", help="only senders that wait for the disk")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Measure everything and print it."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="triomq-bench-store-", dir=options.dir) as base:
        for body_bytes in () if options.only_sync else (128, 4096, 65536):
            root = Path(base) / str(body_bytes)
            figures |= _append(root, body_bytes, options)
            figures |= _starts(root, body_bytes)
            shutil.rmtree(root)
        for slower_ms in options.slower_ms:
            with _slower_disk(slower_ms / 1000):
                figures |= _flush(
                    Path(base) / f"flush-{slower_ms}", f", fdatasync + {slower_ms:g} ms" if slower_ms else ""
                )
    print_table("store", ("what", "figure"), [(name, f"{value:,.3g}") for name, value in figures.items()])
    if options.json:
        write_json(options.json, figures)
    return 0


def _open(root: Path, durability: Durability = Durability.ASYNC) -> MessageStore:
    store = MessageStore(StoreConfig(root=root, durability=durability, disk_full_ratio=100))
    store.open()
    return store


def _timed(action: Callable[[], object]) -> float:
    return _timed_twice(action)[0]


def _timed_twice(action: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds; on a busy machine only the latter mean anything."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - begin, time.process_time() - begin_cpu


def _append(root: Path, body_bytes: int, options: argparse.Namespace) -> Figures:
    store = _open(root)
    queues = [store.queue(_TOPIC, number) for number in range(options.queues)]
    count = max(options.megabytes * _MIB // (body_bytes + 170), 1)
    body = os.urandom(body_bytes)
    append_entries = store.append

    def append() -> None:
        for number in range(count):
            queue = queues[number % len(queues)]
            append_entries([entry(queue, body, _PROPERTIES, born_host=_HOST, store_host=_HOST)])

    seconds, cpu_s = _timed_twice(append)
    figures: Figures = {
        f"append {body_bytes} B, records/s": count / seconds,
        f"append {body_bytes} B, MB/s": count * body_bytes / seconds / 1e6,
        f"append {body_bytes} B, us of CPU": cpu_s / count * 1e6,
    }
    figures |= _read(store, f"get_message of up to 32 x {body_bytes} B")
    figures[f"close {body_bytes} B, s"] = _timed(store.close)
    return figures


def _read(store: MessageStore, name: str) -> Figures:
    """Read one queue from its start, each message once."""
    queue = store.queue(_TOPIC, 0)
    last = max(queue.max_offset - 32, 1)
    count = min(_READS, -(-last // 32))  # no message twice: a second read is cheaper

    def read() -> None:
        for number in range(count):
            store.reader.get_message(queue, number * 32, 32)  # not kept: a broker forgets it when it is sent

    seconds, cpu_s = _timed_twice(read)
    return {f"{name}, us": seconds / count * 1e6, f"{name}, us of CPU": cpu_s / count * 1e6}


def _starts(root: Path, body_bytes: int) -> Figures:
    """Start after a clean stop, after a crash without checkpoint, and without consume queues."""
    figures: Figures = {f"clean start {body_bytes} B, s": _start(root)[0][0]}
    with _open(root) as store:  # of another process, as it were: each record is checked once
        for time_ in ("the first time", "again"):
            figures |= _read(store, f"get_message of up to 32 x {body_bytes} B of an earlier process {time_}")
    for name in ("crash scan", "rebuild"):
        (root / "checkpoint").unlink()
        (root / "abort").touch()
        if name == "rebuild":
            shutil.rmtree(root / "consumequeue")
        (seconds, cpu_s), records, scanned = _start(root)
        figures[f"{name} {body_bytes} B, records/s"] = records / seconds
        figures[f"{name} {body_bytes} B, MB/s"] = scanned / seconds / 1e6
        figures[f"{name} {body_bytes} B, us of CPU per record"] = cpu_s / records * 1e6
    return figures


def _start(root: Path) -> tuple[tuple[float, float], int, int]:
    store = MessageStore(StoreConfig(root=root, disk_full_ratio=100))
    seconds = _timed_twice(store.open)
    report = store.recovery
    assert report is not None, "the store is open"
    assert not report.truncated_bytes, "nothing of a whole log is cut"
    store.close()
    return seconds, report.records, report.log_end - report.scan_start


@contextlib.contextmanager
def _slower_disk(seconds: float) -> Iterator[None]:
    """Make each fdatasync of this process take longer."""
    real = os.fdatasync

    def slower(number: int) -> None:
        real(number)
        time.sleep(seconds)

    if seconds:
        os.fdatasync = slower  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fdatasync = real


def _flush(root: Path, disk: str) -> Figures:
    """One sender that waits for each flush, 64 that share one, each in turn with fdatasync of as many bytes.

    Messages that came together are stored together, as the broker does.
    """
    store = _open(root, Durability.SYNC)
    queue = store.queue(_TOPIC, 0)
    body = os.urandom(_SYNC_BODY_BYTES)
    figures: Figures = {}
    rates = []
    for senders in (1, 64):
        run = [entry(queue, body, _PROPERTIES, born_host=_HOST, store_host=_HOST)] * senders

        def group(run: list[Entry] = run) -> None:
            store.append(run)
            plan = store.flush_plan()
            assert plan is not None, "something was put"
            plan.run()
            store.flush_done(plan)
            store.dispatch_flushed()

        group()
        begin = store.commit_log.max_offset
        group()
        written = os.urandom(store.commit_log.max_offset - begin)
        with (root / "probe").open("wb", buffering=0) as file:
            file.write(bytes(len(written) * _FLUSHES))  # written once, as the log is: that saves the disk's journal
            os.fsync(file.fileno())
            file.seek(0)

            def probe(written: bytes = written, file: FileIO = file) -> None:
                file.write(written)
                os.fdatasync(file.fileno())

            pairs = [(_timed(group), _timed(probe)) for _ in range(_FLUSHES)]
        (root / "probe").unlink()
        seconds, probed = (sorted(column) for column in zip(*pairs, strict=True))
        name = f"sync{disk}, {senders} senders"
        rates.append(senders * _FLUSHES / sum(seconds))
        figures[f"{name}, records/s"] = rates[-1]
        figures[f"{name}, p50 ms"] = percentile(seconds, 0.5) * 1000
        figures[f"{name}, write and fdatasync of as many bytes, p50 ms"] = percentile(probed, 0.5) * 1000
        figures[f"{name}, p50 to that"] = percentile(seconds, 0.5) / percentile(probed, 0.5)
    figures[f"sync{disk}, 64 senders to 1, records/s"] = rates[1] / rates[0]
    store.close()
    return figures
