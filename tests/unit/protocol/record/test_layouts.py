"""The readable layouts against bytes that RocketMQ wrote, and against the structs of units and headers."""

from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.message_queue import PhysicalOffset
from triomq.protocol.record import layouts
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, UNIT_SIZE, ConsumeQueueUnit
from triomq.protocol.record.consume_queue_unit import UNIT as QUEUE_UNIT
from triomq.protocol.record.index_unit import HEADER, UNIT, IndexHeader, IndexUnit

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def test_frame_is_read_as_documented() -> None:
    data = bytes.fromhex(
        "0000002d010000290069030197000000010000000000000000000000140005746f70696300000009546f70696354657374"
    )
    frame = layouts.FRAME.parse(data)
    assert (frame.length, frame.serialize_type, frame.header_length, frame.body) == (45, 1, 41, b"")
    header = layouts.ROCKETMQ_HEADER.parse(frame.header)
    assert (header.code, header.language, header.version, header.opaque, header.flag) == (105, 3, 407, 1, 0)
    assert header.remark == ""
    assert [(field.key, field.value) for field in header.ext_fields] == [("topic", "TopicTest")]
    assert layouts.ROCKETMQ_HEADER.build(header) == frame.header
    assert layouts.FRAME.build(frame) == data


def test_blank_record_is_read_as_documented() -> None:
    data = bytes.fromhex("000002f7cbd43194") + bytes(759 - 8)
    assert layouts.BLANK_RECORD.parse(data).size == 759


def test_index_header_is_read_as_documented() -> None:
    data = bytes.fromhex("000001a1fb1b7ef1 000001a1fb1b8026 0000000000000000 0000000000002afe 00000030 00000096")
    header = layouts.INDEX_HEADER.parse(data)
    assert header.begin_timestamp == 1795214245617
    assert header.end_physical_offset == 0x2AFE
    assert (header.hash_slot_count, header.index_count) == (48, 150)


def test_index_file_holds_header_slots_and_units() -> None:
    slots, units = 5, 7
    layout = layouts.index_file(slots, units)
    assert layout.sizeof() == 40 + 4 * slots + 20 * units
    parsed = layout.parse(bytes(layout.sizeof()))
    assert (len(parsed.slots), len(parsed.units)) == (slots, units)


@given(st.builds(IndexHeader, I64, I64, I64.map(PhysicalOffset), I64.map(PhysicalOffset), I32, I32))
def test_header_struct_agrees_with_its_layout(header: IndexHeader) -> None:
    packed = HEADER.pack(*header)
    assert packed == layouts.INDEX_HEADER.build(header._asdict())
    assert IndexHeader(*HEADER.unpack(packed)) == header


@given(st.builds(IndexUnit, I32, I64.map(PhysicalOffset), I32, I32))
def test_index_unit_struct_agrees_with_its_layout(unit: IndexUnit) -> None:
    packed = UNIT.pack(*unit)
    assert packed == layouts.INDEX_UNIT.build(unit._asdict())
    assert IndexUnit(*UNIT.unpack(packed)) == unit


@given(st.builds(ConsumeQueueUnit, I64.map(PhysicalOffset), I32, I64))
def test_unit_struct_agrees_with_its_layout(unit: ConsumeQueueUnit) -> None:
    packed = QUEUE_UNIT.pack(*unit)
    assert packed == layouts.CONSUME_QUEUE_UNIT.build(unit._asdict())
    assert ConsumeQueueUnit(*QUEUE_UNIT.unpack(packed)) == unit


def test_unit_equals_bytes_that_rocketmq_wrote() -> None:
    assert QUEUE_UNIT.pack(0, 225, 2598919).hex(" ", 4) == "00000000 00000000 000000e1 00000000 0027a807"
    assert QUEUE_UNIT.pack(0x3E5D, 0xDF, -(2**31)).hex() == "0000000000003e5d000000dfffffffff80000000"


def test_blank_unit_is_used_at_offset_0() -> None:
    assert ConsumeQueueUnit(*QUEUE_UNIT.unpack(BLANK_UNIT)) == (0, 2**31 - 1, 0)
    assert len(BLANK_UNIT) == UNIT_SIZE == 20
