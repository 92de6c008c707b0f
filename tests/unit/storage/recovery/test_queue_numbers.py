from pathlib import Path

import pytest

from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.protocol.units import PhysicalOffset, QueueOffset
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.files.file_system import FileSystem
from triomq.storage.recovery.queue_numbers import QueueNumbers

SIZE = 100


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    config = StoreConfig(root=tmp_path, consume_queue_file_size_bytes=400)  # 20 units
    return QueueTable(config, FileSystem(), tmp_path / "consumequeue", tmp_path / "scratch").get("T", 0)


def taken(queue: ConsumeQueue, numbers: list[int], log_start: int = 0) -> tuple[list[int], list[int]]:
    """Return the numbers that got a unit, and those of records that were ignored."""
    ignored: list[int] = []

    def append(queue: ConsumeQueue, record: RecordCheck) -> None:
        assert queue.next_offset == record.queue_offset
        queue.append_visible(record.physical_offset, record.size, 0)

    def ignore(record: RecordCheck, reason: str) -> None:
        assert reason
        assert numbers[(record.physical_offset - log_start) // SIZE] == record.queue_offset
        ignored.append(record.queue_offset)

    followed = QueueNumbers(log_start, append, ignore)
    for place, number in enumerate(numbers):
        record = RecordCheck(
            RecordKind.MESSAGE,
            SIZE,
            topic="T",
            queue_id=0,
            queue_offset=QueueOffset(number),
            physical_offset=PhysicalOffset(log_start + place * SIZE),
        )
        followed.add(queue, record)
    followed.finish()
    units = [queue.unit(number) for number in range(queue.min_offset, queue.max_offset)]
    return [queue.min_offset + at for at, unit in enumerate(units) if unit is not None and not unit.is_lost], ignored


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
    ],
)
def test_queue_offset_is_trusted_unless_next_record_disagrees(
    queue: ConsumeQueue, numbers: list[int], ignored: list[int]
) -> None:
    wanted = sorted(set(numbers) - {number for number in ignored if numbers.count(number) == 1})
    assert taken(queue, numbers) == (wanted, ignored)


def test_small_loss_explains_at_most_one_file_of_offsets(queue: ConsumeQueue) -> None:
    assert taken(queue, [0, 1, 23]) == ([0, 1], [23])


def test_what_is_left_of_expired_messages_is_no_gap(queue: ConsumeQueue) -> None:
    taken(queue, [0, 1, 2])
    assert taken(queue, [2**40, 2**40 + 1], log_start=1000) == ([2**40, 2**40 + 1], [])
    assert queue.min_offset == 2**40
