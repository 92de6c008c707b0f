import shutil
from pathlib import Path
from random import Random
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.records import make_record
from tests.unit.storage.making import (
    FaultyFileSystem,
    StoreMaker,
    bodies,
    body,
    filled,
    log_file,
    overwrite,
    put,
    queue_file,
    report,
)
from triomq.protocol.errors import StoreError
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT
from triomq.protocol.record.layout import HEAD
from triomq.protocol.record.record import decode_record
from triomq.storage.commit_log.log_scan import FILLER_TOPIC, QUARANTINE, DamagedPart, LogScan, ProgressLog
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import CHECKPOINT, load_checkpoint
from triomq.storage.message_store import MessageStore
from triomq.storage.tools.stopped_store import StoppedStore


def test_walk_gives_every_message_and_ends_behind_last(store: MessageStore) -> None:
    places = [put(store, body=bytes(15_000)) for _ in range(10)]
    scan = LogScan(store.commit_log, 0)
    assert [offset for offset, _ in scan] == [place.physical_offset for place in places]
    assert (scan.start, scan.end, scan.records) == (0, store.commit_log.max_offset, 10)
    assert scan.store_timestamp == places[-1].store_timestamp
    assert "magic 0x00000000" in scan.stopped_by


def test_walk_begins_and_stops_at_any_record(store: MessageStore) -> None:
    places = [put(store) for _ in range(5)]
    scan = LogScan(store.commit_log, places[1].physical_offset, stop=places[3].physical_offset)
    assert [offset for offset, _ in scan] == [place.physical_offset for place in places[1:3]]
    assert scan.stopped_by == ""


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


@pytest.mark.parametrize("check_crc", [True, False])
def test_record_with_altered_body_after_damage_not_provable(store: MessageStore, check_crc: bool) -> None:
    places = [put(store) for _ in range(4)]
    content = store.commit_log.files.files[0].map
    content[places[1].physical_offset + 4] = 0  # its magic
    content[places[2].physical_offset + 88] ^= 0xFF  # its body
    scan = LogScan(store.commit_log, 0, check_crc=check_crc)
    assert [offset for offset, _ in scan] == [places[0].physical_offset, places[3].physical_offset]
    assert [(part.start, part.end) for part in scan.damage] == [(places[1].physical_offset, places[3].physical_offset)]


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


def walked(root: Path) -> list[int]:
    with StoppedStore(root) as store:
        return [found[0] for found in store.walk() if not isinstance(found, DamagedPart)]


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_costs_at_most_records_it_touches(data: st.DataObject, maker: StoreMaker) -> None:
    root = maker.root / "store"
    if not root.exists():
        with maker(commit_log_file_size_bytes=16 * 1024) as store:
            for number in range(30):
                put(store, body=body(number)[:300])
    offsets = walked(root)
    content = log_file(root, 0).read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=300))[: len(content) - at]
    try:
        overwrite(log_file(root, 0), at, junk)
        found = walked(root)
    finally:
        overwrite(log_file(root, 0), at, content[at : at + len(junk)])
    bounds = [*offsets, offsets[-1] + len(content)]
    touched = {offset for offset, end in zip(offsets, bounds[1:], strict=False) if offset < at + len(junk) and at < end}
    assert set(offsets) - touched <= set(found) <= set(offsets)


HURT: Final = 41  # a message of T, in the second file of the commit log
KINDS: Final = {
    "flipped bit in the body": (500, b"\xff"),
    "bad CRC": (8, b"\1\2\3\4"),
    "too long": (0, b"\0\0\x7f\0"),
    "too short": (0, b"\0\0\0\x60"),
    "negative length": (0, b"\xff\xff\xff\xff"),
    "no magic": (4, b"\0\0\0\0"),
    "another offset": (28, b"\0\0\0\0\0\0\0\7"),
    "zeros": (0, bytes(1000)),
    "noise": (0, Random(1).randbytes(1000)),
}


def place(store: MessageStore, number: int, topic: str = "T") -> tuple[int, int]:
    unit = store.reader.queue_units(topic, 0, number, 1)[0]
    return unit.physical_offset, unit.size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queues", ["kept", "deleted"])
def test_damaged_record_costs_only_its_message(maker: StoreMaker, kind: str, queues: str) -> None:
    store = filled(maker)
    wanted = bodies(store)
    copy = maker.killed_copy(store)
    offset, size = place(store, HURT)
    at, content = KINDS[kind]
    start = offset - offset % 65536
    overwrite(log_file(copy, start), offset - start + at, content)
    if queues == "deleted":
        shutil.rmtree(copy / "consumequeue")
    again = maker(copy)
    [part] = report(again).damage
    assert (part.start, part.end) == (offset, offset + size)
    assert part.reason
    assert report(again).truncated_bytes == 0
    assert bodies(again) == wanted[:HURT] + wanted[HURT + 1 :]
    assert bodies(again, "U") == bodies(store, "U")
    assert again.reader.max_offset_in_queue("T", 0) == 100
    unit_at = HURT % 50 * 20
    assert queue_file(copy, "T", HURT // 50 * 1000).read_bytes()[unit_at : unit_at + 20] == BLANK_UNIT
    assert put(again).queue_offset == 100


@pytest.mark.parametrize("hurt", [(0,), (3,), (0, 1, 2, 9, 17, 18), tuple(range(20))])
@pytest.mark.parametrize("queues", ["kept", "deleted"])
@pytest.mark.parametrize("most", [1, 32])
def test_damage_in_first_file_costs_only_messages_too(
    maker: StoreMaker, hurt: tuple[int, ...], queues: str, most: int
) -> None:
    store = filled(maker)
    wanted = bodies(store)
    copy = maker.killed_copy(store)
    for number in hurt:
        offset, _ = place(store, number)
        assert offset < 65536
        overwrite(log_file(copy, 0), offset + 8, b"\1\2\3\4")
    if queues == "deleted":
        shutil.rmtree(copy / "consumequeue")
    again = maker(copy)
    kept = [number for number in range(100) if number not in hurt]
    assert [body for _, body in numbered(again, most)] == [wanted[number] for number in kept]
    assert [number for number, _ in numbered(again, most)] == kept
    files = queue_files(copy)
    again.close()
    shutil.rmtree(copy / "consumequeue")
    assert bodies(maker(copy)) == [wanted[number] for number in kept]
    assert queue_files(copy) == files, "what is lost is known by the log"


def numbered(store: MessageStore, most: int) -> list[tuple[int, bytes]]:
    """Return queue offset and body of every message, as its record has them."""
    found: list[tuple[int, bytes]] = []
    queue_offset = 0
    while (result := store.reader.get_message(("T", 0), queue_offset, most)).next_begin_offset > queue_offset:
        records = map(decode_record, [bytes(record) for view in result.buffers for record in records_in(view)])
        found += [(record.queue_offset, record.stored_body) for record in records]
        queue_offset = result.next_begin_offset
    return found


def records_in(view: memoryview) -> list[memoryview]:
    """Split a view at the lengths of its records."""
    found = []
    while view:
        size = int.from_bytes(view[:4])
        found.append(view[:size])
        view = view[size:]
    return found


def queue_files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "consumequeue" / "T" / "0").iterdir()}


def test_damaged_bytes_quarantined_and_log_has_no_hole(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = filled(maker)
    copy = maker.killed_copy(store)
    offset, size = place(store, HURT)
    start = offset - offset % 65536
    overwrite(log_file(copy, start), offset - start + 4, b"\0")
    before = log_file(copy, start).read_bytes()[offset - start :][:size]
    again = maker(copy, file_system=faulty)
    kept = copy / "quarantine" / f"damaged-{offset:020d}"
    assert kept.read_bytes() == before
    at = faulty.calls.index(("rename", kept))
    assert faulty.calls[at + 1 : at + 3] == [("sync_directory", kept.parent), ("sync_directory", copy)]
    filler = again.commit_log.look_message(offset)
    assert filler is not None
    assert decode_record(filler).topic == FILLER_TOPIC
    assert len(filler) == size
    third = maker(maker.killed_copy(again))
    assert report(third).damage == ()
    assert bodies(third) == bodies(again)


def test_quarantined_copy_is_never_overwritten(maker: StoreMaker) -> None:
    store = filled(maker)
    copy = maker.killed_copy(store)
    offset, size = place(store, HURT)
    start = offset - offset % 65536
    copies = []
    for number in range(3):
        overwrite(log_file(copy, start), offset - start + 8, b"%04d" % number)
        copies.append(log_file(copy, start).read_bytes()[offset - start :][:size])
        (copy / "abort").touch()
        (copy / "checkpoint").unlink()
        maker(copy).close()
    found = {path.name: path.read_bytes() for path in (copy / "quarantine").iterdir()}
    name = f"damaged-{offset:020d}"
    assert found == {name: copies[0], f"{name}-2": copies[1], f"{name}-3": copies[2]}


def test_repeated_failed_starts_leave_one_quarantine_copy(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = filled(maker)
    copy = maker.killed_copy(store)
    offset, _ = place(store, HURT)
    overwrite(log_file(copy, offset - offset % 65536), offset % 65536 + 8, b"\1\2\3\4")
    damaged = log_file(copy, offset - offset % 65536).read_bytes()
    for refused in ("write_file", "rename", "sync_directory", "sync_directory"):

        def fails(number: int, name: str, path: Path, refused: str = refused) -> bool:
            return name == refused and QUARANTINE in str(path)

        faulty.fails = fails
        with pytest.raises(StoreError, match=QUARANTINE):
            maker(copy, file_system=faulty)
        assert log_file(copy, offset - offset % 65536).read_bytes() == damaged
    faulty.fails = lambda number, name, path: False
    maker(copy, file_system=faulty)
    assert [path.name for path in (copy / QUARANTINE).iterdir()] == [f"damaged-{offset:020d}"]


def test_store_starts_with_hole_too_short_for_record(maker: StoreMaker) -> None:
    """A message's body holds a record that names the very place where it comes to lie, and then loses its head."""
    store = maker()
    put(store, body=b"first")
    outer = store.commit_log.max_offset
    stored_ms = store.commit_log.store_timestamp
    inner = make_record(physical_offset=outer + HEAD.size, store_timestamp=stored_ms, body=b"inner", topic=b"V")
    put(store, body=inner)
    put(store, body=b"third")
    copy = maker.killed_copy(store)
    overwrite(log_file(copy, 0), outer, bytes(4))
    for _ in range(2):
        again = maker(copy)
        assert {b"first", b"third"} <= set(bodies(again))
        assert len(report(again).damage) == 2
        copy = maker.killed_copy(again)
        (copy / "checkpoint").unlink()


def test_damage_to_file_end_becomes_blank_record(maker: StoreMaker) -> None:
    store = filled(maker)
    copy = maker.killed_copy(store)
    units = store.reader.queue_units("T", 0, 0, 100) + store.reader.queue_units("U", 0, 0, 100)
    last = max(unit.physical_offset for unit in units if unit.physical_offset < 65536)
    overwrite(log_file(copy, 0), last, bytes(65536 - last))
    overwrite(log_file(copy, 65536), 0, bytes(10))
    again = maker(copy)
    [part] = report(again).damage
    assert part.start == last
    assert len(bodies(again)) + len(bodies(again, "U")) == 198
    assert report(again).lost_messages == 2
    third = maker(maker.killed_copy(again))
    assert report(third).damage == ()


@pytest.mark.parametrize("at", [0, 1, 2, 3, 6, 8, 9, 11])
@pytest.mark.parametrize("number", [9, 0])
def test_clean_start_restores_damaged_last_unit(maker: StoreMaker, at: int, number: int) -> None:
    store = maker()
    for each in range(number + 1):
        put(store, body=body(each))
    for each in range(30):
        put(store, "U", body=body(each))
    store.close()
    path = queue_file(store.config.root, "T", 0)
    overwrite(path, number * 20 + at, bytes([path.read_bytes()[number * 20 + at] ^ 0x80]))
    again = maker()
    assert report(again).units_added == 1
    assert bodies(again) == [body(each) for each in range(number + 1)]
    assert put(again).queue_offset == number + 1


def test_killed_clean_start_hides_no_message(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(maker, 20)
    wanted = bodies(store)
    maker.clock.now_ms += 100_000
    put(store, "U")
    store.close()
    overwrite(queue_file(store.config.root, "T", 0), 9 * 20 + 8, b"\xff")

    def kill(*_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("triomq.storage.commit_log.log_scan._PROGRESS_STEP_BYTES", 1)
    with pytest.raises(KeyboardInterrupt):
        maker.describe().open(kill)
    again = maker()
    assert bodies(again) == wanted
    assert load_checkpoint(FileSystem(), again.config.root / CHECKPOINT).physic == maker.clock.now_ms


@pytest.mark.parametrize("kind", KINDS)
def test_record_damaged_before_scan_range_is_not_delivered(maker: StoreMaker, kind: str) -> None:
    store = filled(maker)
    wanted = bodies(store)
    offset, _ = place(store, HURT)
    store.close()
    at, content = KINDS[kind]
    overwrite(log_file(store.config.root, offset - offset % 65536), offset % 65536 + at, content)
    again = maker()
    assert report(again).damage == ()
    assert bodies(again) == wanted[:HURT] + wanted[HURT + 1 :]
    assert again.commit_log.look_message(offset) is None
    alone = again.reader.get_message(("T", 0), HURT, 1)
    assert (alone.message_count, alone.next_begin_offset) == (1, HURT + 2)
    assert again.commit_log.damaged_records == 1


def test_damaged_record_is_logged_once(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    put(store)
    path = store.commit_log.files.files[0].path
    for offset in (1, 2**40, 1, 2**40):
        store.commit_log.note_damage(offset, "why")
    assert store.commit_log.damaged_records == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"message skipped, its record is damaged file={where} offset={offset} reason=why"
        for where, offset in ((path, 1), (None, 2**40))
    ]
