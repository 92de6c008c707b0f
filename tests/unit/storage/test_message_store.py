import errno
import os
import shutil
import struct
import time
from pathlib import Path

import pytest

from tests.unit.storage.making import FaultyFileSystem, StoreMaker, put
from triomq.protocol.errors import StoreClosedError, StoreError, StoreFullError
from triomq.storage.config import StoreConfig
from triomq.storage.message_store import MessageStore


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_closed_directory_has_exactly_files_rocketmq_has(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    index_file = time.strftime("index/%Y%m%d%H%M%S000", time.localtime(maker.clock.now_ms // 1000))
    store.close()
    root = store.config.root
    assert names(root) == ["checkpoint", f"commitlog/{0:020d}", f"consumequeue/T/0/{0:020d}", index_file, "lock"]
    assert struct.unpack_from(">qqq", (root / "checkpoint").read_bytes()) == (
        maker.clock.now_ms,
        maker.clock.now_ms,
        0,
    )


def test_close_removes_files_of_rejected_messages(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = maker(file_system=faulty)
    faulty.fails = lambda number, name, path: name == "reserve" and "commitlog" in str(path)
    with pytest.raises(StoreFullError):
        put(store, "T")
    faulty.fails = lambda number, name, path: name == "reserve" and "/U/" in str(path)
    with pytest.raises(StoreFullError):
        put(store, "U")
    for _ in range(4):
        put(store, "T", body=bytes(15_000))
    faulty.fails = lambda number, name, path: name == "reserve" and f"{65536:020d}" in str(path)
    with pytest.raises(StoreFullError):
        put(store, "T", body=bytes(15_000))
    store.close()
    kept = [name for name in names(store.config.root) if name.startswith(("commitlog", "consumequeue"))]
    assert kept == [f"commitlog/{0:020d}", f"consumequeue/T/0/{0:020d}"]
    assert not (store.config.root / "consumequeue" / "U").exists()
    assert maker().reader.max_offset_in_queue("T", 0) == 4


def test_failed_close_leaves_abort_marker(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = maker(file_system=faulty)
    put(store)
    faulty.code = errno.EIO
    faulty.fails = lambda number, name, path: name == "sync_file"
    with pytest.raises(StoreError, match="cannot sync"):
        store.close()
    with pytest.raises(StoreClosedError):
        put(store)
    faulty.fails = lambda number, name, path: False
    report = store.open()
    assert not report.clean
    assert put(store).queue_offset == 1


ORDERED = {"sync_file", "overwrite_file", "unlink"}


def test_crash_mark_is_removed_last(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = maker(file_system=faulty)
    put(store)
    store.index.catch_up()
    (index_file,) = (store.config.root / "index").iterdir()
    faulty.calls.clear()
    store.close()
    order = [(name, path.name) for name, path in faulty.calls if name in ORDERED]
    assert order == [
        ("sync_file", f"{0:020d}"),
        ("sync_file", f"{0:020d}"),
        ("sync_file", index_file.name),
        ("overwrite_file", "checkpoint"),
        ("unlink", "abort"),
    ]


def test_failed_open_releases_lock(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    faulty.fails = lambda number, name, path: path.name == "abort"
    store = maker.describe(file_system=faulty)
    with pytest.raises(StoreError, match=r"cannot create .*abort"):
        store.open()
    faulty.fails = lambda number, name, path: False
    store.open()
    put(store)


def test_small_stores_take_little_disk_space(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(root=tmp_path)) as store:
        put(store)
        used = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
        assert used < 17 * 1024 * 1024
        assert (tmp_path / "commitlog" / f"{0:020d}").stat().st_size == 1024**3


def test_sparse_rocketmq_files_are_reserved_before_writing(maker: StoreMaker) -> None:
    store = maker()
    put(store, body=bytes(10_000))
    store.close()
    path = store.config.root / "commitlog" / f"{0:020d}"
    content = path.read_bytes()
    with path.open("wb") as file:  # the same bytes, but without any block behind them
        file.write(content[:12_288])
        os.ftruncate(file.fileno(), len(content))
    assert path.stat().st_blocks * 512 < 20_000
    again = maker(reserve_step_bytes=16_384)
    put(again, body=bytes(1000))
    assert path.stat().st_blocks * 512 >= 24_000
    shutil.copytree(store.config.root, maker.root / "copy")
    assert maker(maker.root / "copy").reader.max_offset_in_queue("T", 0) == 2


def test_full_disk_allows_flush_close_and_start(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = maker(file_system=faulty)
    put(store)
    faulty.fails = lambda number, name, path: name in {"reserve", "create_file", "write_file", "overwrite_file"}
    store.flush()
    put(store)
    copy = maker.killed_copy(store)
    store.close()
    assert not (store.config.root / "abort").exists()
    for root in (store.config.root, copy):
        (root / "abort").touch()
        again = maker(root, file_system=faulty)
        assert again.reader.get_message(("T", 0), 0, 32).message_count == 2


def test_messages_rejected_by_full_disk_are_logged_once(
    maker: StoreMaker, faulty: FaultyFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    store = maker(
        file_system=faulty, reserve_step_bytes=4096, commit_log_file_size_bytes=1024 * 1024, disk_full_ratio=100
    )
    put(store)
    faulty.fails = lambda number, name, path: name == "reserve"
    for _ in range(3):
        with pytest.raises(StoreFullError):
            put(store, body=bytes(500_000))
        put(store, body=b"small")  # has room still: that changes nothing
    assert [record.message.partition(" root=")[0] for record in caplog.records] == ["store refuses messages"]
    assert "No space left on device" in caplog.text
    faulty.fails = lambda number, name, path: False
    store.check_disk()
    put(store, body=bytes(500_000))
    store.check_disk()
    faulty.fails = lambda number, name, path: name == "reserve"
    with pytest.raises(StoreFullError):
        put(store, body=bytes(500_000))
    assert [record.message.partition(" root=")[0] for record in caplog.records] == [
        "store refuses messages",
        "store accepts messages again",
        "store refuses messages",
    ]
