"""message_index: the files of one store, their way from the log, and searches."""

import errno
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage.making import (
    Appended,
    FaultyFileSystem,
    NothingInMemory,
    StoreMaker,
    matches,
    overwrite,
    put,
    report,
)
from triomq.protocol.errors import StoreError
from triomq.protocol.record.index_unit import HEADER
from triomq.protocol.record.properties import encode_properties, get_property
from triomq.storage.config import Durability
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import load_checkpoint
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import ColdRange, Needed, finish


def ranges(needed: Needed) -> list[ColdRange]:
    return [each for each in needed if isinstance(each, ColdRange)]


def put_keys(store: MessageStore, *keys: str, topic: str = "T", size: int = 100) -> Appended:
    return put(store, topic, body=bytes(size), properties=encode_properties({"KEYS": " ".join(keys)}))


def filled(maker: StoreMaker, count: int = 400, file_system: FileSystem | None = None) -> MessageStore:
    """Two keys for each message, one second apart: three index files of 149 units."""
    store = maker(file_system=file_system)
    for number in range(count):
        maker.clock.now_ms += 1000
        put_keys(store, f"key-{number}", "all")
    return store


def index_all(store: MessageStore) -> None:
    while store.index.catch_up():
        pass


def contents(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "index").iterdir())


def everything_is_found(store: MessageStore, count: int = 400) -> bool:
    return all(len(matches(store, "T", f"key-{number}").offsets) == 1 for number in range(count))


def test_search_finds_what_was_put_moment_before(store: MessageStore) -> None:
    first = put_keys(store, "a", "b")
    second = put_keys(store, "b")
    put_keys(store, "b", topic="U")
    found = matches(store, "T", "b")
    assert found.offsets == [first.physical_offset, second.physical_offset]
    assert found.last_update_offset > second.physical_offset
    assert found.last_update_timestamp == second.store_timestamp
    assert matches(store, "T", "c") == ([], 0, 0)
    assert matches(store, "V", "b") == ([], 0, 0)


def test_at_most_64_of_newest_found_oldest_first(maker: StoreMaker) -> None:
    store = filled(maker, 100)
    found = matches(store, "T", "all", most=1000).offsets
    assert len(found) == 64
    assert found == sorted(found)
    assert found[-3:] == matches(store, "T", "all", most=3).offsets


def test_search_by_time_in_several_files(maker: StoreMaker) -> None:
    store = filled(maker)
    begin = maker.clock.now_ms - 399_000
    found = matches(store, "T", "all", begin=begin + 100_000, end=begin + 110_000).offsets
    assert 9 <= len(found) <= 11
    newest = matches(store, "T", "all").offsets
    assert len(set(newest) | set(found)) == 64 + len(found)


def test_file_rolls_in_middle_of_record(maker: StoreMaker) -> None:
    store = maker()
    put_keys(store, *(f"k{number}" for number in range(148)))
    last = put_keys(store, "x", "y")
    index_all(store)
    first, second = (file.header for file in store.index.files.all)
    assert (first.index_count, second.index_count) == (150, 2)
    assert first.end_physical_offset == second.begin_physical_offset == last.physical_offset


def test_record_without_keys_follows_full_file(maker: StoreMaker) -> None:
    store = maker()
    maker.clock.now_ms += 5
    full = put_keys(store, *(f"k{number}" for number in range(149)))
    index_all(store)
    assert len(names(store.config.root)) == 1
    put(store)
    index_all(store)
    second = store.index.files.all[1].header
    end = (full.store_timestamp, full.store_timestamp, full.physical_offset, full.physical_offset)
    assert second == (*end, 0, 1)
    assert len(names(store.config.root)) == 2


def test_file_names_ascend_after_clock_set_back(maker: StoreMaker) -> None:
    store = maker()
    put_keys(store, *(f"k{number}" for number in range(149)))
    index_all(store)
    maker.clock.now_ms -= 3_600_000
    put_keys(store, "k")
    index_all(store)
    first, second = names(store.config.root)
    assert int(second) == int(first) + 1
    assert len(second) == 17


def test_disabled_index_adds_nothing_and_finds_old_entries(maker: StoreMaker) -> None:
    store = maker()
    place = put_keys(store, "a")
    store.close()
    store = maker(index=False)
    put_keys(store, "a")
    assert matches(store, "T", "a").offsets == [place.physical_offset]
    store.close()
    assert len(matches(maker(), "T", "a").offsets) == 2


def test_sync_durability_indexes_no_unflushed_messages(maker: StoreMaker) -> None:
    store = maker(durability=Durability.SYNC)
    put_keys(store, "a")
    assert matches(store, "T", "a").offsets == []
    store.flush()
    assert matches(store, "T", "a").offsets == [0]


def test_reopened_index_continues_at_its_end(maker: StoreMaker) -> None:
    whole = filled(maker)
    index_all(whole)
    wanted = contents(whole.config.root)
    whole.close()
    maker.clock.now_ms -= 400_000
    parts = maker(maker.root / "parts")
    for number in range(400):
        maker.clock.now_ms += 1000
        put_keys(parts, f"key-{number}", "all")
        if number % 37 == 0:
            parts.close()
            parts.open()
            assert report(parts).removed_index_files == ()
    parts.close()
    assert contents(parts.config.root) == wanted


def without(number: int) -> Callable[[list[Path]], None]:
    return lambda files: files[number].unlink()


def truncated(number: int) -> Callable[[list[Path]], None]:
    return lambda files: os.truncate(files[number], 100)


def end_at_no_record(files: list[Path]) -> None:
    units, end = (int.from_bytes(files[-1].read_bytes()[at : at + size]) for at, size in ((36, 4), (24, 8)))
    overwrite(files[-1], 24, (end - 1).to_bytes(8))
    overwrite(files[-1], 40 + 4 * 50 + 20 * (units - 1) + 4, (1).to_bytes(8))


@pytest.mark.parametrize(
    ("damage", "removed"),
    [
        (lambda files: [path.unlink() for path in files], slice(0, 0)),
        (without(0), slice(1, None)),
        (without(2), slice(3, None)),
        (truncated(0), slice(None)),
        (truncated(2), slice(2, None)),
        (truncated(5), slice(5, None)),
        (lambda files: shutil.copy(files[0], files[0].with_name("9")), slice(-1, None)),
        (end_at_no_record, slice(-1, None)),
    ],
    ids=["all", "first", "third", "first cut", "third cut", "last cut", "copy of the first", "end"],
)
def test_damaged_files_are_rebuilt_with_all_behind(
    maker: StoreMaker, damage: Callable[[list[Path]], object], removed: slice, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(maker)
    store.close()
    root = store.config.root
    wanted, before = contents(root), names(root)
    damage([root / "index" / name for name in before])
    expected = tuple(("9",) if "9" in names(root) else before[removed])
    again = maker()
    assert report(again).removed_index_files == expected
    assert all(name in caplog.text for name in expected)
    assert everything_is_found(again)
    again.close()
    assert contents(root) == wanted


def test_records_that_are_not_indexed_lack_no_file(maker: StoreMaker) -> None:
    store = maker()
    for number in range(400):
        maker.clock.now_ms += 1000
        put(store, body=bytes(400))  # three log files
        if number in {100, 300}:
            put_keys(store, *(f"key-{number}-{key}" for key in range(200)))
    store.close()
    expired = store.config.root / "commitlog" / f"{0:020}"
    wanted = contents(store.config.root)
    assert len(wanted) == 3
    store = maker()
    assert report(store).removed_index_files == ()
    store.close()
    expired.unlink()
    store = maker()
    assert report(store).removed_index_files == ()
    store.close()
    assert contents(store.config.root) == wanted


def test_file_filled_by_first_record_needs_flush(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    """It ends at physical offset 0, which a checkpoint without index files must not cover."""
    store = maker(file_system=faulty)
    put_keys(store, *(f"k{number}" for number in range(149)))
    put_keys(store, "later")
    index_all(store)
    first, newest = names(store.config.root)
    assert report(maker(maker.killed_copy(store))).removed_index_files == (first, newest)
    faulty.calls.clear()
    store.flush()
    assert ("sync_file", store.config.root / "index" / first) in faulty.calls
    assert report(maker(maker.killed_copy(store))).removed_index_files == (newest,)


def test_unresolved_log_position_creates_no_duplicate_entries(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = filled(maker, file_system=faulty)
    index_all(store)
    first, second = store.index.files.all[:2]
    assert first.mapped is None
    second._map().map[HEADER.size : HEADER.size + 200] = b"\x7f" * 200
    faulty.code, faulty.fails = errno.EMFILE, lambda number, name, path: name == "open_file" and path == first.path
    with pytest.raises(StoreError, match="Too many open files"):
        matches(store, "T", "key-100")
    faulty.fails = lambda number, name, path: False
    assert everything_is_found(store)


def test_two_searches_survive_same_damage(maker: StoreMaker) -> None:
    store = filled(maker, 60, NothingInMemory())
    index_all(store)
    wanted = matches(store, "T", "all")
    [file] = store.index.files.all
    searches = [store.index.search("T", "all", 64, 0, maker.clock.now_ms) for _ in range(2)]
    assert all(next(search) for search in searches)  # both wait for the disk
    file._map().map[HEADER.size : HEADER.size + 200] = b"\x7f" * 200
    assert [finish(search) for search in searches] == [wanted] * 2


def test_units_added_during_cold_search_are_no_damage(maker: StoreMaker) -> None:
    store = maker(file_system=NothingInMemory())
    put_keys(store, "all")
    wanted = matches(store, "T", "all").offsets
    [file] = store.index.files.all
    search = store.index.search("T", "all", 64, 0, maker.clock.now_ms)
    (waits_for,) = next(search)
    assert isinstance(waits_for, ColdRange)
    assert waits_for.file is file.to_flush
    put_keys(store, "all")
    index_all(store)
    assert finish(search).offsets[:1] == wanted
    assert store.index.files.all == [file]


def test_search_loads_log_before_indexing(maker: StoreMaker) -> None:
    sizes: dict[str, Any] = {"commit_log_file_size_bytes": 4 * 1024**2}
    store = maker(**sizes)
    for number in range(30):
        put_keys(store, f"key-{number}", size=100_000)
    end = store.commit_log.max_offset
    store.close()
    shutil.rmtree(store.config.root / "index")
    store = maker(file_system=NothingInMemory(), **sizes)
    log = store.commit_log.files.files[0]
    read_to = 0
    search = store.index.search("T", "key-7", 64, 0, 2**63 - 1)
    while store.index.position < end:
        read_to = max([part.end for part in ranges(next(search)) if part.file is log], default=read_to)
        assert store.index.position < read_to + 100_200, "but for the last record"
    assert len(finish(search).offsets) == 1


def test_slots_are_preloaded_before_first_unit_after_startup(maker: StoreMaker) -> None:
    store = maker()
    put_keys(store, "old")
    store.close()
    store = maker(file_system=NothingInMemory())
    [file] = store.index.files.all
    for wanted in ([(file.to_flush, 0, HEADER.size + 4 * store.config.index_slots)], []):
        put_keys(store, "new")
        parts = [part for needed in store.index.follow() for part in ranges(needed) if part.file is file.to_flush]
        assert [part[:3] for part in parts] == wanted
        assert store.index.lag_bytes == 0


def vouched(store: MessageStore) -> int:
    return load_checkpoint(FileSystem(), store.config.root / "checkpoint").indexes


def test_checkpoint_excludes_files_rebuilt_at_startup(maker: StoreMaker) -> None:
    store = filled(maker)
    store.close()
    wanted = vouched(store)
    shutil.rmtree(store.config.root / "index")
    store = maker()
    index_all(store)
    assert vouched(store) == 0
    assert len(report(maker(maker.killed_copy(store))).removed_index_files) == 6
    store.flush()
    assert vouched(store) == wanted


def test_unopenable_full_file_is_flushed_later(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = filled(maker, file_system=faulty)
    index_all(store)
    log_plan = store.flush_plan()
    assert log_plan is not None
    log_plan.run()
    store.flush_done(log_plan)
    assert store.index.files.all[0].mapped is None
    faulty.code, faulty.fails = errno.EMFILE, lambda number, name, path: name == "open_file"
    plan = store.flush_consume_queues_plan()
    assert plan is not None
    with pytest.raises(StoreError, match="Too many open files"):
        plan.run()
    assert not store.has_failed
    faulty.fails = lambda number, name, path: False
    store.flush()
    assert vouched(store)


def test_damage_met_by_search_is_reported_and_mended(maker: StoreMaker, caplog: pytest.LogCaptureFixture) -> None:
    store = filled(maker)
    index_all(store)
    wanted = contents(store.config.root)
    files = names(store.config.root)
    overwrite(store.config.root / "index" / files[1], 40, b"\xff" * 200)
    assert everything_is_found(store)
    assert "rebuilt from the commit log" in caplog.text
    assert files[1] in caplog.text
    assert contents(store.config.root) == wanted


def test_full_disk_delays_indexing_and_loses_nothing(
    maker: StoreMaker, faulty: FaultyFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(maker, 60, file_system=faulty)
    index_all(store)
    faulty.code = errno.ENOSPC
    faulty.fails = lambda number, name, path: name == "create_file" and path.parent.name == "index"
    for number in range(60, 400):
        put_keys(store, f"key-{number}", "all")
    for _ in range(3):
        assert not store.index.catch_up()
    assert caplog.text.count("not indexed for now") == 1
    assert len(matches(store, "T", "key-30").offsets) == 1
    assert matches(store, "T", "key-399").offsets == []
    faulty.fails = lambda number, name, path: False
    assert everything_is_found(store)
    assert len(matches(store, "T", "all", begin=0).offsets) == 64
    wanted = contents(store.config.root)
    store.close()
    shutil.rmtree(store.config.root / "index")
    again = maker()
    index_all(again)
    assert contents(again.config.root) == wanted


def test_few_files_are_mapped_however_many_there_are(maker: StoreMaker) -> None:
    store = filled(maker, 800)
    index_all(store)
    assert len(store.index.files.all) == 11
    assert everything_is_found(store, 800)
    assert sum(file.mapped is not None for file in store.index.files.all) == 5


def test_expired_files_go_but_newest_stays(maker: StoreMaker) -> None:
    store = filled(maker)
    index_all(store)
    first, second, *others = store.index.files.all
    assert store.index.files.delete_expired(first.header.end_physical_offset) == 0
    assert store.index.files.delete_expired(second.header.end_physical_offset) == 1
    assert not first.path.exists()
    assert store.index.files.delete_expired(2**62) == len(others)
    assert names(store.config.root) == [others[-1].path.name]
    assert len(matches(store, "T", "key-399").offsets) == 1


def test_search_proceeds_in_steps_over_unindexed_log(maker: StoreMaker) -> None:
    store = maker(commit_log_file_size_bytes=1024**2, index_units=10_000)
    for number in range(1500):
        put_keys(store, f"key-{number}", size=10)
    search = store.index.search("T", "key-1499", 1, 0, 2**63 - 1)
    assert sum(1 for _ in search) == 5  # 256 keys in each
    assert store.index.position == store.commit_log.max_offset


def test_message_with_many_keys_delays_no_other(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step indexes a few hundred of them, and they are looked for once."""
    store = maker(index_units=10_000)
    put_keys(store, *[f"{number:x}" for number in range(5000)])
    looked_at = []

    def look(properties: bytes, name: bytes) -> bytes | None:
        looked_at.append(name)
        return get_property(properties, name)

    monkeypatch.setattr("triomq.storage.index.index_keys.get_property", look)
    counts = [1]
    while store.index.catch_up():
        counts.append(store.index.files.newest_header.index_count)
    assert len(counts) == 5000 // 256 + 1
    assert max(after - before for before, after in pairwise(counts)) == 256
    assert len(looked_at) == 2


@pytest.mark.parametrize("at_once", [1, 3, 5, 7])
def test_messages_with_many_keys_are_indexed_in_parts(
    maker: StoreMaker, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Also where a stop comes between, and the index is the same as if it were made at once."""
    store = maker()
    for number in range(6):
        put_keys(store, *[f"{number}-{key}" for key in range(number * 3)])
    other = maker(maker.killed_copy(store))
    index_all(other)
    monkeypatch.setattr("triomq.storage.index.index_keys._MAX_KEYS", at_once)
    monkeypatch.setattr("triomq.storage.index.message_index._CLOSE_LIMIT_S", -1)
    steps = 1
    while store.index.catch_up():
        steps += 1
        if steps % 4 == 0:
            store.close()
            store.open()
    assert steps >= 30 // at_once
    assert contents(store.config.root) == contents(other.config.root)
