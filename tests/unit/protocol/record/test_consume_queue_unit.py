"""consume_queue_unit: entries of a consume queue."""

from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.message_queue import PhysicalOffset
from triomq.protocol.record import layouts
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, UNIT, UNIT_SIZE, ConsumeQueueUnit

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(ConsumeQueueUnit, I64.map(PhysicalOffset), I32, I64))
def test_unit_struct_agrees_with_its_layout(unit: ConsumeQueueUnit) -> None:
    packed = UNIT.pack(*unit)
    assert packed == layouts.CONSUME_QUEUE_UNIT.build(unit._asdict())
    assert ConsumeQueueUnit(*UNIT.unpack(packed)) == unit


def test_unit_equals_bytes_that_rocketmq_wrote() -> None:
    assert UNIT.pack(0, 225, 2598919).hex(" ", 4) == "00000000 00000000 000000e1 00000000 0027a807"
    assert UNIT.pack(0x3E5D, 0xDF, -(2**31)).hex() == "0000000000003e5d000000dfffffffff80000000"


def test_blank_unit_is_used_at_offset_0() -> None:
    assert ConsumeQueueUnit(*UNIT.unpack(BLANK_UNIT)) == (0, 2**31 - 1, 0)
    assert len(BLANK_UNIT) == UNIT_SIZE == 20
