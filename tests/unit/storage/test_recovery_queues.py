"""Consume queues after a kill, lost units, lost records and deleted topics."""

import shutil
from collections.abc import Iterator
from typing import Final

import pytest

from tests.unit.storage.making import (
    StoreMaker,
    bodies,
    body,
    discard,
    filled,
    log_file,
    overwrite,
    put,
    queue_file,
    report,
)
from triomq.protocol.names import SCHEDULE_TOPIC
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, UNIT
from triomq.protocol.record.properties import encode_properties

FILE: Final = 65536
SECTOR: Final = 512


def test_missing_unit_is_written(maker: StoreMaker) -> None:
    store = filled(maker, 10)
    copy = maker.killed_copy(store)
    overwrite(queue_file(copy, "T", 0), 4 * 20, bytes(20))
    again = maker(copy)
    assert report(again).units_added == 1
    assert bodies(again) == bodies(store)
    again.close()
    overwrite(queue_file(copy, "U", 0), 4 * 20, bytes(20))  # the last record of the log, after a clean exit
    assert report(maker(copy)).units_added == 1


def test_queues_that_are_gone_are_built_again(maker: StoreMaker) -> None:
    for clean in (True, False):
        store = filled(maker)
        wanted = bodies(store, "T"), bodies(store, "U")
        copy = maker.killed_copy(store)
        discard(store)
        if clean:
            (copy / "abort").unlink()
        shutil.rmtree(copy / "consumequeue")
        again = maker(copy)
        assert report(again).units_added == 200
        assert (bodies(again, "T"), bodies(again, "U")) == wanted


def test_lost_queue_is_rebuilt_if_walk_meets_it(maker: StoreMaker) -> None:
    for meets in (True, False):
        store = filled(maker, 30)
        maker.clock.now_ms += 100_000
        put(store, "T")
        if not meets:
            maker.clock.now_ms += 63_001  # the checkpoint vouches for all but the last message
        put(store, "U" if meets else "T")
        store.flush()
        wanted = bodies(store, "U") if meets else []
        copy = maker.killed_copy(store)
        discard(store)
        shutil.rmtree(copy / "consumequeue" / "U")
        again = maker(copy)
        assert report(again).scan_start > 0
        assert report(again).repaired_queues == (("U:0",) if meets else ())
        assert bodies(again, "U") == wanted


def test_lost_units_in_middle_are_repaired_from_log(maker: StoreMaker) -> None:
    store = filled(maker, 400, topics=("T",))
    maker.clock.now_ms += 100_000
    put(store)
    store.flush()
    put(store)
    copy = maker.killed_copy(store)
    overwrite(queue_file(copy, "T", 1000), 0, bytes(1000))
    for start in range(2000, 9000, 1000):
        overwrite(queue_file(copy, "T", start), 0, bytes(1000))
    again = maker(copy)
    assert report(again).scan_start > 0
    assert report(again).repaired_queues == ("T:0",)
    assert report(again).units_added == 352
    assert bodies(again) == bodies(store)
    assert [unit.physical_offset for unit in again.reader.queue_units("T", 0, 0, 500)] == [
        unit.physical_offset for unit in store.reader.queue_units("T", 0, 0, 500)
    ]


def test_queue_without_units_or_old_records_keeps_offsets(maker: StoreMaker) -> None:
    store = filled(maker, 200, topics=("T",))
    copy = maker.killed_copy(store)
    shutil.rmtree(copy / "consumequeue")
    log_file(copy, 0).unlink()
    first_left = next(
        n for n, unit in enumerate(store.reader.queue_units("T", 0, 0, 200)) if unit.physical_offset >= FILE
    )
    again = maker(copy)
    queue = again.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (first_left, 200)
    start = first_left * 20 // 1000 * 1000
    blanks = first_left - start // 20
    assert queue_file(copy, "T", start).read_bytes()[: blanks * 20] == BLANK_UNIT * blanks
    assert bodies(again) == bodies(store)[first_left:]
    again.close()
    assert maker(copy).queue("T", 0).min_offset == first_left


@pytest.mark.parametrize("clean", [True, False])
def test_misplaced_files_of_another_queue_are_rebuilt(maker: StoreMaker, clean: bool) -> None:
    store = maker()
    for number in range(20):
        put(store, queue_id=number % 2, body=body(number))
    wanted = bodies(store), bodies(store, queue_id=1)
    store.close()
    root = store.config.root
    if not clean:
        (root / "abort").touch()
    files = [root / "consumequeue/T" / str(queue_id) / f"{0:020}" for queue_id in (0, 1)]
    content = [path.read_bytes() for path in files]
    for path, other in zip(files, reversed(content), strict=True):
        path.write_bytes(other)
    again = maker()
    assert (bodies(again), bodies(again, queue_id=1)) == wanted
    again.close()
    assert [path.read_bytes() for path in files] == content


def test_resurrected_files_of_deleted_topic_are_deleted_again(maker: StoreMaker) -> None:
    store = filled(maker, 20)
    old = maker.killed_copy(store)
    store.delete_topic("T")
    put(store, "T", body=b"new")
    copy = maker.killed_copy(store)
    shutil.rmtree(copy / "consumequeue" / "T")
    shutil.copytree(old / "consumequeue" / "T", copy / "consumequeue" / "T")
    assert bodies(maker(copy), "T") == [b"new"]


def test_messages_after_rocketmq_restored_units_are_kept(maker: StoreMaker) -> None:
    store = filled(maker, 20)
    root, deletions = store.config.root, store.config.root / "config" / "deletedTopics.json"
    old = maker.killed_copy(store)
    store.delete_topic("T")
    store.close()
    shutil.copytree(old / "consumequeue" / "T", root / "consumequeue" / "T")
    noted = deletions.read_bytes()
    deletions.unlink()  # RocketMQ does not look at it
    store = maker(root)
    assert put(store, "T", body=b"new").queue_offset == 10
    put(store, "U")
    store.close()
    deletions.write_bytes(noted)
    for _ in range(2):
        store = maker(root)
        assert bodies(store, "T") == [b"new"]
        assert (store.reader.min_offset_in_queue("T", 0), store.reader.max_offset_in_queue("T", 0)) == (10, 11)
        store.close()


def test_queues_without_log_are_deleted(maker: StoreMaker) -> None:
    store = filled(maker, 20)
    store.delete_topic("U")
    copy = maker.killed_copy(store)
    shutil.rmtree(copy / "commitlog")
    again = maker(copy)
    assert again.reader.max_offset_in_queue("T", 0) == 0
    assert not (copy / "consumequeue" / "T" / "0").exists()
    put(again, "U", body=b"new")
    assert bodies(maker(maker.killed_copy(again)), "U") == [b"new"]


def torn_units(before: bytes, behind: bytes) -> Iterator[tuple[int, bytes]]:
    """A queue's file with a unit of which one side of a border of sectors is as it was before, and its number."""
    for border in range(SECTOR, len(before), SECTOR):
        number = border // UNIT.size
        begin, end = number * UNIT.size, (number + 1) * UNIT.size
        if begin < border:
            yield number, behind[:border] + before[border:]
            yield number, behind[:begin] + before[begin:border] + behind[border:end] + before[end:]
            yield number, behind[:begin] + before[begin:border] + behind[border:]


@pytest.mark.parametrize("topic", ["T", SCHEDULE_TOPIC])
def test_unit_torn_by_power_cut_is_repaired(maker: StoreMaker, topic: str) -> None:
    store = maker(consume_queue_file_size_bytes=4000)
    for number in range(199):
        if topic == "T":
            put(store, topic, body=body(number), tags="polygenelubricants")
        else:
            properties = encode_properties({"DELAY": "5"})
            put(store, topic, body=body(number), properties=properties, tags_code=store.config.delay_levels.due_time(5))
    wanted = store.reader.queue_units(topic, 0, 0, 200)
    whole = queue_file(store.config.root, topic, 0).read_bytes()
    torn = 0
    for number, content in torn_units(bytes(4000), whole):
        copy = maker.killed_copy(store)
        queue_file(copy, topic, 0).write_bytes(content)
        again = maker(copy, consume_queue_file_size_bytes=4000)
        assert again.reader.queue_units(topic, 0, 0, 200) == wanted, f"unit {number}"
        assert bool(report(again).units_added) == (content != whole)
        assert bodies(again, topic) == bodies(store, topic)
        again.close()
        torn += 1
    assert torn == 18


def test_differing_but_untorn_unit_across_sectors_is_kept(maker: StoreMaker) -> None:
    store = maker(consume_queue_file_size_bytes=4000)
    for number in range(30):
        put(store, body=body(number), tags="polygenelubricants")
    copy = maker.killed_copy(store)
    offset, size, _ = store.reader.queue_units("T", 0, 25, 1)[0]
    overwrite(queue_file(copy, "T", 0), 25 * 20, UNIT.pack(offset, size, 7))
    again = maker(copy, consume_queue_file_size_bytes=4000)
    assert report(again).units_added == 0
    assert again.reader.queue_units("T", 0, 25, 1)[0].tags_code == 7


def test_records_of_deleted_topic_mend_no_units(maker: StoreMaker) -> None:
    for made_again in (False, True):
        store = filled(maker, 40, topics=("T",))
        store.delete_topic("T")
        for number in range(40 if made_again else 0):
            put(store, body=body(number))
        wanted = bodies(store)
        copy = maker.killed_copy(store)
        (copy / "checkpoint").unlink()
        again = maker(copy)
        assert report(again).units_added == 0
        assert bodies(again) == wanted
        discard(store)
