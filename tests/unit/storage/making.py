"""Helpers of the store's tests: a clock, file systems that fail, stores with small files, one way to put."""

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from mmap import mmap
from pathlib import Path
from typing import Any, Final, NamedTuple

from triomq.protocol.host import encode_host
from triomq.protocol.java import tags_code
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_records
from triomq.storage.append import Entry, entry
from triomq.storage.config import StoreConfig
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.json_table import JsonTable
from triomq.storage.index.message_index import IndexMatches
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish
from triomq.storage.recovery.recovery import RecoveryReport
from triomq.storage.retention import Deletion, Retention

SMALL: Final[dict[str, Any]] = {
    "commit_log_file_size_bytes": 65536,
    "consume_queue_file_size_bytes": 1000,
    "index_slots": 50,
    "index_units": 150,
}
HOST: Final = encode_host("127.0.0.1", 10911)
BORN: Final = 1_795_214_245_591


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


_PATHS: Final[dict[str, Callable[..., Iterable[Path]]]] = {
    "create_file": lambda scratch, size_bytes, path: (path,),
    "rename": lambda source, target: (target,),
    "sync_all": lambda paths: paths,
    **dict.fromkeys(("map_file", "reserve", "zero", "sync_file"), lambda file, *_: (file.path,)),
    **dict.fromkeys(("make_directories", "open_file", "sync_directory", "unlink"), lambda path: (path,)),
    **dict.fromkeys(("remove_directory", "overwrite_file", "write_file"), lambda path, *_: (path,)),
}
"""By the names of calls: the paths that a call is about."""


class FaultyFileSystem(FileSystem):
    """Raises ``OSError(code)`` from the calls that ``fails`` picks by their number, name and path."""

    def __init__(self) -> None:
        self.code = errno.ENOSPC
        self.fails: Callable[[int, str, Path], bool] = lambda number, name, path: False
        self.calls: list[tuple[str, Path]] = []

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in _PATHS:
            return method

        def call(*arguments: Any) -> Any:
            for path in _PATHS[name](*arguments):
                self.calls.append((name, path))
                if self.fails(len(self.calls), name, path):
                    raise OSError(self.code, os.strerror(self.code), str(path))
            return method(*arguments)

        return call


class NothingInMemory(FileSystem):
    """Says of all pages that they are on the disk only."""

    def is_resident(self, map_: mmap, start: int, end: int) -> bool:
        return False


class StoreMaker:
    """Makes stores below one directory and closes those that are still open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self._stores: list[MessageStore] = []

    def __call__(self, *arguments: Any, **settings: Any) -> MessageStore:
        """Open a store with small files, at a given root or the common place; see ``describe``."""
        store = self.describe(*arguments, **settings)
        store.open()
        return store

    def describe(
        self,
        root: Path | None = None,
        *,
        file_system: FileSystem | None = None,
        is_replica: bool = False,
        **settings: Any,
    ) -> MessageStore:
        """Make a store that is not open yet."""
        config = StoreConfig(root=root or self.root / "store", **{**SMALL, **settings})
        store = MessageStore(config, file_system=file_system, clock_ms=self.clock, is_replica=is_replica)
        self._stores.append(store)
        return store

    def killed_copy(self, store: MessageStore) -> Path:
        """What a killed process would have left of an open store."""
        target = self.root / f"copy-{len(list(self.root.iterdir()))}"
        shutil.copytree(store.config.root, target)
        return target

    def close(self) -> None:
        for store in self._stores:
            store.close()


class Appended(NamedTuple):
    """Where a message was stored, and when (ms)."""

    physical_offset: int
    queue_offset: int
    store_timestamp: int


def message(
    store: MessageStore, topic: str = "T", queue_id: int = 0, body: bytes | memoryview = b"body", **fields: Any
) -> Entry:
    """One message to append; ``tags`` and other fields by name."""
    tags = fields.pop("tags", None)
    properties = fields.pop("properties", encode_properties({"TAGS": tags} if tags else {}))
    values = {"tags_code": tags_code(tags), "born_timestamp": BORN, "born_host": HOST, "store_host": HOST, **fields}
    return entry(store.queue(topic, queue_id), bytes(body), properties, **values)


def put(
    store: MessageStore, topic: str = "T", queue_id: int = 0, body: bytes | memoryview = b"body", **fields: Any
) -> Appended:
    """Append one message; ``tags`` and other fields by name."""
    (place,) = store.append([message(store, topic, queue_id, body, **fields)])
    return Appended(*place, store.commit_log.store_timestamp)


def body(number: int) -> bytes:
    return b"%03d " % number * 250


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    next_offset = store.reader.min_offset_in_queue(topic, queue_id)
    while next_offset < store.reader.max_offset_in_queue(topic, queue_id):
        result = store.reader.get_message((topic, queue_id), next_offset, 32)
        found += [message.stored_body for buffer in result.buffers for message in decode_records(buffer)]
        next_offset = result.next_begin_offset
    return found


def deleted_by_apache(maker: "StoreMaker", topic: str, *, made_again: bool = True) -> Path:
    """A closed store whose ``topic`` was deleted by a broker that notes no deletion, and made again by ours."""
    store = filled(maker)
    put(store, topic, queue_id=1)
    put(store, "U")
    store.close()
    root = store.config.root
    shutil.rmtree(root / "consumequeue" / topic)
    names = ["U", topic] if made_again else ["U"]
    JsonTable(root / "config" / "topics.json").save({"topicConfigTable": {name: {} for name in names}})
    if made_again:
        store = maker(root)
        for number in range(3):
            assert put(store, topic, body=b"new %d" % number).queue_offset == number
        store.close()
    return root


def matches(
    store: MessageStore, topic: str, key: str, most: int = 64, begin: int = 0, end: int = 2**63 - 1
) -> IndexMatches:
    """What a search in the index finds."""
    return finish(store.index.search(topic, key, most, begin, end))


def discard(store: MessageStore) -> None:
    """Close a store and delete its directory."""
    store.close()
    shutil.rmtree(store.config.root)


def run(retention: Retention) -> int:
    """Do the steps of ``RetentionService`` at once; return how many commit log files were deleted."""

    def finish_later(deletion: Deletion) -> None:
        retention.held.append(deletion)  # also if the deletion fails
        if deletion.finish():
            retention.held.remove(deletion)

    retention.finish_held()
    reasons = retention.plan()
    for reason in reasons:
        finish_later(retention.delete_log_file(reason))
    if retention.is_behind:
        queues = retention.queues_behind
        retention.correct_queues(queues)
        while deletion := retention.delete_queue_files(queues):
            finish_later(deletion)
        retention.follow()
    return len(reasons)


def report(store: MessageStore) -> RecoveryReport:
    assert store.recovery is not None
    return store.recovery


def log_file(root: Path, start: int) -> Path:
    return root / "commitlog" / f"{start:020d}"


def queue_file(root: Path, topic: str, start: int) -> Path:
    return root / "consumequeue" / topic / "0" / f"{start:020d}"


def overwrite(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def filled(maker: StoreMaker, count: int = 200, topics: tuple[str, ...] = ("T", "U")) -> MessageStore:
    """Messages of 1 KB in several commit log and consume queue files, 10 ms apart."""
    store = maker()
    for number in range(count):
        maker.clock.now_ms += 10
        put(store, topics[number % len(topics)], body=body(number))
    return store


def log_and_queue_files(root: Path) -> set[str]:
    """Names of the files of the commit log and of all consume queues below ``root``."""
    paths = (path for part in ("commitlog", "consumequeue") for path in (root / part).rglob("*") if path.is_file())
    return {str(path.relative_to(root)) for path in paths}


def mapped_without_read_ahead(root: Path) -> set[str]:
    """Names of the mapped files below ``root`` of which the kernel reads only the pages that are touched."""
    found: set[str] = set()
    name = ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            name = words[-1]
        elif words[0] == "VmFlags:" and "rr" in words and Path(name).is_relative_to(root):
            found.add(name.removeprefix(f"{root}/"))
    return found
