from typing import Any

import pytest

from tests.unit.storage.making import StoreMaker
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.storage.message_store import MessageStore
from triomq.storage.recovery.redispatch import Redispatcher


def record(queue_offset: int, physical_offset: int = 1000, **fields: Any) -> RecordCheck:
    found = RecordCheck(RecordKind.MESSAGE, 100, topic="T", queue_id=0, tags_code=7)
    place = {"queue_offset": QueueOffset(queue_offset), "physical_offset": PhysicalOffset(physical_offset)}
    return found._replace(**{**place, **fields})


@pytest.fixture
def store(maker: StoreMaker) -> MessageStore:
    return maker(consume_queue_file_size_bytes=400)  # 20 units


@pytest.fixture
def redispatcher(store: MessageStore) -> Redispatcher:
    return Redispatcher(store.commit_log, store.queues, store.deleted, lambda record: record.tags_code)


def test_unit_behind_gap_is_never_misplaced(redispatcher: Redispatcher, store: MessageStore) -> None:
    redispatcher.dispatch([record(0, 1000), record(3, 1300), record(4, 1400)])
    queue = store.queue("T", 0)
    assert queue.max_offset == 1
    assert redispatcher.gaps == {queue: 3}
    redispatcher.dispatch([record(0, 2000)])
    assert (queue.max_offset, redispatcher.ignored_records) == (1, 1)


def test_empty_queue_begins_midway_only_at_log_start(redispatcher: Redispatcher, store: MessageStore) -> None:
    redispatcher.dispatch([record(7, 1700)])
    queue = store.queue("T", 0)
    assert redispatcher.gaps == {queue: 7}
    redispatcher.start(0)
    redispatcher.dispatch([record(7, 1700)])
    redispatcher.finish()
    assert (queue.min_offset, queue.max_offset) == (7, 8)


@pytest.mark.parametrize(
    "impossible", [{"topic": "a/b"}, {"topic": ""}, {"queue_id": -1}, {"queue_offset": -1}, {"queue_offset": 2**60}]
)
def test_record_of_impossible_queue_is_ignored(
    redispatcher: Redispatcher, store: MessageStore, impossible: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    redispatcher.dispatch(record(0, number)._replace(**impossible) for number in range(150))
    assert redispatcher.ignored_records == 150
    assert len(caplog.records) == 100, "only the first ones are logged"
    assert len(store.queues) == 0


@pytest.mark.parametrize("bits", [4, 12])
def test_hidden_record_makes_no_queue(redispatcher: Redispatcher, store: MessageStore, bits: int) -> None:
    redispatcher.dispatch([record(0, sys_flag=bits | 0x31)])
    assert len(store.queues) == 0


def test_record_of_deleted_topic_is_skipped(redispatcher: Redispatcher, store: MessageStore) -> None:
    store.deleted.add("T", 1200)
    redispatcher.dispatch([record(0, 1000), record(1, 1100), record(0, 1200)])
    assert store.queue("T", 0).unit(0) == (1200, 100, 7)


def rebuilt(store: MessageStore, numbers: list[int], log_start: int = 0) -> tuple[list[int], int]:
    """Return the queue offsets that got a unit, and how many records were ignored."""
    redispatcher = Redispatcher(store.commit_log, store.queues, store.deleted, lambda record: 0)
    redispatcher.start(log_start)
    redispatcher.dispatch(record(number, log_start + place * 100) for place, number in enumerate(numbers))
    redispatcher.finish()
    queue = store.queue("T", 0)
    units = [(number, queue.unit(number)) for number in range(queue.min_offset, queue.max_offset)]
    places = {log_start + place * 100: number for place, number in enumerate(numbers)}
    found = [number for number, unit in units if unit is not None and not unit.is_lost]
    assert all(unit is None or unit.is_lost or places[unit.physical_offset] == number for number, unit in units)
    return found, redispatcher.ignored_records


@pytest.mark.parametrize(
    ("numbers", "ignored"),
    [
        ([0, 1, 2, 3], []),
        ([0, 1, 18, 3, 4], [18]),  # a flipped bit
        ([16, 1, 2, 3], [16]),
        ([0, 1, 2**50, 3], [2**50]),
        ([0, 1, 2, 7], []),  # perhaps the messages between are lost
        ([0, 1, 5, 6, 7], []),
        ([5, 6, 7], []),  # those before have expired
        ([5], []),
        ([0, 3, 4, 2, 5], [2]),
        ([0, 7, 0, 2, 3], [0, 7]),
        ([0, 5, 5, 6], [5]),
        ([0, 1, 2**59, 2], [2**59]),
        ([0, -1, 1], [-1]),
        ([0, 1, 23], [23]),  # a small loss explains at most one file of units
    ],
)
def test_queue_offset_counts_unless_next_record_disagrees(
    store: MessageStore, numbers: list[int], ignored: list[int]
) -> None:
    wanted = sorted(set(numbers) - {number for number in ignored if numbers.count(number) == 1})
    assert rebuilt(store, numbers) == (wanted, len(ignored))


def test_units_of_expired_messages_are_no_gap(store: MessageStore) -> None:
    rebuilt(store, [0, 1, 2])
    assert rebuilt(store, [2**40, 2**40 + 1], log_start=1000) == ([2**40, 2**40 + 1], 0)
    assert store.queue("T", 0).min_offset == 2**40
