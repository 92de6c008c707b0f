"""Which files are deleted, when and in which order, and that readers notice nothing."""

import errno
import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.storage.making import (
    FaultyFileSystem,
    StoreMaker,
    bodies,
    body,
    filled,
    log_file,
    put,
    queue_file,
    run,
)
from triomq.protocol.errors import StoreError
from triomq.protocol.record.record import decode_records
from triomq.storage.config import StoreConfig
from triomq.storage.files.file_system import DiskSpace, FileSystem
from triomq.storage.message_store import MessageStore
from triomq.storage.retention import MAX_FILES_PER_RUN, LogFile, Moment, Reason, Retention, plan

HOUR: Final = 3_600_000
ROOMY: Final = DiskSpace(used_bytes=500, available_bytes=500)
NOW: Final = 1_800_000_000_000
LOG_FILE: Final = 65536


def config(**settings: Any) -> StoreConfig:
    return StoreConfig(root=Path("nowhere"), commit_log_file_size_bytes=1024, **settings)


def files(*ages_h: float, size_bytes: int = 10) -> list[LogFile]:
    return [LogFile(size_bytes, NOW - int(age * HOUR)) for age in ages_h]


def moment(**fields: Any) -> Moment:
    values = {"is_delete_hour": False, "is_requested": False, "log_bytes": 0, "disk": ROOMY}
    return Moment(now_ms=NOW, **{**values, **fields})


# --- the plan ------------------------------------------------------------------------------------------------


AGE, DISK, LENGTH = [Reason.AGE], [Reason.DISK], [Reason.LENGTH]
DELETES: Final = {"is_delete_hour": True}


def used(permille: int) -> dict[str, Any]:
    return {"disk": DiskSpace(permille, 1000 - permille)}


@pytest.mark.parametrize(
    ("ages_h", "fields", "settings", "reasons"),
    [
        ((80, 72, 71, 90), DELETES, {}, AGE * 2),  # up to the first younger one
        ((80, 80), {}, {}, []),
        ((80, 1), {"is_requested": True}, {}, AGE),
        ((80,), {**DELETES, "is_clock_trusted": False}, {}, []),
        ((80, 71, 90), DELETES, {}, AGE),  # dated by a clock behind: as young as those before
        ((71, 90), DELETES, {}, []),
        ((1, 90), {**DELETES, **used(851)}, {}, DISK),
        ((80,) * 30, DELETES, {}, AGE * MAX_FILES_PER_RUN),
        ((80, 1), used(750), {}, []),
        ((80, 1), used(751), {}, AGE),
        *(
            ((1,) * 9, used(full), {}, DISK * count)
            for full, count in ((850, 0), (851, 1), (860, 1), (861, 2), (900, 5))
        ),
        ((80, 1), used(950), {"clean_file_forcibly": False}, AGE),
        *(
            ((1,) * 5, {"log_bytes": length}, {"retention_bytes": 5000}, LENGTH * count)
            for length, count in ((5000, 0), (5001, 1), (5010, 1), (5021, 3))
        ),
    ],
)
def test_plan(
    ages_h: tuple[float, ...], fields: dict[str, Any], settings: dict[str, Any], reasons: list[Reason]
) -> None:
    assert plan(files(*ages_h), moment(**fields), config(**settings)) == reasons


def test_file_of_future_ages_from_when_seen(maker: StoreMaker) -> None:
    steady_s = [0.0]
    store = maker(delete_when=range(24), retention_hours=72)
    retention = Retention(store, clock_s=lambda: steady_s[0])
    while len(store.commit_log.files.files) < 2:
        put(store, body=bytes(3000))
    store.flush()
    os.utime(log_file(store.config.root, 0), (maker.clock.now_ms // 1000 + 10**9,) * 2)
    assert retention.plan() == []
    steady_s[0] += 72 * 3600 - 1
    assert retention.plan() == []
    steady_s[0] += 1
    assert retention.plan() == [Reason.AGE]


# --- the doing -----------------------------------------------------------------------------------------------


def make_old(maker: StoreMaker, store: MessageStore, count: int, hours: float = 73) -> None:
    """Let the oldest ``count`` files of the commit log look as if they were written so long ago."""
    store.flush()
    now = maker.clock.now_ms / 1000
    for number, file in enumerate(store.commit_log.files.files):
        written = now - hours * 3600 if number < count else now
        os.utime(file.path, (written, written))


def requested(store: MessageStore, **fields: Any) -> Retention:
    retention = Retention(store, **fields)
    retention.request()
    return retention


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[DiskSpace], None]:
    """The disk is half full, whatever the machine's is."""

    def be(space: DiskSpace) -> None:
        monkeypatch.setattr(FileSystem, "space", lambda self, path: space)

    be(ROOMY)
    return be


def log_files(store: MessageStore) -> list[int]:
    return sorted(int(path.name) for path in (store.config.root / "commitlog").iterdir())


def test_log_queues_and_minimum_follow_one_another(maker: StoreMaker) -> None:
    store = filled(maker, 400)
    assert log_files(store)[:3] == [0, LOG_FILE, 2 * LOG_FILE]
    before = bodies(store)
    begin = {queue: queue.max_offset for queue in store.queues}
    make_old(maker, store, 2)
    assert run(requested(store)) == 2
    assert log_files(store)[0] == 2 * LOG_FILE == store.commit_log.min_offset
    for queue in store.queues:
        unit = queue.unit(queue.min_offset)
        earlier = queue.unit(queue.min_offset - 1)
        assert unit is not None
        assert unit.physical_offset >= 2 * LOG_FILE
        assert earlier is None or earlier.physical_offset < 2 * LOG_FILE
        assert queue.max_offset == begin[queue]
        assert queue.files.start == queue.min_offset // 50 * 1000 > 0
        assert not queue_file(store.config.root, queue.topic, 0).exists()
    minimum = store.reader.min_offset_in_queue("T", 0)
    assert bodies(store) == before[minimum:]


def test_newest_files_stay_at_any_age(maker: StoreMaker) -> None:
    store = filled(maker, 300)
    make_old(maker, store, 99, hours=1000)
    newest = log_files(store)[-1]
    assert run(requested(store)) == len(store.commit_log.files.files) + len(range(0, newest, LOG_FILE)) - 1
    assert log_files(store) == [newest]
    for queue in store.queues:
        assert len(queue.files.files) == 1
    maximum = store.reader.max_offset_in_queue("T", 0)
    put(store, body=b"next")
    assert bodies(store)[-1] == b"next"
    assert store.reader.max_offset_in_queue("T", 0) == maximum + 1


def test_empty_queue_keeps_its_numbers(maker: StoreMaker) -> None:
    store = maker()
    for number in range(100):  # exactly two files of units
        put(store, "Gone", body=body(number))
    for number in range(200):
        put(store, body=body(number))
    make_old(maker, store, 2)
    run(requested(store))
    assert store.reader.min_offset_in_queue("Gone", 0) == store.reader.max_offset_in_queue("Gone", 0) == 100
    assert [path.name[-4:] for path in (store.config.root / "consumequeue/Gone/0").iterdir()] == ["1000"]
    assert put(store, "Gone").queue_offset == 100
    store.close()
    assert bodies(maker(), "Gone") == [b"body"]


def test_unflushed_file_stays(maker: StoreMaker) -> None:
    store = filled(maker, 300)
    for file in store.commit_log.files.files:
        os.utime(file.path, (0, 0))
    assert store.commit_log.flushed_offset == 0
    assert requested(store).plan() == []


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock on the wall nine hours ahead of UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


def test_file_read_by_slave_stays_until_disk_full(maker: StoreMaker, disk: Callable[[DiskSpace], None]) -> None:
    store = filled(maker)
    store.flush()
    retention = Retention(store)
    disk(DiskSpace(85 * LOG_FILE, 15 * LOG_FILE))
    maker.clock.now_ms += 1000 * HOUR
    retention.request()
    store.commit_log.needed_from = 2 * LOG_FILE - 1
    assert run(retention) == 1
    store.commit_log.needed_from = 2 * LOG_FILE
    assert run(retention) == 1
    assert store.commit_log.min_offset == 2 * LOG_FILE
    disk(DiskSpace(86 * LOG_FILE, 14 * LOG_FILE))
    assert run(retention) == 1


def test_delete_hours_are_local(maker: StoreMaker, far_east: None) -> None:
    hour = time.gmtime(maker.clock.now_ms / 1000).tm_hour + 9
    store = maker(delete_when=((hour + 1) % 24, (hour + 2) % 24))
    for number in range(200):
        put(store, body=body(number))
    make_old(maker, store, 1, hours=100)
    retention = Retention(store)
    assert retention.plan() == []
    maker.clock.now_ms += HOUR
    assert retention.plan() == [Reason.AGE]
    maker.clock.now_ms += HOUR
    assert retention.plan() == [Reason.AGE]
    maker.clock.now_ms += HOUR
    assert retention.plan() == []


def test_request_holds_for_twenty_runs(maker: StoreMaker) -> None:
    store = filled(maker, 200)
    make_old(maker, store, 1)
    retention = requested(store)
    assert [bool(retention.plan()) for _ in range(21)] == [True] * 20 + [False]


def test_full_disk_deletes_young_files_and_accepts_messages(
    maker: StoreMaker, disk: Callable[[DiskSpace], None]
) -> None:
    store = filled(maker, 400)
    store.flush()
    total = 100 * LOG_FILE
    disk(DiskSpace(91 * LOG_FILE, total - 91 * LOG_FILE))
    retention = Retention(store)
    before = len(log_files(store))
    assert run(retention) == 6
    assert before - len(log_files(store)) == 6
    with pytest.raises(StoreError, match="91 % full"):
        put(store)
    disk(DiskSpace(85 * LOG_FILE, total - 85 * LOG_FILE))
    assert run(retention) == 0
    put(store)


def test_reader_of_deleted_file_unaffected_and_space_freed(
    maker: StoreMaker, disk: Callable[[DiskSpace], None]
) -> None:
    store = filled(maker, 300)
    make_old(maker, store, 1)
    found = store.reader.get_message(("T", 0), 0, 32)
    retention = requested(store)
    assert run(retention) == 1
    assert not log_file(store.config.root, 0).exists()
    gc.collect()
    assert decode_records(found.buffers[0])[0].stored_body == body(0)
    assert [deletion.size_bytes for deletion in retention.held] == [LOG_FILE]
    disk(DiskSpace(86 * LOG_FILE, 14 * LOG_FILE))
    assert retention.plan() == []  # one file more is free soon
    retention.finish_held()
    assert len(retention.held) == 1
    del found
    retention.finish_held()
    assert retention.held == []
    assert retention.plan() == [Reason.DISK]


def test_failed_deletion_stops_run_and_is_retried(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = maker(file_system=faulty)
    for number in range(300):
        put(store, body=body(number))
    make_old(maker, store, 2)
    before = bodies(store)
    retention = requested(store)
    faulty.code = errno.EROFS
    faulty.fails = lambda number, name, path: name == "unlink"
    with pytest.raises(StoreError, match=r"cannot delete .*commitlog/0+: Read-only"):
        run(retention)
    assert bodies(store) == before
    faulty.fails = lambda number, name, path: name == "unlink" and "consumequeue" in str(path)
    with pytest.raises(StoreError, match=r"cannot delete .*consumequeue"):
        run(retention)
    assert store.commit_log.min_offset == 2 * LOG_FILE
    faulty.fails = lambda number, name, path: False
    assert run(retention) == 0
    assert not queue_file(store.config.root, "T", 0).exists()
    put(store)


def test_uncertain_deletion_is_synced_first(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    """After a power cut the first file could be there again and the second not: then all behind it would not count."""
    store = maker(file_system=faulty)
    for number in range(400):
        put(store, body=body(number))
    make_old(maker, store, 4)
    directory = store.config.root / "commitlog"
    retention = requested(store)
    faulty.fails = lambda number, name, path: (name, path) == ("sync_directory", directory)
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot sync"):
            run(retention)
        assert store.commit_log.min_offset == LOG_FILE
    faulty.fails = lambda number, name, path: False
    faulty.calls.clear()
    assert run(retention) == 3
    first = next(call for call in faulty.calls if call[0] in {"unlink", "sync_directory"})
    assert first == ("sync_directory", directory)
    assert retention.held == []
    retention.delete_log_file(Reason.AGE)  # what a broker does that ends before it waits for the disk
    store.close()
    faulty.calls.clear()
    maker(file_system=faulty)
    assert ("sync_directory", directory) in faulty.calls


def test_index_follows_after_queues_and_is_retried(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(maker, 400)
    seen: list[tuple[int, bool]] = []

    def delete_expired(begin: int) -> None:
        seen.append((begin, queue_file(store.config.root, "T", 0).exists()))
        if len(seen) == 2:
            raise StoreError("not now")

    monkeypatch.setattr(store.index.files, "delete_expired", delete_expired)
    retention = Retention(store)
    run(retention)
    make_old(maker, store, 3)
    retention.request()
    with pytest.raises(StoreError, match="not now"):
        run(retention)
    for _ in range(2):
        run(retention)
    assert seen == [(0, True), (3 * LOG_FILE, False), (3 * LOG_FILE, False)]
