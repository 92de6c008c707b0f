"""message_index: the files of one store, their way from the log, and searches."""

import errno
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

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
from triomq.protocol.errors import ConfigError, IndexDamagedError, StoreError
from triomq.protocol.record.index_unit import HEADER
from triomq.protocol.record.properties import encode_properties, get_property
from triomq.storage.config import Durability
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import Checkpoint, load_checkpoint
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


def test_putting_a_message_touches_no_index_file(store: MessageStore) -> None:
    put_keys(store, "a")
    assert not (store.config.root / "index").exists()
    assert store.index.position == 0


def test_at_most_64_of_newest_found_oldest_first(maker: StoreMaker) -> None:
    store = filled(maker, 100)
    found = matches(store, "T", "all", most=1000).offsets
    assert len(found) == 64
    assert found == sorted(found)
    assert found[-3:] == matches(store, "T", "all", most=3).offsets


def test_a_time_range_over_several_files_is_kept(maker: StoreMaker) -> None:
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


SLOTS_AT, UNITS_AT = HEADER.size, HEADER.size + 4 * 50
MADE_EMPTY: Final = {  # pages of the newest file that are as they were when it had no unit yet
    "header": (0, HEADER.size),
    "slots": (SLOTS_AT, UNITS_AT - SLOTS_AT),
    "units": (UNITS_AT, 150 * 20),
}


@pytest.mark.parametrize(
    ("parts", "number", "ahead_ms", "removed"),
    [
        *((parts, -1, None, 1) for parts in ("header", "slots", "units", "slots header", "units header")),
        ("header slots units", 1, None, 5),  # a power loss left the second file empty
        ("slots", 1, 1, 6),  # the checkpoint names messages that the log does not have
        ("slots", 1, 10**9, 6),
        ("", 0, -1, 6),  # nothing was flushed
    ],
)
def test_crash_keeps_only_files_known_on_disk(
    maker: StoreMaker, parts: str, number: int, ahead_ms: int | None, removed: int
) -> None:
    store = filled(maker)
    index_all(store)
    if ahead_ms != -1:
        store.flush()
    full = store.index.files.all[-2].header
    made = HEADER.pack(full.end_timestamp, full.end_timestamp, full.end_physical_offset, full.end_physical_offset, 0, 0)
    copy = maker.killed_copy(store)
    for part in parts.split():
        at, length = MADE_EMPTY[part]
        overwrite(copy / "index" / names(copy)[number], at, made if part == "header" and number < 0 else bytes(length))
    if ahead_ms is not None and ahead_ms > 0:
        times = maker.clock.now_ms + ahead_ms
        Checkpoint(times, times, times).save(FileSystem(), copy / "checkpoint")
    again = maker(copy)
    assert len(report(again).removed_index_files) == removed
    assert everything_is_found(again)
    again.close()
    store.close()
    assert contents(copy) == contents(store.config.root)


@pytest.mark.parametrize("units", [1, 148, 149, 150, 298, 299])
def test_partially_indexed_record_gets_its_remaining_keys(
    maker: StoreMaker, monkeypatch: pytest.MonkeyPatch, units: int
) -> None:
    """As after a full disk, in the middle of a record's keys."""
    monkeypatch.setattr("triomq.storage.index.index_keys._MAX_KEYS", 400)
    store = maker()
    put_keys(store, *(f"k{number}" for number in range(400)))
    batch = store.index._reader.read(0, store.commit_log.max_offset, 1)
    whole_batch = store.index._reader.read(0, store.commit_log.max_offset, 1)
    for column in (batch.keys, batch.shares, batch.offsets, batch.timestamps):
        del column[units:]
    store.index._write(batch)
    store.index._resume()
    index_all(store)
    found = contents(store.config.root)
    shutil.rmtree(store.config.root / "index")
    store.index.files.all.clear()
    store.index._write(whole_batch)
    assert contents(store.config.root) == found


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


def test_only_provably_flushed_files_are_kept_after_crash(maker: StoreMaker) -> None:
    store = filled(maker)
    index_all(store)
    before = names(store.config.root)
    for make_plan in (store.flush_plan, store.flush_consume_queues_plan):
        assert load_checkpoint(FileSystem(), store.config.root / "checkpoint").indexes == 0
        plan = make_plan(1)
        assert plan is not None
        plan.run()
        store.flush_done(plan)
    assert load_checkpoint(FileSystem(), store.config.root / "checkpoint").indexes > 0
    assert store.flush_consume_queues_plan(1) is None
    copy = maker.killed_copy(store)
    again = maker(copy)
    assert report(again).removed_index_files == (before[-1],)
    assert everything_is_found(again)
    again.close()
    store.close()
    assert contents(copy) == contents(store.config.root)


def test_full_files_of_one_millisecond_survive_a_crash(maker: StoreMaker) -> None:
    store = maker()
    for _ in range(3):
        put_keys(store, *(f"k{number}" for number in range(149)))
        index_all(store)
        store.flush()
    again = maker(maker.killed_copy(store))
    assert len(report(again).removed_index_files) == 1  # no later key is on the disk


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


def test_checkpoint_excludes_files_rebuilt_later(maker: StoreMaker) -> None:
    store = filled(maker)
    index_all(store)
    store.flush()
    wanted = vouched(store)
    first, second = store.index.files.all[:2]
    second._map().map[HEADER.size : HEADER.size + 200] = b"\x7f" * 200  # slots that lead nowhere
    assert everything_is_found(store)
    assert store.index.files.all[1] is not second
    store.flush()
    assert vouched(store) == first.header.end_timestamp
    store.flush()
    assert vouched(store) == wanted


def test_close_syncs_all_files_that_were_made_again(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    filled(maker).close()
    store = maker(file_system=faulty)
    store.index._rebuild(store.index.files.all[1], IndexDamagedError("rotten"))
    faulty.calls.clear()
    store.close()
    synced = {path.name for name, path in faulty.calls if name == "sync_file"}
    assert synced.issuperset(names(store.config.root)[1:])


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


def test_files_that_lead_behind_end_of_log_go(maker: StoreMaker) -> None:
    store = filled(maker)
    store.close()
    for number in (1, 2):
        (store.config.root / "commitlog" / f"{65536 * number:020d}").unlink(missing_ok=True)
    again = maker()
    assert report(again).removed_index_files
    assert all(file.header.end_physical_offset < again.commit_log.max_offset for file in again.index.files.all)
    assert len(matches(again, "T", "key-1").offsets) == 1


def test_files_that_none_of_index_left_alone(maker: StoreMaker) -> None:
    store = filled(maker, 10)
    store.close()
    strange = store.config.root / "index" / "notes"
    strange.write_bytes(b"mine")
    assert everything_is_found(maker(), 10)
    assert strange.read_bytes() == b"mine"


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


def test_damage_that_the_writer_meets_is_made_good(maker: StoreMaker) -> None:
    store = filled(maker, 10)
    index_all(store)
    overwrite(store.config.root / "index" / names(store.config.root)[-1], 40, b"\xff" * 200)
    put_keys(store, "key-10")
    index_all(store)
    assert everything_is_found(store, 11)


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


def test_file_that_cannot_be_read_fails_search_alone(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = filled(maker, file_system=faulty)
    index_all(store)
    faulty.code = errno.EIO
    faulty.fails = lambda number, name, path: name == "open_file" and path.parent.name == "index"
    with pytest.raises(StoreError, match="cannot open"):
        matches(store, "T", "key-0")
    faulty.fails = lambda number, name, path: False
    assert everything_is_found(store)


def test_few_files_are_mapped_however_many_there_are(maker: StoreMaker) -> None:
    store = filled(maker, 800)
    index_all(store)
    assert len(store.index.files.all) == 11
    assert everything_is_found(store, 800)
    assert sum(file.mapped is not None for file in store.index.files.all) == 5


def test_expired_files_go_but_never_the_newest(maker: StoreMaker) -> None:
    store = filled(maker)
    index_all(store)
    first, second, *others = store.index.files.all
    assert store.index.files.delete_expired(first.header.end_physical_offset) == 0
    assert store.index.files.delete_expired(second.header.end_physical_offset) == 1
    assert not first.path.exists()
    assert store.index.files.delete_expired(2**62) == len(others)
    assert names(store.config.root) == [others[-1].path.name]
    assert len(matches(store, "T", "key-399").offsets) == 1


def test_index_behind_log_begin_resumes_there(maker: StoreMaker) -> None:
    store = filled(maker, 50)
    index_all(store)
    for number in range(50, 400):
        put_keys(store, f"key-{number}", size=1000)
    store.close()
    (store.config.root / "commitlog" / f"{0:020d}").unlink()
    keep = names(store.config.root)[0]
    for name in names(store.config.root)[1:]:
        (store.config.root / "index" / name).unlink()
    again = maker()
    assert again.index.position == again.commit_log.min_offset == 65536
    assert len(matches(again, "T", "key-399").offsets) == 1
    assert keep in names(store.config.root)


def test_search_proceeds_in_steps_over_unindexed_log(maker: StoreMaker) -> None:
    store = maker(commit_log_file_size_bytes=1024**2, index_units=10_000)
    for number in range(1500):
        put_keys(store, f"key-{number}", size=10)
    search = store.index.search("T", "key-1499", 1, 0, 2**63 - 1)
    assert sum(1 for _ in search) == 5  # 256 keys in each
    assert store.index.position == store.commit_log.max_offset


@pytest.mark.parametrize(("slots", "units"), [(0, 10), (10, 1), (100_000_001, 10), (10, 80_000_001)])
def test_impossible_sizes_are_refused(maker: StoreMaker, slots: int, units: int) -> None:
    with pytest.raises(ConfigError, match="index_"):
        maker(index_slots=slots, index_units=units)


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
