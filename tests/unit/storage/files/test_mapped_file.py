import errno
import gc
import os
import resource
from pathlib import Path

import pytest

from tests.unit.storage.making import FaultyFileSystem, StoreMaker, bodies, message, put
from triomq.protocol.errors import StoreError
from triomq.storage.files import mapped_file
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.mapped_file import MappedFile, MappingPool, affordable_mappings
from triomq.storage.message_store import MessageStore

SIZE = 1024 * 1024


def mapped(root: Path, file_system: FileSystem, size: int = SIZE) -> MappedFile:
    file = file_system.create_file(root / "scratch", size, root / "0")
    file_system.rename(root / "scratch", root / "0")
    return MappedFile(file_system, file, 0, size)


def test_reserved_range_is_not_reserved_again(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    file = mapped(tmp_path, faulty)
    file.reserve(10, 4096)
    calls = len(faulty.calls)
    file.reserve(4096, 4096)
    assert len(faulty.calls) == calls


def test_reservation_ends_with_file(tmp_path: Path) -> None:
    file = mapped(tmp_path, FileSystem(), 5000)
    file.reserve(4999, 1024 * 1024)
    assert file.reserved == 5000
    assert os.fstat(file.file.fileno()).st_size == 5000


def test_nearly_full_disk_gives_less_than_whole_step(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    file = mapped(tmp_path, faulty)
    lengths: list[int] = []

    class Tight(FaultyFileSystem):
        def reserve(self, file: object, start: int, length: int) -> None:
            lengths.append(length)
            if length > 20_000:
                raise OSError(errno.ENOSPC, "full")

    file._file_system = Tight()
    file.reserve(5000, 256 * 1024)
    assert lengths == [262144, 131072, 65536, 32768, 16384]
    assert file.reserved == 16384


def test_fill_zeroes_up_to_next_step_within_reservation(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    file = mapped(tmp_path, faulty)
    file.map[:] = b"x" * SIZE
    file.assume_reserved(10)
    file.reserve(10_000, 40_000)
    file.fill(9_000, 16_384, 4096)
    assert file.filled == 16_384
    file.fill(16_000, 16_384, 4096)
    assert [name for name, _ in faulty.calls].count("zero") == 4, "it was filled already"
    file.fill(16_385, 65_536, 65_536)
    assert file.filled == file.reserved < 65_536
    assert file.map[:] == b"x" * 10 + bytes(file.filled - 10) + b"x" * (SIZE - file.filled)


def test_clearing_end_touches_only_what_is_not_zero(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    file = mapped(tmp_path, faulty)
    assert file.zero_from(0) == 0
    file.map[1000:1010] = b"x" * 10
    file.map[700_000:700_010] = b"x" * 10
    assert 0 < file.zero_from(1005) < SIZE // 2
    assert bytes(file.view[1000:1005]) == b"xxxxx"
    assert not any(file.view[1005:])
    cleared = [path for name, path in faulty.calls if name == "zero"]
    assert file.zero_from(1005) == 0
    assert [path for name, path in faulty.calls if name == "zero"] == cleared


QUEUES = 12


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three consume queue files be mapped in each store."""
    monkeypatch.setattr(mapped_file, "MIN_MAPPED_FILES", 3)
    monkeypatch.setattr("triomq.storage.consume_queue.queue_table.affordable_mappings", lambda: 3)
    monkeypatch.setattr("triomq.storage.append._MAX_QUEUES", 1)


def make(tmp_path: Path, pool: MappingPool, number: int = 0, files: FileSystem | None = None) -> MappedFile:
    files = files or FileSystem()
    path = tmp_path / f"{number}"
    return MappedFile(files, files.create_file(path, 8192, path), 0, 8192, pool)


def mapped_queues(store: MessageStore) -> list[int]:
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


def test_data_and_views_outlive_mapping(tmp_path: Path) -> None:
    file = make(tmp_path, MappingPool(0))
    file.map[:5] = b"hello"
    held = file.view[:5]
    unmapped: list[MappedFile] = []
    file.on_unmap = unmapped.append
    file.unmap()
    assert unmapped == [file]
    assert bytes(held) == b"hello"
    assert bytes(file.view[:5]) == b"hello"
    file.map[:5] = b"there"
    assert bytes(held) == b"there"


@pytest.fixture
def used(maker: StoreMaker, three: None) -> MessageStore:
    """A store with more queues than may be mapped, in all of which there are messages."""
    store = maker()
    for number in range(QUEUES * 20):
        put(store, queue_id=number % QUEUES, body=b"%d" % number)
    return store


def expected(queue_id: int) -> list[bytes]:
    return [b"%d" % number for number in range(queue_id, QUEUES * 20, QUEUES)]


def test_many_queues_written_and_read_with_few_mapped(used: MessageStore, maker: StoreMaker) -> None:
    assert descriptors(used.config.root) == len(mapped_queues(used)) == 3
    for queue_id in range(QUEUES):
        assert bodies(used, "T", queue_id) == expected(queue_id)


def test_full_file_stays_mapped_while_next_one_made(maker: StoreMaker, three: None) -> None:
    store = maker()
    for _ in range(50):  # as many as a file takes
        put(store)
    for other in (1, 2):
        put(store, queue_id=other)
    assert mapped_queues(store) == [0, 1, 2]  # the one mapped first would be the next to go
    assert put(store).queue_offset == 50
    assert bodies(store) == [b"body"] * 51


def test_append_unmaps_none_of_its_queues(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_file, "MIN_MAPPED_FILES", 8)
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
    assert len(mapped_queues(again)) <= 3
    for queue_id in range(QUEUES):
        assert bodies(again, "T", queue_id) == expected(queue_id)
        assert put(again, queue_id=queue_id).queue_offset == 20


def test_flush_syncs_unmapped_files(maker: StoreMaker, faulty: FaultyFileSystem, three: None) -> None:
    store = maker(file_system=faulty)
    for number in range(QUEUES):
        put(store, queue_id=number)
    faulty.calls.clear()
    store.flush()
    synced = {path.parent.name for name, path in faulty.calls if name == "sync_file" and "consumequeue" in path.parts}
    assert synced == {str(number) for number in range(QUEUES)}
    assert len(mapped_queues(store)) == 3


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


def test_affordable_mappings_stay_below_open_file_limit() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < affordable_mappings() < soft


def test_mappings_are_bounded_without_open_file_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert affordable_mappings() == 32_768
