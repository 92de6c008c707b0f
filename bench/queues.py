"""Many consume queues and a long log together: what an append, a pull, a flush and a start cost, beside few queues.

The log is filled first, over all queues, and flushed in a thread at the broker's intervals, here as while it is
measured.  Processor time is that of the thread that owns the store; what the disk takes is not the store's.
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from rich.progress import Progress

from bench.report import percentile, print_table, write_json
from triomq.cli.process import raise_open_files_limit, settle_garbage_collector
from triomq.protocol.errors import TriomqError
from triomq.protocol.host import encode_host
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue import ConsumeQueue
from triomq.storage.flush import FlushPlan
from triomq.storage.message_store import MessageStore

_HOST: Final = encode_host("127.0.0.1", 10911)
_PROPERTIES: Final = b"UNIQ_KEY\x017F0000010001B4AAC216D2F36E000100\x02CLUSTER\x01DefaultCluster"
_QUEUES_OF_A_TOPIC: Final = 8
_FILL_BODY_BYTES: Final = 16 * 1024
_BODY_BYTES: Final = 128
_OPERATIONS: Final = 200_000
_FLUSH_LOOK: Final = 1000  # appends between two looks at the clock
_EXTRA_DISK_BYTES: Final = 3 * 1024**3  # consume queues, and what is made ahead
_PULLED: Final = 32
_GIB: Final = 1024**3
Figures = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--dir", type=Path, help="where to work; the default is the directory for temporary files")
    parser.add_argument(
        "--queues", type=int, nargs="+", default=[10, 10_000], help="numbers of queues to compare (default 10 10000)"
    )
    parser.add_argument("--gigabytes", type=float, default=10.0, help="length of the log, in GiB (default 10)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")


def run(options: argparse.Namespace) -> int:
    """Measure each number of queues and print them side by side."""
    raise_open_files_limit()
    settle_garbage_collector()  # as the broker does
    with tempfile.TemporaryDirectory(prefix="triomq-bench-queues-", dir=options.dir) as base:
        log_bytes = int(options.gigabytes * _GIB)
        free = shutil.disk_usage(base).free
        if free < log_bytes + _EXTRA_DISK_BYTES:
            raise TriomqError(f"{base} has {free / _GIB:.1f} GiB free: choose another --dir or fewer --gigabytes")
        columns = {}
        for count in options.queues:
            root = Path(base) / str(count)
            columns[f"{count:,} queues"] = _measure(root, count, log_bytes)
            shutil.rmtree(root)
    head = ("what", *columns)
    names = next(iter(columns.values()))
    rows = [(name, *(f"{figures[name]:,.3g}" for figures in columns.values())) for name in names]
    print_table(f"queues, {options.gigabytes:g} GiB of log", head, rows)
    if options.json:
        write_json(options.json, columns)
    return 0


class _Flushing:
    """Flushes a store in a thread whenever the broker would; ``tick`` it often."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1)
        self._running: tuple[FlushPlan, Future[None]] | None = None
        self._log_at = self._queues_at = self._thorough_at = time.monotonic()
        self.plan_s: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.finish()
        self._thread.shutdown()

    def tick(self) -> None:
        """Begin a flush if it is time, and none runs."""
        if self._running is not None and not self._running[1].done():
            return
        self.finish()
        now, config = time.monotonic(), self._store.config
        begin = time.thread_time()
        plan = None
        if now - self._log_at >= config.flush_interval_s:
            self._log_at = now
            plan = self._store.flush_plan(config.flush_least_pages)
        elif now - self._queues_at >= config.flush_consume_queue_interval_s:
            self._queues_at = now
            is_thorough = now - self._thorough_at >= config.flush_consume_queue_thorough_interval_s
            if is_thorough:
                self._thorough_at = now
            pages = 0 if is_thorough else config.flush_consume_queue_least_pages
            plan = self._store.flush_consume_queues_plan(pages)
            self.plan_s.append(time.thread_time() - begin)
        if plan is not None:
            self._running = plan, self._thread.submit(plan.run)

    def finish(self) -> None:
        """Wait for the flush that runs."""
        if self._running is not None:
            plan, future = self._running
            self._running = None
            future.result()
            self._store.flush_done(plan)


def _measure(root: Path, count: int, log_bytes: int) -> Figures:
    store = MessageStore(StoreConfig(root=root, disk_full_ratio=100))
    store.open()
    queues = [
        store.queue(f"Bench-{number // _QUEUES_OF_A_TOPIC}", number % _QUEUES_OF_A_TOPIC) for number in range(count)
    ]
    random.Random(count).shuffle(queues)
    with _Flushing(store) as flushing:
        figures = _fill(store, queues, log_bytes, flushing)
        figures |= _appends(store, queues, flushing)
        figures |= _pulls(store, queues)
        figures["plan of a queue flush, p50 ms of CPU"] = percentile(sorted(flushing.plan_s), 0.5) * 1000
    figures |= _thorough_flush(store)
    figures |= _memory(store, "")
    figures["close, s"] = _timed(store.close)[0]
    store = MessageStore(StoreConfig(root=root, disk_full_ratio=100))
    figures["clean start, s"], figures["clean start, s of CPU"] = _timed(store.open)
    figures |= _memory(store, " after it")
    store.close()
    return figures


def _fill(store: MessageStore, queues: list[ConsumeQueue], log_bytes: int, flushing: _Flushing) -> Figures:
    """Let the log grow to its length."""
    body = os.urandom(_FILL_BODY_BYTES)
    put, count, number = store.put, len(queues), 0
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    with Progress(transient=True) as progress:
        task = progress.add_task(f"fill {count} queues", total=log_bytes)
        while store.commit_log.max_offset < log_bytes:
            for _ in range(_FLUSH_LOOK):
                put(queues[number % count], body, _PROPERTIES, 0, 0, 0, 0, _HOST, _HOST)
                number += 1
            flushing.tick()
            progress.update(task, completed=store.commit_log.max_offset)
    cpu_s, seconds = time.thread_time() - begin_cpu, time.perf_counter() - begin
    return {
        f"fill with {_FILL_BODY_BYTES} B, us of CPU per append": cpu_s / number * 1e6,
        f"fill with {_FILL_BODY_BYTES} B, MB/s": log_bytes / seconds / 1e6,
    }


def _appends(store: MessageStore, queues: list[ConsumeQueue], flushing: _Flushing) -> Figures:
    """Append small messages to one queue after the other."""
    body = os.urandom(_BODY_BYTES)
    put, count = store.put, len(queues)

    def append() -> None:
        for number in range(_OPERATIONS):
            put(queues[number % count], body, _PROPERTIES, 0, 0, 0, 0, _HOST, _HOST)
            if not number % _FLUSH_LOOK:
                flushing.tick()

    return _each("append", append)


def _pulls(store: MessageStore, queues: list[ConsumeQueue]) -> Figures:
    """Read the newest message of one queue after the other, and then old ones, 32 at a time."""
    count, find, read = len(queues), store.cold_reads.find, store.get_message

    def newest() -> None:
        for number in range(_OPERATIONS):
            queue = queues[number % count]
            at = queue.max_offset - 1
            find(queue, at, _PULLED, None)
            read(queue, at, _PULLED)

    def old() -> None:
        for number in range(_OPERATIONS // _PULLED):  # no message twice: that would be cheaper with few queues
            queue, at = queues[number % count], number // count * _PULLED
            find(queue, at, _PULLED, None)
            read(queue, at, _PULLED)

    figures = _each("pull of one new message", newest)
    return figures | _each("pull of old messages", old, _OPERATIONS // _PULLED)


def _thorough_flush(store: MessageStore) -> Figures:
    """Put all on the disk that is dirty in the queues."""
    figures: Figures = {}
    begin = time.thread_time()
    plan = store.flush_consume_queues_plan()
    figures["plan of a thorough queue flush, ms of CPU"] = (time.thread_time() - begin) * 1000
    figures["thorough queue flush, s"] = figures["end of a thorough queue flush, ms of CPU"] = 0.0
    if plan is not None:
        figures["thorough queue flush, s"] = _timed(plan.run)[0]
        begin = time.thread_time()
        store.flush_done(plan)
        figures["end of a thorough queue flush, ms of CPU"] = (time.thread_time() - begin) * 1000
    return figures


def _memory(store: MessageStore, when: str) -> Figures:
    """Return what this process has in memory that belongs to no file, and what it has open and mapped."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    anonymous_kib = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return {
        f"memory without mapped files{when}, MiB": anonymous_kib / 1024,
        f"open files{when}": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        f"mapped files of the store{when}": store.statistics().mapped_files,
    }


def _each(name: str, action: Callable[[], None], count: int = _OPERATIONS) -> Figures:
    seconds, cpu_s = _timed(action)
    return {f"{name}, us of CPU": cpu_s / count * 1e6, f"{name}, us": seconds / count * 1e6}


def _timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that passed, and those that this thread had the processor."""
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    action()
    return time.perf_counter() - begin, time.thread_time() - begin_cpu
