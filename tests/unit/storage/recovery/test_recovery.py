"""Where the commit log ends after a kill, a power loss or damage.  ``maker.killed_copy`` is what a kill leaves."""

import shutil
from typing import Final

import pytest

from tests.unit.storage.making import (
    FaultyFileSystem,
    StoreMaker,
    bodies,
    body,
    filled,
    log_and_queue_files,
    log_file,
    mapped_without_read_ahead,
    overwrite,
    put,
    queue_file,
    report,
)
from triomq.protocol.errors import StoreError
from triomq.protocol.record.consume_queue_unit import UNIT, ConsumeQueueUnit
from triomq.protocol.record.record import RecordCheck
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import Checkpoint, load_checkpoint
from triomq.storage.recovery.queue_recovery import ends_intact

FILE: Final = 65536


def test_clean_start_looks_only_at_last_record(maker: StoreMaker) -> None:
    store = filled(maker)
    end = store.commit_log.max_offset
    store.close()
    again = maker()
    assert report(again).clean
    assert report(again).records == 1
    assert report(again).log_end == end
    assert bodies(again) == [body(number) for number in range(0, 200, 2)]


def test_clean_start_uses_readahead_only_for_log_walk(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(maker).close()
    seen: list[set[str]] = []

    def look() -> None:
        seen.append({name.split("/")[0] for name in mapped_without_read_ahead(maker.root / "store")})

    def watched_ends(queue: ConsumeQueue, log: CommitLog, last: ConsumeQueueUnit) -> bool:
        look()
        return ends_intact(queue, log, last)

    def watched_check(log: CommitLog, offset: int, *, check_crc: bool) -> RecordCheck:
        look()
        return check(log, offset, check_crc=check_crc)

    check = CommitLog.check
    monkeypatch.setattr("triomq.storage.recovery.recovery.ends_intact", watched_ends)
    monkeypatch.setattr(CommitLog, "check", watched_check)
    store = maker()
    assert "commitlog" in seen[0]  # the last record of a queue
    assert "commitlog" not in seen[-1]  # the walk over the log
    assert bodies(store, "T")
    assert bodies(store, "U")
    assert mapped_without_read_ahead(maker.root / "store") == log_and_queue_files(maker.root / "store")


def test_clean_start_syscalls_ignore_queue_length(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = maker()
    for number in range(49 + 50):  # "long" has files that are full, and both are read from
        put(store, "long" if number else "short")
    store.close()
    again = maker(file_system=faulty)
    opened = [path.parent.parent.name for name, path in faulty.calls if name in {"open_file", "map_file"}]
    assert opened.count("short") == 1
    assert opened.count("long") == 2 + 2  # its first unit, its last one, and that of the last record is mapped
    assert again.reader.max_offset_in_queue("long", 0) == 98


def test_crash_recovery_skips_records_before_checkpoint(maker: StoreMaker) -> None:
    store = filled(maker, 30)
    put(store)
    vouched = put(store, "U")
    store.flush()
    put(store, "T")
    copy = maker(maker.killed_copy(store))
    assert report(copy).scan_start == vouched.physical_offset
    assert report(copy).records == 2


def test_walk_starts_at_last_file_covered_by_checkpoint(maker: StoreMaker) -> None:
    store = filled(maker, 150)
    store.flush()
    copy = maker.killed_copy(store)
    Checkpoint(maker.clock.now_ms, maker.clock.now_ms).save(FileSystem(), copy / "checkpoint")
    again = maker(copy)
    assert report(again).scan_start == 0  # everything is younger than the three seconds of safety
    maker.clock.now_ms += 3000
    put(store)
    store.flush()
    later = maker.killed_copy(store)
    Checkpoint(maker.clock.now_ms, maker.clock.now_ms).save(FileSystem(), later / "checkpoint")
    assert report(maker(later)).scan_start == 131072


@pytest.mark.parametrize("is_all_lost", [False, True])
def test_units_of_lost_records_vouch_for_no_others(maker: StoreMaker, is_all_lost: bool) -> None:
    """Units reached the disk and their records did not; units of later records at the same offsets are lost, too."""
    store = maker()
    if not is_all_lost:
        put(store, "V")
        store.flush()
    lost_from = store.commit_log.max_offset
    put(store, body=bytes(3000))
    plan = store.flush_consume_queues_plan()
    assert plan is not None
    plan.run()
    store.flush_done(plan)
    after_loss = maker.killed_copy(store)
    if is_all_lost:
        log_file(after_loss, 0).unlink()
    else:
        overwrite(log_file(after_loss, 0), lost_from, bytes(3000))
    store = maker(after_loss)
    put(store, "U")
    put(store, "T")
    power_cut = maker.killed_copy(maker(maker.killed_copy(store)))
    shutil.rmtree(power_cut / "consumequeue" / "U")
    assert len(bodies(maker(power_cut), "U")) == 1


@pytest.mark.parametrize(("ahead_ms", "ahead_bytes"), [(1, None), (10**9, None), (2**62, None), (0, 1), (0, 10**9)])
def test_checkpoint_ahead_of_log_vouches_for_nothing(maker: StoreMaker, ahead_ms: int, ahead_bytes: int | None) -> None:
    """It names messages that the log does not have: others that it vouches for may be gone as well."""
    store = filled(maker, 150)
    maker.clock.now_ms += 100_000
    put(store, "U")
    store.flush()
    copy = maker.killed_copy(store)
    times = min(maker.clock.now_ms + ahead_ms, 2**62)
    end = 0 if ahead_bytes is None else store.commit_log.max_offset + ahead_bytes
    Checkpoint(times, times, times, end, end).save(FileSystem(), copy / "checkpoint")
    overwrite(queue_file(copy, "T", 1000), 3 * 20, bytes(1000 - 3 * 20))  # of records before the last one of U
    again = maker(copy)
    assert report(again).scan_start == 0
    assert report(again).units_added == 22
    assert bodies(again, "T") == bodies(store, "T")
    assert bodies(again, "U") == bodies(store, "U")
    assert put(again, "T").queue_offset == 75
    again.flush()
    third = maker(maker.killed_copy(again))
    assert report(third).scan_start > 0, "the recovery has forgotten the checkpoint of another log"


def test_changed_body_passes_without_crc_check(maker: StoreMaker) -> None:
    store = filled(maker, 4)
    copy = maker.killed_copy(store)
    last = store.reader.queue_units("U", 0, 1, 1)[0].physical_offset
    overwrite(log_file(copy, 0), last + 100, b"\xff" * 20)
    assert report(maker(copy, check_crc_on_recover=False)).truncated_bytes == 0


def test_blank_record_at_very_end_stays_end(maker: StoreMaker) -> None:
    store = filled(maker, 80, topics=("T",))
    end = max(
        unit.physical_offset + unit.size
        for unit in store.reader.queue_units("T", 0, 0, 80)
        if unit.physical_offset < FILE
    )
    copy = maker.killed_copy(store)
    log_file(copy, FILE).unlink()
    again = maker(copy)
    assert report(again).log_end == FILE
    assert report(again).truncated_bytes == 0
    assert again.commit_log.check(end, check_crc=False).size == FILE - end
    place = put(again)
    assert place.physical_offset == FILE
    assert bodies(again)[-1] == b"body"


def test_queue_pointing_beyond_log_end_is_truncated(maker: StoreMaker) -> None:
    """The record of its last unit looks like one, but the log ends before: the way there leads over none."""
    store = filled(maker, 10)
    copy = maker.killed_copy(store)
    torn = store.reader.queue_units("T", 0, 4, 1)[0].physical_offset
    unproven = store.reader.queue_units("U", 0, 4, 1)[0].physical_offset
    overwrite(log_file(copy, 0), torn, bytes(8))
    overwrite(log_file(copy, 0), unproven + 100, b"\xff")
    again = maker(copy, check_crc_on_recover=False)
    assert report(again).log_end == torn
    assert report(again).units_removed == 2
    assert [again.reader.max_offset_in_queue(topic, 0) for topic in ("T", "U")] == [4, 4]
    assert not any(queue_file(copy, "U", 0).read_bytes()[4 * 20 :])
    assert bodies(again, "U") == bodies(store, "U")[:4]
    assert (put(again, "T").physical_offset, put(again, "U").queue_offset) == (torn, 4)


def test_damage_on_clean_start_moves_queue_begins(maker: StoreMaker) -> None:
    store = maker()
    for topic in ("U", "U", "V", "V"):
        put(store, topic, body=body(7))
    hurt = [
        store.reader.queue_units("U", 0, 1, 1)[0].physical_offset,
        store.reader.queue_units("V", 0, 0, 1)[0].physical_offset,
    ]
    store.close()
    for offset in hurt:
        overwrite(log_file(store.config.root, 0), offset + 100, b"\xff")
    again = maker()
    assert report(again).clean
    assert report(again).lost_messages == 1  # that of V; the unit of U's is cut
    assert [again.reader.min_offset_in_queue(topic, 0) for topic in ("U", "V")] == [0, 1]
    assert [len(bodies(again, topic)) for topic in ("U", "V")] == [1, 1]


def test_crash_start_syncs_log_and_cut_queues(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    """Ten thousand others would take minutes; the next flush makes up for it, and the checkpoint waits for that."""
    store = filled(maker, 20)
    now_ms = maker.clock.now_ms
    copy = maker.killed_copy(store)
    overwrite(queue_file(copy, "U", 0), 9 * 20, UNIT.pack(10**9, 100, 0))
    again = maker(copy, file_system=faulty)
    assert bodies(again, "U") == bodies(store, "U")
    assert _synced(faulty) == {"commitlog", "U"}
    log_end = store.commit_log.max_offset
    assert Checkpoint(now_ms, 0, 0, log_end, 0) == load_checkpoint(FileSystem(), copy / "checkpoint")
    again.flush()
    assert _synced(faulty) == {"commitlog", "U", "T"}
    assert Checkpoint(now_ms, now_ms, 0, log_end, log_end) == load_checkpoint(FileSystem(), copy / "checkpoint")


def _synced(faulty: FaultyFileSystem) -> set[str]:
    files = (path.parent for name, path in faulty.calls if name == "sync_file")
    return {directory.parent.name if directory.name == "0" else directory.name for directory in files}


def test_recovery_that_disk_refuses_can_be_tried_again(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = filled(maker, 20)
    copy = maker.killed_copy(store)
    overwrite(queue_file(copy, "T", 0), 3 * 20, bytes(7 * 20))
    faulty.fails = lambda number, name, path: name == "sync_file"
    again = maker.describe(copy, file_system=faulty)
    with pytest.raises(StoreError, match="cannot sync"):
        again.open()
    faulty.fails = lambda number, name, path: False
    again.open()
    assert not report(again).clean
    assert bodies(again) == bodies(store)
