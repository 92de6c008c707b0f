from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage.making import StoreMaker, put
from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.protocol.units import PhysicalOffset, QueueOffset
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.delays import DelayLevels, stored_tags_code
from triomq.storage.dispatch import Dispatcher
from triomq.storage.files.deleted_topics import DeletedTopics
from triomq.storage.files.file_system import FileSystem
from triomq.storage.recovery.redispatch import Redispatcher


def record(queue_offset: int, physical_offset: int = 1000, **fields: Any) -> RecordCheck:
    values = {"topic": "T", "queue_id": 0, "tags_code": 7, **fields}
    return RecordCheck(
        RecordKind.MESSAGE,
        100,
        queue_offset=QueueOffset(queue_offset),
        physical_offset=PhysicalOffset(physical_offset),
        **values,
    )


@pytest.fixture
def queues(tmp_path: Path) -> QueueTable:
    config = StoreConfig(root=tmp_path, consume_queue_file_size_bytes=100)
    return QueueTable(config, FileSystem(), tmp_path / "consumequeue", tmp_path / "scratch")


@pytest.fixture
def deleted(tmp_path: Path) -> DeletedTopics:
    return DeletedTopics(tmp_path / "config" / "deletedTopics.json", FileSystem())


@pytest.fixture
def redispatcher(queues: QueueTable, deleted: DeletedTopics) -> Redispatcher:
    return Redispatcher(queues, deleted, lambda record: record.tags_code, lambda *ignored: None)


def test_records_in_order_get_their_units(redispatcher: Redispatcher, queues: QueueTable) -> None:
    redispatcher.dispatch(record(number, 1000 + number * 100) for number in range(12))
    queue = queues.get("T", 0)
    assert redispatcher.units_added == queue.max_offset == 12
    assert queue.unit(11) == (2100, 100, 7)


def test_the_same_records_again_change_nothing(redispatcher: Redispatcher, queues: QueueTable) -> None:
    for _ in range(2):
        redispatcher.dispatch(record(number, 1000 + number * 100) for number in range(3))
    assert redispatcher.units_added == queues.get("T", 0).max_offset == 3
    assert not redispatcher.gaps
    assert not redispatcher.ignored_records


def test_a_unit_behind_a_gap_is_never_misplaced(redispatcher: Redispatcher, queues: QueueTable) -> None:
    redispatcher.dispatch([record(0, 1000), record(3, 1300), record(4, 1400)])
    queue = queues.get("T", 0)
    assert queue.max_offset == 1
    assert redispatcher.gaps == {queue: 3}


def test_empty_queue_begins_midway_only_if_nothing_precedes(redispatcher: Redispatcher, queues: QueueTable) -> None:
    redispatcher.dispatch([record(7, 1700)])
    queue = queues.get("T", 0)
    assert redispatcher.gaps == {queue: 7}
    redispatcher.start(0)
    redispatcher.dispatch([record(7, 1700)])
    redispatcher.finish()
    assert (queue.min_offset, queue.max_offset) == (7, 8)


def test_a_number_that_is_taken_is_ignored(redispatcher: Redispatcher, queues: QueueTable) -> None:
    redispatcher.dispatch([record(0, 1000), record(0, 2000)])
    assert queues.get("T", 0).max_offset == 1
    assert redispatcher.ignored_records == 1


def test_only_first_of_many_placeless_records_are_reported(queues: QueueTable, deleted: DeletedTopics) -> None:
    told: list[int] = []
    redispatcher = Redispatcher(
        queues, deleted, lambda record: record.tags_code, lambda record, _: told.append(record.physical_offset)
    )
    redispatcher.dispatch(record(-1, number) for number in range(150))
    assert redispatcher.ignored_records == 150
    assert told == list(range(100))


@pytest.mark.parametrize(
    "impossible", [{"topic": "a/b"}, {"topic": ""}, {"queue_id": -1}, {"queue_offset": -1}, {"queue_offset": 2**60}]
)
def test_records_of_no_possible_queue_are_ignored(
    redispatcher: Redispatcher, queues: QueueTable, impossible: dict[str, Any]
) -> None:
    redispatcher.dispatch([record(0)._replace(**impossible)])
    assert redispatcher.ignored_records == 1
    assert len(queues) == 0


@pytest.mark.parametrize("bits", [4, 12])
def test_records_without_a_unit_make_no_queue(redispatcher: Redispatcher, queues: QueueTable, bits: int) -> None:
    redispatcher.dispatch([record(0, sys_flag=bits | 0x31)])
    assert len(queues) == 0


def test_records_of_a_deleted_topic_are_passed_over(
    redispatcher: Redispatcher, queues: QueueTable, deleted: DeletedTopics
) -> None:
    deleted.add("T", 1200)
    redispatcher.dispatch([record(0, 1000), record(1, 1100), record(0, 1200)])
    assert queues.get("T", 0).unit(0) == (1200, 100, 7)


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        ("T", b"DELAY\x012", 7),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x012", 60_050),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x015", 60_050),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x010", 7),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x01-1", 7),
        ("SCHEDULE_TOPIC_XXXX", b"TAGS\x01x", 7),
        ("rmq_sys_wheel_timer", b"TIMER_OUT_MS\x01777", 777),
        ("rmq_sys_wheel_timer", b"TIMER_OUT_MS\x01172800050", 86_400_050),
        ("rmq_sys_wheel_timer", b"TAGS\x01x", 0),
        ("T", b"TIMER_OUT_MS\x01777", 7),
    ],
)
def test_tags_code_of_delayed_record_is_its_delivery_time(topic: str, properties: bytes, code: int) -> None:
    found = record(0, topic=topic, properties=properties, store_timestamp=50)
    assert stored_tags_code(DelayLevels("1s 1m"))(found) == code


def test_flush_reveals_messages_in_order_and_notifies_once(maker: StoreMaker) -> None:
    queue = maker().queue("T", 0)
    arrived: list[int] = []
    queue.on_arrival = lambda queue: arrived.append(queue.max_offset)
    dispatcher = Dispatcher(wait_for_flush=True)
    for number in (1, 2, 3):
        queue.next_offset = number
        dispatcher.appended(queue, number * 100)
    dispatcher.flushed(99)
    assert (queue.max_offset, arrived) == (0, [])
    dispatcher.flushed(250)
    assert (queue.max_offset, arrived) == (2, [2])
    queue.on_arrival = None
    dispatcher.flushed(300)
    assert (queue.max_offset, arrived) == (3, [2])
    queue.resume(0, 0)


def test_nobody_listening_is_fine(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    assert store.queue("T", 0).on_arrival is None
    assert store.reader.max_offset_in_queue("T", 0) == 1
