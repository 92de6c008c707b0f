"""A check finds all defects and nothing else."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.storage.making import StoreMaker, deleted_by_apache, filled, log_file, overwrite, put, queue_file
from triomq.protocol.errors import StoreLayoutError
from triomq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.consume_queue_unit import REPEATED_CODE, UNIT
from triomq.protocol.record.index_unit import key_hash
from triomq.protocol.record.properties import encode_properties
from triomq.storage.files.file_system import FileSystem
from triomq.storage.index.index_file import NO_UNITS, IndexFile, IndexLayout
from triomq.storage.tools.stopped_store import StoppedStore
from triomq.storage.tools.store_check import CheckReport, Problem, ProblemKind, check

Unpack = Callable[[str], Path]


def checked(root: Path) -> CheckReport:
    with StoppedStore(root) as store:
        return check(store)


def kinds(report: CheckReport) -> list[tuple[ProblemKind, int, int]]:
    return [(problem.kind, problem.offset, problem.count) for problem in report.problems]


def rebuild(root: Path, report: CheckReport) -> None:
    """As docs/cli.md recommends: the next start reads the whole log and rebuilds the deleted queues."""
    for problem in report.problems:
        if problem.kind in {ProblemKind.MISSING_UNIT, ProblemKind.WRONG_UNIT}:
            topic, _, queue_id = problem.place.rpartition(":")
            shutil.rmtree(root / "consumequeue" / topic / queue_id, ignore_errors=True)
    (root / "checkpoint").unlink(missing_ok=True)
    (root / "abort").touch()


@pytest.fixture
def root(maker: StoreMaker) -> Path:
    """Two topics of 100 messages each."""
    store = filled(maker)
    store.close()
    return store.config.root


def test_sound_store_has_no_problem(root: Path) -> None:
    report = checked(root)
    assert (report.records, report.units, report.problems) == (200, 200, [])


def test_unit_added_by_apache_crash_recovery_is_reported(unpack: Unpack) -> None:
    report = checked(unpack("store-crash"))
    assert report.log_end == 271552
    assert [(problem.kind, problem.place, problem.count) for problem in report.problems] == [
        (ProblemKind.MISSING_UNIT, "FixtureTopic:3", 1)
    ]


def test_power_loss_of_apaches_shows_all_its_kinds(unpack: Unpack) -> None:
    report = checked(unpack("store-powerloss"))
    assert report.log_end == 264202
    assert [(problem.kind, problem.place.rpartition("/")[2]) for problem in report.problems] == [
        (ProblemKind.TAIL, f"{262144:020d}"),
        (ProblemKind.MISSING_UNIT, "FixtureTopic:0"),
        (ProblemKind.MISSING_UNIT, "FixtureTopic:1"),
        (ProblemKind.WRONG_UNIT, "FixtureTopic:2"),
        (ProblemKind.WRONG_UNIT, "FixtureTopic:3"),
        (ProblemKind.INDEX, "20261120223824994"),
    ]


def test_groups_that_are_ahead_of_queue_are_found(unpack: Unpack) -> None:
    report = checked(unpack("store-trimmed"))
    assert (report.records, report.units) == (51, 51)
    assert [(problem.kind, problem.place) for problem in report.problems] == [
        (ProblemKind.OFFSET, "fixture_group FixtureTopic:2"),
        (ProblemKind.OFFSET, "fixture_sql_group FixtureTopic:2"),
    ]


@pytest.mark.parametrize("made_again", [True, False])
def test_records_of_topic_apache_deleted_need_no_unit(maker: StoreMaker, made_again: bool) -> None:
    report = checked(deleted_by_apache(maker, "T", made_again=made_again))
    assert report.problems == []
    assert report.units == (104 if made_again else 101)


def test_lost_queue_of_known_topic_is_reported_missing(maker: StoreMaker) -> None:
    root = deleted_by_apache(maker, "T", made_again=False)
    (root / "config" / "topics.json").unlink()
    assert kinds(checked(root)) == [(ProblemKind.MISSING_UNIT, 0, 100), (ProblemKind.MISSING_UNIT, 0, 1)]


def test_after_crash_table_of_topics_proves_no_deletion(maker: StoreMaker) -> None:
    root = deleted_by_apache(maker, "T", made_again=False)
    (root / "abort").touch()
    assert kinds(checked(root)) == [(ProblemKind.MISSING_UNIT, 0, 100), (ProblemKind.MISSING_UNIT, 0, 1)]


def test_damaged_body_is_lost_record(root: Path) -> None:
    overwrite(log_file(root, 0), 300, b"\xff")
    report = checked(root)
    problem = report.problems[0]
    assert problem == Problem(ProblemKind.RECORD, str(log_file(root, 0)), 0, problem.text, 1, problem.size_bytes)
    assert "does not match its CRC" in problem.text
    assert report.records == 199
    assert len(report.problems) == 1  # its unit is right


@pytest.mark.parametrize(
    ("position", "content", "text"),
    [
        (0, struct.pack(">q", 1), "no record at 1"),
        (0, struct.pack(">q", -1), "no record at -1"),
        (8, struct.pack(">i", 500), "500 bytes, but the record"),
        (12, struct.pack(">q", 77), "tags code 77 instead of 0"),
    ],
)
def test_every_field_of_unit_is_verified(root: Path, position: int, content: bytes, text: str) -> None:
    overwrite(queue_file(root, "T", 0), 10 * 20 + position, content)
    report = checked(root)
    assert kinds(report) == [(ProblemKind.WRONG_UNIT, 10, 1)]
    assert text in report.problems[0].text


def test_swapped_units_are_found(root: Path) -> None:
    path = queue_file(root, "T", 0)
    units = path.read_bytes()
    overwrite(path, 3 * 20, units[4 * 20 : 5 * 20] + units[3 * 20 : 4 * 20])
    report = checked(root)
    assert kinds(report) == [(ProblemKind.WRONG_UNIT, 3, 2)]
    assert "is number 4 of T:0" in report.problems[0].text


def test_empty_unit_in_middle_is_found(root: Path) -> None:
    overwrite(queue_file(root, "T", 0), 5 * 20, bytes(20))
    assert (ProblemKind.WRONG_UNIT, 5, 1) in kinds(checked(root))


def test_blank_units_expired_records_and_deletions_are_fine(maker: StoreMaker) -> None:
    store = filled(maker)
    store.delete_topic("U")
    put(store, "U")
    store.close()
    assert checked(store.config.root).problems == []
    log_file(store.config.root, 0).unlink()
    report = checked(store.config.root)
    assert report.problems == []
    assert report.units < 100


def test_delayed_messages_may_have_their_delivery_time(maker: StoreMaker) -> None:
    store = maker()
    put(store, SCHEDULE_TOPIC, 2, tags_code=store.config.delay_levels.due_time(3))
    put(store, SCHEDULE_TOPIC, 3, tags_code=5)
    store.close()
    assert [(p.kind, p.place) for p in checked(store.config.root).problems] == [
        (ProblemKind.WRONG_UNIT, f"{SCHEDULE_TOPIC}:3")
    ]


def test_delivery_time_may_lie_before_store_time(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    maker.clock.now_ms -= 3_600_000
    put(store, SCHEDULE_TOPIC, 2, tags_code=store.config.delay_levels.due_time(3))
    put(store, TIMER_TOPIC, 0, tags_code=store.now_ms() + 1000)
    store.close()
    assert checked(store.config.root).problems == []


def test_empty_and_stray_files_are_named_and_kept(root: Path) -> None:
    (root / "abort").touch()  # without it a gap is refused
    log_file(root, 65536).unlink()
    empty = queue_file(root, "T", 2000)
    empty.touch()
    report = checked(root)
    strays = [problem.place for problem in report.problems if problem.kind is ProblemKind.STRAY_FILE]
    assert strays == [*(str(log_file(root, number * 65536)) for number in (2, 3)), str(empty)]
    assert all(Path(path).exists() for path in strays)
    assert report.log_end < 65536


@pytest.mark.parametrize(
    ("position", "content", "count", "text"),
    [
        (0, struct.pack(">i", 5), 3, "has no key with hash 5"),  # and two chains are broken
        (4, struct.pack(">q", 7), 1, "no record at 7"),
        (12, struct.pack(">i", 10_000), 1, "10000 s after the start"),
        (16, struct.pack(">i", 149), 1, "continues with unit 149"),
        (16, struct.pack(">i", 1), 1, "continues with unit 1 instead of"),
    ],
)
def test_every_field_of_index_unit_is_verified(
    unpack: Unpack, position: int, content: bytes, count: int, text: str
) -> None:
    root = unpack("store-normal")
    path = min((root / "index").iterdir())
    overwrite(path, 40 + 50 * 4 + 20 * 20 + position, content)
    report = checked(root)
    assert [(p.kind, p.place, p.offset, p.count) for p in report.problems] == [
        (ProblemKind.INDEX, str(path), 20, count)
    ]
    assert text in report.problems[0].text


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (8, "its header says that it ends at"),
        (24, "its header says that it ends at"),
        (40 + 4 * 7, "slot 7 leads to unit"),
    ],
    ids=["end time", "end offset", "slot"],
)
def test_hidden_index_units_are_found(unpack: Unpack, position: int, text: str) -> None:
    root = unpack("store-normal")
    path = min((root / "index").iterdir())
    overwrite(path, position, bytes(4))
    overwrite(path, position + 3, b"\x01")
    (problem,) = checked(root).problems
    assert (problem.kind, problem.place, problem.offset) == (ProblemKind.INDEX, str(path), 0)
    assert text in problem.text


@pytest.mark.parametrize("count", [-(2**31) + 149, 1, 0])
def test_index_file_that_denies_its_units_is_found(unpack: Unpack, count: int) -> None:
    root = unpack("store-normal")
    path = min((root / "index").iterdir())
    overwrite(path, 36, struct.pack(">i", count))
    (problem,) = checked(root).problems
    assert (problem.kind, problem.place, problem.offset) == (ProblemKind.INDEX, str(path), 0)
    assert f"says {count} units" in problem.text


def test_index_check_reports_progress(unpack: Unpack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.storage.tools.index_check._PROGRESS_STEP", 100)
    told: list[tuple[int, int]] = []
    with StoppedStore(unpack("store-normal")) as store:
        check(store, lambda done, total: told.append((done, total)))
    assert told == [(100, 376), (200, 376), (300, 376)]


def test_slots_prefilled_by_killed_process_are_no_problem(maker: StoreMaker) -> None:
    store = maker()
    for number in range(100):
        put(store, properties=f"KEYS\x01a{number}".encode())
    store.index.catch_up()
    copy = maker.killed_copy(store)
    (path,) = (copy / "index").iterdir()
    overwrite(path, 40 + 4 * 7, struct.pack(">i", 120))
    assert checked(copy).problems == []
    (copy / "abort").unlink()
    assert "slot 7 leads to unit 120" in checked(copy).problems[0].text


def test_damaged_index_files_are_named(unpack: Unpack) -> None:
    root = unpack("store-normal")
    paths = sorted((root / "index").iterdir())
    overwrite(paths[0], 40 + 50 * 4 + 20 + 4, b"\x7f")  # the first unit
    overwrite(paths[1], 36, struct.pack(">i", 9999))
    short = root / "index" / "20260101000000000"
    short.write_bytes(b"short")
    problems = checked(root).problems
    assert [(problem.place, problem.offset) for problem in problems] == [
        (str(short), 0), (str(paths[0]), 1), (str(paths[1]), 0),
    ]  # fmt: skip
    assert "no record at" in problems[1].text
    assert "too short" in problems[2].text


def test_index_of_unknown_sizes_is_named(maker: StoreMaker) -> None:
    store = maker()
    put(store, properties=b"KEYS\x01a")
    store.close()
    (path,) = (store.config.root / "index").iterdir()
    overwrite(path, 40 + 50 * 4 + 20, b"\x7f" * 20)
    (problem,) = checked(store.config.root).problems
    assert (problem.place, problem.text[:22]) == (str(path), "neither its first unit")


def test_rocketmq_5_tag_index_entries_are_no_problem(maker: StoreMaker) -> None:
    store = maker(index=False)
    for number in range(10):
        put(
            store, body=bytes(10_000), tags="TagA", properties=encode_properties({"TAGS": "TagA", "KEYS": f"a{number}"})
        )
    layout = IndexLayout(store.config.index_slots, store.config.index_units)
    index = IndexFile(FileSystem(), layout, store.config.root / "index" / "20260101000000000", NO_UNITS)
    index.create(store.config.root / "scratch")
    for number, unit in enumerate(store.reader.queue_units("T", 0, 0, 10)):
        hashes = [key_hash("T", f"a{number}"), key_hash("T", "T#TagA")]
        index.append(hashes, [unit.physical_offset] * 2, [store.now_ms()] * 2)
    store.close()
    assert (checked(store.config.root).index_units, checked(store.config.root).problems) == (20, [])
    log_file(store.config.root, 0).unlink()  # the sizes are found by the last unit then, which is that of a tag
    assert checked(store.config.root).problems == []


def test_times_too_long_for_index_unit_are_fine(maker: StoreMaker) -> None:
    store = maker()
    for _ in range(2):
        put(store, properties=b"KEYS\x01a")
        maker.clock.now_ms += 3 * 10**12
    store.close()
    assert checked(store.config.root).problems == []


def test_lost_units_must_name_their_own_queue(maker: StoreMaker) -> None:
    store = filled(maker)
    copy = maker.killed_copy(store)
    lost = store.reader.queue_units("T", 0, 3, 1)[0]
    overwrite(log_file(copy, 0), lost.physical_offset + 8, b"\1\2\3\4")
    again = maker(copy)
    assert again.reader.queue_units("T", 0, 3, 1)[0].is_lost
    other = again.reader.queue_units("U", 0, 9, 1)[0]
    again.close()
    assert checked(copy).problems == []
    overwrite(queue_file(copy, "T", 0), 3 * 20, UNIT.pack(other.physical_offset, other.size, REPEATED_CODE))
    assert kinds(checked(copy)) == [(ProblemKind.WRONG_UNIT, 3, 1)]


def test_index_units_of_lost_messages_are_no_problem(maker: StoreMaker) -> None:
    store = maker()
    for number in range(10):
        put(store, body=bytes(1000), properties=f"KEYS\x01a{number}".encode())
    units = store.reader.queue_units("T", 0, 0, 10)
    store.close()
    root = store.config.root
    (path,) = (root / "index").iterdir()
    for number in (3, 4):
        overwrite(log_file(root, 0), units[number].physical_offset + 100, b"\xff")
    rebuild(root, checked(root))
    maker(root).close()
    assert checked(root).problems == []
    overwrite(log_file(root, 0), units[9].physical_offset + 100, b"\xff")
    texts = [problem.text for problem in checked(root).problems if problem.place == str(path)]
    assert texts == [f"its record, at {units[9].physical_offset}, is in the damaged end of the log"]
    rebuild(root, checked(root))
    maker(root).close()
    assert checked(root).problems == []


def test_damaged_table_is_reported_before_recovery(root: Path) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text("{")
    read: list[int] = []
    with StoppedStore(root) as store, pytest.raises(StoreLayoutError, match=r"topics\.json"):
        check(store, lambda done, total: read.append(done))
    assert read == []


def test_index_whose_first_record_has_expired_is_verified(maker: StoreMaker) -> None:
    store = maker()
    for number in range(40):
        put(store, body=bytes(2000), properties=f"KEYS\x01a{number}".encode())
    store.close()
    root = store.config.root
    log_file(root, 0).unlink()
    (path,) = (root / "index").iterdir()
    report = checked(root)
    assert 0 < report.index_units < 40
    assert report.problems == []
    overwrite(path, 40 + 50 * 4 + 39 * 20, b"\x7f")
    assert [(problem.place, problem.offset) for problem in checked(root).problems] == [(str(path), 39)]
