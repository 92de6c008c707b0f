"""Not more files are mapped than the pool allows, and nobody notices which of them are not."""

import gc
import os
import resource
from pathlib import Path

import pytest

from tests.unit.storage.making import FaultyFileSystem, StoreMaker, bodies, message, put
from triomq.protocol.errors import StoreError
from triomq.storage.files import mapping_pool
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.files.mapping_pool import MappingPool, affordable_mappings
from triomq.storage.message_store import MessageStore

QUEUES = 12


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three consume queue files be mapped in each store."""
    monkeypatch.setattr(mapping_pool, "MIN_MAPPED_FILES", 3)
    monkeypatch.setattr("triomq.storage.consume_queue.queue_table.affordable_mappings", lambda: 3)
    monkeypatch.setattr("triomq.storage.append._MAX_QUEUES", 1)


def make(tmp_path: Path, pool: MappingPool, number: int = 0, files: FileSystem | None = None) -> MappedFile:
    files = files or FileSystem()
    path = tmp_path / f"{number}"
    return MappedFile(files, files.create_file(path, 8192, path), 0, 8192, pool)


def mapped(store: MessageStore) -> list[int]:
    return [queue.queue_id for queue in store.queues for file in queue.files.files if file.is_mapped]


def descriptors(root: Path) -> int:
    """How many open files this process has below ``root``, mappings counted too."""
    found = 0
    for entry in os.scandir("/proc/self/fd"):
        try:
            found += Path(entry.path).readlink().is_relative_to(root / "consumequeue")
        except FileNotFoundError:  # that of this directory itself
            continue
    return found


def test_oldest_mapping_is_unmapped_when_limit_is_exceeded(tmp_path: Path, three: None) -> None:
    pool = MappingPool(0)
    files = [make(tmp_path, pool, number) for number in range(5)]
    assert [file.is_mapped for file in files] == [False, False, True, True, True]
    assert files[0].view[0] == 0
    assert [file.is_mapped for file in files] == [True, False, False, True, True]
    assert len(pool) == 3


def test_written_data_and_held_views_outlive_a_mapping(tmp_path: Path) -> None:
    file = make(tmp_path, MappingPool(0))
    file.map[:5] = b"hello"
    held = file.view[:5]
    file.unmap()
    assert bytes(held) == b"hello"
    assert bytes(file.view[:5]) == b"hello"
    file.map[:5] = b"there"
    assert bytes(held) == b"there"


def test_who_keeps_a_mapping_is_told_of_its_end(tmp_path: Path) -> None:
    file = make(tmp_path, MappingPool(0))
    told: list[MappedFile] = []
    file.on_unmap = told.append
    file.unmap()
    assert told == [file]


def test_mapped_file_uses_one_descriptor_and_unmapped_none(maker: StoreMaker) -> None:
    store = maker()
    root = store.config.root
    put(store)
    assert descriptors(root) == 1
    store.queue("T", 0).files.files[0].unmap()
    assert descriptors(root) == 0


@pytest.fixture
def used(maker: StoreMaker, three: None) -> MessageStore:
    """A store with more queues than may be mapped, in all of which there are messages."""
    store = maker()
    for number in range(QUEUES * 20):
        put(store, queue_id=number % QUEUES, body=b"%d" % number)
    return store


def expected(queue_id: int) -> list[bytes]:
    return [b"%d" % number for number in range(queue_id, QUEUES * 20, QUEUES)]


def test_many_queues_are_written_and_read_with_few_mapped(used: MessageStore, maker: StoreMaker) -> None:
    assert descriptors(used.config.root) == len(mapped(used)) == 3
    for queue_id in range(QUEUES):
        assert bodies(used, "T", queue_id) == expected(queue_id)
    assert used.statistics().mapped_files == 3 + len(used.commit_log.files.files)


def test_a_full_file_stays_mapped_while_the_next_one_is_made(maker: StoreMaker, three: None) -> None:
    store = maker()
    for _ in range(50):  # as many as a file takes
        put(store)
    for other in (1, 2):
        put(store, queue_id=other)
    assert mapped(store) == [0, 1, 2]  # the one mapped first would be the next to go
    assert put(store).queue_offset == 50
    assert bodies(store) == [b"body"] * 51


def test_a_step_unmaps_none_of_its_own_queues(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping_pool, "MIN_MAPPED_FILES", 8)
    monkeypatch.setattr("triomq.storage.consume_queue.queue_table.affordable_mappings", lambda: 8)
    store = maker()
    put(store, "W", 0)
    for queue_id in range(7):
        put(store, queue_id=queue_id)
    first, new = store.queue("W", 0), store.queue("U", 0)
    assert first.files.files[0].is_mapped
    assert len(store.append([message(store, queue.topic) for queue in (first, new)])) == 2
    assert (bodies(store, "W"), bodies(store, "U")) == ([b"body"] * 2, [b"body"])


@pytest.mark.parametrize("clean", [True, False])
def test_many_queues_are_recovered_with_few_mapped(used: MessageStore, maker: StoreMaker, clean: bool) -> None:
    root = maker.killed_copy(used) if not clean else used.config.root
    if clean:
        used.close()
    again = maker(root)
    assert len(mapped(again)) <= 3
    for queue_id in range(QUEUES):
        assert bodies(again, "T", queue_id) == expected(queue_id)
        assert put(again, queue_id=queue_id).queue_offset == 20


def test_a_flush_syncs_files_that_are_not_mapped(maker: StoreMaker, faulty: FaultyFileSystem, three: None) -> None:
    store = maker(file_system=faulty)
    for number in range(QUEUES):
        put(store, queue_id=number)
    faulty.calls.clear()
    store.flush()
    synced = {path.parent.name for name, path in faulty.calls if name == "sync_file" and "consumequeue" in path.parts}
    assert synced == {str(number) for number in range(QUEUES)}
    assert len(mapped(store)) == 3


def test_a_flush_leaves_out_a_topic_that_is_deleted_meanwhile(used: MessageStore) -> None:
    plan = used.flush_consume_queues_plan()
    assert plan is not None
    used.delete_topic("T")
    plan.run()
    assert plan.complete


def test_closed_store_and_deleted_topic_leave_nothing_mapped(used: MessageStore, maker: StoreMaker) -> None:
    root = used.config.root
    gc.disable()  # references alone do it
    try:
        used.delete_topic("T")
        assert descriptors(root) == 0
        put(used)
        used.close()
        assert descriptors(root) == 0
    finally:
        gc.enable()


def test_unmappable_queue_rejects_message_before_any_write(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = maker(file_system=faulty)
    put(store)
    end = store.commit_log.max_offset
    store.queue("T", 0).files.files[0].unmap()
    faulty.fails = lambda number, name, path: name == "map_file"
    with pytest.raises(StoreError, match="cannot map"):
        put(store)
    assert store.commit_log.max_offset == end
    faulty.fails = lambda number, name, path: False
    assert put(store).queue_offset == 1
    assert bodies(store) == [b"body"] * 2


def test_append_maps_a_queue_that_is_not_mapped(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    store.queue("T", 0).files.files[0].unmap()
    store.append([message(store)] * 2)
    assert bodies(store) == [b"body"] * 3


def test_affordable_mappings_stay_below_open_file_limit() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < affordable_mappings() < soft


def test_mappings_are_bounded_without_open_file_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert affordable_mappings() == 32_768
