"""layouts: the readable layouts against bytes that RocketMQ wrote.

The tests of the quick code compare it with these layouts; here are the layouts without quick code.
"""

from hypothesis import strategies as st

from triomq.protocol.record import layouts

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
