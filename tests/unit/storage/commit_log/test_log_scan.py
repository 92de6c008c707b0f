from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records import make_record
from tests.unit.storage.making import StoreMaker, body, filled, log_file, overwrite, put
from triomq.protocol.record.layout import HEAD
from triomq.protocol.record.record import RecordCheck
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.log_scan import LogScan, ProgressLog
from triomq.storage.message_store import MessageStore
from triomq.storage.tools.stopped_store import Damage, StoppedStore


def test_walk_gives_every_message_and_ends_behind_last(store: MessageStore) -> None:
    places = [put(store, body=bytes(15_000)) for _ in range(10)]
    scan = LogScan(store.commit_log, 0)
    assert [offset for offset, _ in scan] == [place.physical_offset for place in places]
    assert (scan.start, scan.end, scan.records) == (0, store.commit_log.max_offset, 10)
    assert scan.store_timestamp == places[-1].store_timestamp
    assert "magic 0x00000000" in scan.stopped_by


def test_walk_continues_after_record_needing_closer_check(store: MessageStore) -> None:
    hosts = [bytes(8), bytes(20), bytes(8), bytes(8), bytes(20), bytes(20), bytes(8)]
    places = [put(store, born_host=host) for host in hosts]
    scan = LogScan(store.commit_log, 0)
    assert [record.queue_offset for _, record in scan] == list(range(7))
    assert (scan.end, scan.records, scan.damage) == (store.commit_log.max_offset, 7, [])
    assert scan.store_timestamp == places[-1].store_timestamp


def test_walk_begins_and_stops_at_any_record(store: MessageStore) -> None:
    places = [put(store) for _ in range(5)]
    scan = LogScan(store.commit_log, places[1].physical_offset, stop=places[3].physical_offset)
    assert [offset for offset, _ in scan] == [place.physical_offset for place in places[1:3]]
    assert scan.stopped_by == ""


def test_walk_ends_before_damaged_last_record(store: MessageStore) -> None:
    places = [put(store) for _ in range(3)]
    store.commit_log.files.files[0].map[places[2].physical_offset + 88] ^= 0xFF
    scan = LogScan(store.commit_log, 0)
    assert len(list(scan)) == 2
    assert scan.end == places[2].physical_offset
    assert "CRC" in scan.stopped_by
    assert scan.damage == []


def test_record_lookalike_inside_damaged_body_is_ignored(store: MessageStore) -> None:
    outer = []
    for _ in range(2):
        outer.append(store.commit_log.max_offset)
        own_place = outer[-1] + HEAD.size
        inner = make_record(queue_offset=1, physical_offset=own_place, store_timestamp=1, body=b"never sent")
        put(store, body=inner)
    end = put(store).physical_offset
    for offset in outer:
        store.commit_log.files.files[0].map[offset + 8] ^= 1  # the CRC
    scan = LogScan(store.commit_log, 0)
    assert [offset for offset, _ in scan] == [end]
    assert [(part.start, part.end) for part in scan.damage] == [(0, end)]


@pytest.mark.parametrize("damaged", [[0], [1], [3, 4, 5], list(range(9)), [8]])
def test_walk_skips_damage_to_next_provable_record(store: MessageStore, damaged: list[int]) -> None:
    places = [put(store, body=b"\xda\xa3\x20\xa7" * 3700) for _ in range(10)]  # bodies full of magic numbers
    for number in damaged:
        offset = places[number].physical_offset
        file = store.commit_log.files.file_at(offset)
        assert file is not None
        file.map[offset - file.start + 4] ^= 1
    scan = LogScan(store.commit_log, 0)
    offsets = [place.physical_offset for place in places]
    assert [offset for offset, _ in scan] == [offset for n, offset in enumerate(offsets) if n not in damaged]
    [part] = scan.damage
    assert (part.start, part.end) == (offsets[damaged[0]], offsets[damaged[-1] + 1])
    assert "magic" in part.reason


def test_walk_looks_for_no_record_behind_its_stop(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [put(store) for _ in range(9)]
    store.commit_log.files.files[0].map[places[1].physical_offset + 4] ^= 1
    looked: list[int] = []
    check = CommitLog.check

    def noted(log: CommitLog, physical_offset: int, *, check_crc: bool) -> RecordCheck:
        looked.append(physical_offset)
        return check(log, physical_offset, check_crc=check_crc)

    monkeypatch.setattr(CommitLog, "check", noted)
    scan = LogScan(store.commit_log, 0, stop=places[2].physical_offset)
    assert [offset for offset, _ in scan] == [0]
    assert "magic" in scan.stopped_by
    assert looked == [places[1].physical_offset]


@pytest.mark.parametrize("check_crc", [True, False])
def test_record_with_altered_body_after_damage_not_provable(store: MessageStore, check_crc: bool) -> None:
    places = [put(store) for _ in range(4)]
    content = store.commit_log.files.files[0].map
    content[places[1].physical_offset + 4] = 0  # its magic
    content[places[2].physical_offset + 88] ^= 0xFF  # its body
    scan = LogScan(store.commit_log, 0, check_crc=check_crc)
    assert [offset for offset, _ in scan] == [places[0].physical_offset, places[3].physical_offset]
    assert [(part.start, part.end) for part in scan.damage] == [(places[1].physical_offset, places[3].physical_offset)]


def test_a_log_without_files_has_nothing_to_walk(store: MessageStore) -> None:
    scan = LogScan(store.commit_log, 0)
    assert list(scan) == []
    assert (scan.end, scan.records, scan.store_timestamp) == (0, 0, 0)


def test_long_walk_reports_progress_every_three_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "triomq.storage.commit_log.log_scan")
    now = [100.0]
    progress = ProgressLog(lambda: now[0])
    for second in range(1, 8):
        now[0] = 100.0 + second
        progress(second * 1024**2, 9 * 1024**2)
    assert [record.getMessage() for record in caplog.records] == [
        f"reading the commit log scanned_mib={second} total_mib=9" for second in (3, 6)
    ]


def walked(root: Path) -> tuple[list[int], list[Damage]]:
    with StoppedStore(root) as store:
        found = list(store.walk())
    damage = [entry for entry in found if isinstance(entry, Damage)]
    return [entry[0] for entry in found if not isinstance(entry, Damage)], damage


def closed(maker: StoreMaker, count: int = 200) -> tuple[Path, list[int]]:
    store = filled(maker, count)
    store.close()
    root = store.config.root
    offsets, damage = walked(root)
    assert len(offsets) == count
    assert damage == []
    return root, offsets


def test_a_flipped_bit_costs_its_record_only(maker: StoreMaker) -> None:
    root, offsets = closed(maker)
    overwrite(log_file(root, 0), offsets[7] + 100, b"\xff")
    found, damage = walked(root)
    assert found == offsets[:7] + offsets[8:]
    assert [(entry.offset, entry.end, entry.is_tail) for entry in damage] == [(offsets[7], offsets[8], False)]
    assert "does not match its CRC" in damage[0].reason


def test_a_torn_end_is_a_tail(maker: StoreMaker) -> None:
    root, offsets = closed(maker)
    start = offsets[-1] // 65536 * 65536
    overwrite(log_file(root, start), offsets[-1] - start + 4, b"\0\0")
    found, damage = walked(root)
    assert found == offsets[:-1]
    assert [(entry.offset, entry.is_tail) for entry in damage] == [(offsets[-1], True)]
    assert damage[0].end > offsets[-1] + 1000


def test_damage_before_blank_file_end_is_tail(maker: StoreMaker) -> None:
    """As a start of the store sees it, which cuts the log there."""
    root, offsets = closed(maker)
    in_first = [offset for offset in offsets if offset < 65536]
    for start in range(65536, offsets[-1] + 1, 65536):
        log_file(root, start).unlink()
    overwrite(log_file(root, 0), in_first[-1] + 4, b"\0")
    found, damage = walked(root)
    assert found == in_first[:-1]
    assert [(entry.offset, entry.is_tail) for entry in damage] == [(in_first[-1], True)]
    log = maker(root).commit_log
    assert log.max_offset == in_first[-1]


def test_an_empty_log_has_nothing(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    root = store.config.root
    store.close()
    log_file(root, 0).unlink()
    assert walked(root) == ([], [])


def test_progress_is_reported(maker: StoreMaker) -> None:
    store = maker(commit_log_file_size_bytes=64 * 1024**2)
    for number in range(9):
        put(store, body=bytes(4 * 1024**2 - number))
    store.close()
    told: list[tuple[int, int]] = []
    with StoppedStore(store.config.root) as stopped:
        list(stopped.walk(lambda done, total: told.append((done, total))))
    assert len(told) == 2
    assert told[0][0] >= 16 * 1024**2
    assert told[0][1] == 64 * 1024**2


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_damage_costs_at_most_records_it_touches(data: st.DataObject, tmp_path_factory: object) -> None:
    root = _template()
    content = log_file(root, 0).read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=300))[: len(content) - at]
    _, offsets = _TEMPLATE[0]
    try:
        overwrite(log_file(root, 0), at, junk)
        found, _ = walked(root)
    finally:
        overwrite(log_file(root, 0), at, content[at : at + len(junk)])
    bounds = [*offsets, offsets[-1] + len(content)]
    touched = {offset for offset, end in zip(offsets, bounds[1:], strict=False) if offset < at + len(junk) and at < end}
    assert set(offsets) - touched <= set(found) <= set(offsets)


_TEMPLATE: list[tuple[Path, list[int]]] = []


def _template() -> Path:
    """One small store for all examples."""
    if not _TEMPLATE:
        import tempfile

        directory = tempfile.TemporaryDirectory(prefix="triomq-walk-")
        _KEEP.append(directory)
        maker = StoreMaker(Path(directory.name))
        store = maker(commit_log_file_size_bytes=16 * 1024)
        for number in range(30):
            put(store, body=body(number)[:300])
        store.close()
        _TEMPLATE.append((store.config.root, walked(store.config.root)[0]))
    return _TEMPLATE[0][0]


_KEEP: list[object] = []
