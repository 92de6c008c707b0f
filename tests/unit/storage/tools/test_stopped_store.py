"""Looking into a store that no broker runs on."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.storage.making import SMALL, StoreMaker, filled, put
from triomq.protocol.errors import StoreLayoutError, StoreLockedError
from triomq.storage.tools.stopped_store import StoppedStore

Unpack = Callable[[str], Path]


def state(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("name", ["store-normal", "store-crash", "store-powerloss", "store-trimmed"])
def test_apache_store_opens_with_sizes_and_stays_unchanged(unpack: Unpack, name: str) -> None:
    root = unpack(name)
    before = state(root)
    with StoppedStore(root) as store:
        assert store.config.commit_log_file_size_bytes == SMALL["commit_log_file_size_bytes"]
        assert store.config.consume_queue_file_size_bytes == SMALL["consume_queue_file_size_bytes"]
        assert store.is_clean == (name in {"store-normal", "store-trimmed"})
    assert state(root) == before


def test_queues_end_and_begin_as_in_running_store(maker: StoreMaker) -> None:
    store = filled(maker)
    ends = {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in store.queues}
    store.close()
    with StoppedStore(store.config.root) as stopped:
        found = {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in stopped.queues}
    assert found == ends


def test_store_that_broker_runs_on_is_refused(maker: StoreMaker) -> None:
    store = filled(maker, 1)
    with pytest.raises(StoreLockedError, match=str(os.getpid())), StoppedStore(store.config.root):
        pass


def test_folder_without_store_is_refused_unchanged(tmp_path: Path) -> None:
    with pytest.raises(StoreLayoutError, match="is no store"), StoppedStore(tmp_path / "no"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_file_of_impossible_size_rejected_and_lock_released(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    file = tmp_path / "commitlog" / ("0" * 20)
    file.write_bytes(b"short")
    for _ in range(2):
        with pytest.raises(StoreLayoutError, match="a size no store has"), StoppedStore(tmp_path):
            pass


def test_store_without_messages_has_rocketmqs_sizes(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with StoppedStore(tmp_path) as store:
        assert store.config.commit_log_file_size_bytes == 1024**3
        assert store.stored_offsets() == []
        assert list(store.queues) == []


def test_opened_files_are_read_only(maker: StoreMaker) -> None:
    store = filled(maker, 1)
    store.close()
    with StoppedStore(store.config.root) as stopped, pytest.raises(TypeError):
        stopped.log.files.files[0].map[0] = 1


def test_stored_offsets_are_read(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    store.close()
    path = store.config.root / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"offsetTable":{"T@G":{0:5,1:6},"U@G2":{3:9}}}')
    with StoppedStore(store.config.root) as stopped:
        assert set(stopped.stored_offsets()) == {
            ("G", "T", 0, 5),
            ("G", "T", 1, 6),
            ("G2", "U", 3, 9),
        }


@pytest.mark.parametrize(
    "content", ['{"offsetTable":[1]}', '{"offsetTable":{"T@G":{0:"x"}}}', '{"offsetTable":{"T@G":1}}']
)
def test_table_of_offsets_that_is_none_is_named(maker: StoreMaker, content: str) -> None:
    store = filled(maker, 1)
    store.close()
    path = store.config.root / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    with StoppedStore(store.config.root) as stopped, pytest.raises(StoreLayoutError, match=r"consumerOffset\.json"):
        stopped.stored_offsets()
