"""Many consume queues and a long log: cost of an append, a pull, a flush and a start, compared with few queues.

Each number of queues has its store and process, and they are measured in turns, so that changes of the machine's
speed affect all alike.  Each log is filled first, over all queues, and flushed in a thread at
the broker's intervals, here as while it is measured.  Processor time is that of the thread that owns the store; what
the disk takes is not the store's.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Self

from rich.progress import Progress

from bench.report import percentile, print_table, write_json
from triomq.cli.serving import raise_open_files_limit, settle_garbage_collector
from triomq.protocol.errors import TriomqError
from triomq.protocol.host import encode_host
from triomq.storage.append import entry
from triomq.storage.config import StoreConfig
from triomq.storage.flush import FlushPlan
from triomq.storage.message_store import MessageStore

_HOST: Final = encode_host("127.0.0.1", 10911)
_PROPERTIES: Final = b"UNIQ_KEY\x017F0000010001B4AAC216D2F36E000100\x02CLUSTER\x01DefaultCluster"
_QUEUES_OF_A_TOPIC: Final = 8
_FILL_BODY_BYTES: Final = 16 * 1024
_BODY_BYTES: Final = 128
_TURNS: Final = 10
_OPERATIONS: Final = 20_000  # of one turn
_FLUSH_LOOK: Final = 1000  # appends between two looks at the clock
_EXTRA_DISK_BYTES: Final = 3 * 1024**3  # consume queues, and files made ahead
_PULLED: Final = 32
_GIB: Final = 1024**3
_STEP_TIMEOUT_S: Final = 3600
_MEASURED: Final = {
    "append": "append",
    "pull_new": "pull of one new message",
    "pull_old": "pull of 32 old messages",
    "touch": "one byte written to a mapped file",
}
Figures = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--dir", type=Path, help="working directory (default: the one for temporary files)")
    parser.add_argument(
        "--queues", type=int, nargs="+", default=[10, 10_000], help="numbers of queues to compare (default 10 10000)"
    )
    parser.add_argument("--gigabytes", type=float, default=10.0, help="length of the log, in GiB (default 10)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Measure each number of queues and print them side by side."""
    with tempfile.TemporaryDirectory(prefix="triomq-bench-queues-", dir=options.dir) as base, ExitStack() as stack:
        log_bytes = int(options.gigabytes * _GIB)
        free, needed = shutil.disk_usage(base).free, len(options.queues) * (log_bytes + _EXTRA_DISK_BYTES)
        if free < needed:
            raise TriomqError(
                f"{base} has {free / _GIB:.1f} GiB free of {needed / _GIB:.1f} that are needed:"
                " choose another --dir or fewer --gigabytes"
            )
        stores = {
            count: stack.enter_context(_StoreProcess(Path(base) / str(count), count, log_bytes))
            for count in options.queues
        }
        figures: dict[int, Figures] = {count: store.ask("fill") for count, store in stores.items()}
        for step, name in _MEASURED.items():
            turns = [{count: store.ask(step) for count, store in stores.items()} for _ in range(_TURNS)]
            for count in stores:
                figures[count][f"{name}, us of CPU"] = statistics.median(turn[count] for turn in turns)
        for count, store in stores.items():
            figures[count] |= store.ask("close")
    columns = {f"{count:,} queues": found for count, found in figures.items()}
    names = next(iter(columns.values()))
    rows = [(name, *(f"{found[name]:,.3g}" for found in columns.values())) for name in names]
    print_table(f"queues, {options.gigabytes:g} GiB of log, {_TURNS} turns", ("what", *columns), rows)
    if options.json:
        write_json(options.json, columns)
    return 0


class _StoreProcess:
    """A process with one store, which runs one step after another on request."""

    def __init__(self, root: Path, count: int, log_bytes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, root, count, log_bytes), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def ask(self, step: str) -> Any:
        """Run one step and return its figures.

        Raises:
            TriomqError: the process failed and printed the reason.
        """
        try:
            self._connection.send(step)
            if self._connection.poll(_STEP_TIMEOUT_S):
                return self._connection.recv()
        except (EOFError, ConnectionError):
            pass
        raise TriomqError(f"the process that measures has failed, or took more than {_STEP_TIMEOUT_S} s, in: {step}")


def _serve(connection: Connection, root: Path, count: int, log_bytes: int) -> None:
    """Run the steps that the other process requests, until it hangs up."""
    raise_open_files_limit()
    settle_garbage_collector()  # as the broker does
    store = _Store(root, count, log_bytes)
    try:
        while True:
            connection.send(getattr(store, connection.recv())())
    except (EOFError, KeyboardInterrupt):
        return


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
        """Start a flush if it is due and none is running."""
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
        """Wait for the running flush."""
        if self._running is not None:
            plan, future = self._running
            self._running = None
            future.result()
            self._store.flush_done(plan)


class _Store:
    """A store with many queues; the steps are done in the order of its methods, the middle ones many times."""

    def __init__(self, root: Path, count: int, log_bytes: int) -> None:
        self._root = root
        self._log_bytes = log_bytes
        self._store = self._open()
        self._queues = [
            self._store.queue(f"Bench-{number // _QUEUES_OF_A_TOPIC}", number % _QUEUES_OF_A_TOPIC)
            for number in range(count)
        ]
        random.Random(count).shuffle(self._queues)
        self._flushing = _Flushing(self._store)
        self._read = 0  # old messages are read once: that would be cheaper the next time

    def _open(self) -> MessageStore:
        store = MessageStore(StoreConfig(root=self._root, disk_full_ratio=100))
        store.open()
        return store

    def fill(self) -> Figures:
        """Grow the log to its length."""
        body = os.urandom(_FILL_BODY_BYTES)
        append, queues, count, number = self._store.append, self._queues, len(self._queues), 0
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        with Progress(transient=True) as progress:
            task = progress.add_task(f"fill {count} queues", total=self._log_bytes)
            while self._store.commit_log.max_offset < self._log_bytes:
                for _ in range(_FLUSH_LOOK):
                    append([entry(queues[number % count], body, _PROPERTIES, born_host=_HOST, store_host=_HOST)])
                    number += 1
                self._flushing.tick()
                progress.update(task, completed=self._store.commit_log.max_offset)
        cpu_s, seconds = time.thread_time() - begin_cpu, time.perf_counter() - begin
        return {
            f"fill with {_FILL_BODY_BYTES} B, us of CPU per append": cpu_s / number * 1e6,
            f"fill with {_FILL_BODY_BYTES} B, MB/s": self._log_bytes / seconds / 1e6,
        }

    def append(self) -> float:
        """Append small messages to one queue after the other."""
        body = os.urandom(_BODY_BYTES)
        append_entries, queues, count = self._store.append, self._queues, len(self._queues)

        def append() -> None:
            for number in range(_OPERATIONS):
                queue = queues[number % count]
                append_entries([entry(queue, body, _PROPERTIES, born_host=_HOST, store_host=_HOST)])
                if not number % _FLUSH_LOOK:
                    self._flushing.tick()

        return _cpu_us(append, _OPERATIONS)

    def pull_new(self) -> float:
        """Read the newest message of one queue after the other."""
        queues, count = self._queues, len(self._queues)
        find, read = self._store.cold_reads.find, self._store.reader.get_message

        def pull() -> None:
            for number in range(_OPERATIONS):
                queue = queues[number % count]
                at = queue.max_offset - 1
                find(queue, at, _PULLED, None)
                read(queue, at, _PULLED)

        return _cpu_us(pull, _OPERATIONS)

    def pull_old(self) -> float:
        """Read 32 old messages of one queue after the other."""
        queues, count = self._queues, len(self._queues)
        find, read = self._store.cold_reads.find, self._store.reader.get_message
        pulls = range(self._read, self._read + _OPERATIONS // _PULLED)
        self._read = pulls.stop

        def pull() -> None:
            for number in pulls:
                queue, at = queues[number % count], number // count * _PULLED
                find(queue, at, _PULLED, None)
                read(queue, at, _PULLED)

        return _cpu_us(pull, len(pulls))

    def touch(self) -> float:
        """Write the first byte of one queue's oldest file after the other, which is 0 and stays so."""
        maps = [queue.files.files[0].map for queue in self._queues]
        count = len(maps)

        def touch() -> None:
            for number in range(_OPERATIONS):
                maps[number % count][0] = 0

        return _cpu_us(touch, _OPERATIONS)

    def close(self) -> Figures:
        """Flush everything, close the store and open it again."""
        self._flushing.finish()
        plans_s = sorted(self._flushing.plan_s)
        figures: Figures = {"plan of a queue flush, p50 ms of CPU": percentile(plans_s, 0.5) * 1000}
        figures |= _thorough_flush(self._store)
        figures |= _memory(self._store, "")
        figures["close, s"] = _timed(self._store.close)[0]
        self._queues.clear()
        self._store = MessageStore(StoreConfig(root=self._root, disk_full_ratio=100))
        figures["clean start, s"], figures["clean start, s of CPU"] = _timed(self._store.open)
        figures |= _memory(self._store, " after it")
        self._store.close()
        return figures


def _thorough_flush(store: MessageStore) -> Figures:
    """Flush all dirty pages of the queues."""
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
    """Return this process's anonymous memory, open files and mappings."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    anonymous_kib = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return {
        f"memory without mapped files{when}, MiB": anonymous_kib / 1024,
        f"open files{when}": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        f"mapped files of the store{when}": len(store.queues.pool) + len(store.commit_log.files.files),
    }


def _cpu_us(action: Callable[[], None], count: int) -> float:
    """Return this thread's CPU time for each of ``count`` operations, in microseconds."""
    return _timed(action)[1] / count * 1e6


def _timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that passed, and those that this thread had the processor."""
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    action()
    return time.perf_counter() - begin, time.thread_time() - begin_cpu
