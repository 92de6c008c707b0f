"""Units in the place of lost messages."""

import pytest

from triomq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, UNIT, ConsumeQueueUnit
from triomq.storage.consume_queue.consume_queue import lost_units

FILE_SIZE = 10_000


def units(content: bytes) -> list[ConsumeQueueUnit]:
    return [ConsumeQueueUnit._make(unit) for unit in UNIT.iter_unpack(content)]


def test_lost_unit_in_first_file_names_next_record() -> None:
    found = units(lost_units(3, "T", FILE_SIZE, 9_999, 150))
    assert [unit[:2] for unit in found] == [(9_999, 150)] * 3
    assert all(unit.is_lost for unit in found)
    assert {unit.tags_code & 0xFFFF_FFFF for unit in found} == {0}, "who asks for tags is asked to take none of them"


def test_before_message_of_later_file_they_are_blank() -> None:
    assert lost_units(3, "T", FILE_SIZE, 10_000, 150) == BLANK_UNIT * 3


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TIMER_TOPIC])
def test_messages_that_wait_are_not_named_twice(topic: str) -> None:
    assert lost_units(3, topic, FILE_SIZE, 500, 150) == BLANK_UNIT * 3


def test_units_of_one_read_name_next_record() -> None:
    found = units(lost_units(5_000, "T", FILE_SIZE, 500, 150))
    assert len(found) == 5_000
    assert all(unit.is_lost for unit in found)
    assert [unit.physical_offset for unit in found[-1024:]] == [500] * 1024
    assert {unit.physical_offset for unit in found[:-1024]} == {0}
