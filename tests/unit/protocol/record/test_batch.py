"""batch: several messages in one send."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.errors import ProtocolError
from triomq.protocol.record import layouts
from triomq.protocol.record.batch import BatchEntry, decode_batch, encode_batch

GOLDEN = bytes.fromhex(
    "00000021 00000000 00000000 00000000 00000002 6231 0009 574149540174727565"
    "00000019 00000000 00000000 00000000 00000003 623232 0000"
)
ENTRIES = [BatchEntry(0, b"b1", b"WAIT\x01true"), BatchEntry(0, b"b22", b"")]
ENTRY = st.builds(BatchEntry, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50))


def test_batch_equals_the_golden_bytes() -> None:
    assert encode_batch(ENTRIES) == GOLDEN
    assert decode_batch(GOLDEN) == ENTRIES


@given(ENTRY)
def test_entry_agrees_with_its_layout(entry: BatchEntry) -> None:
    size = 22 + len(entry.body) + len(entry.properties)
    layout = layouts.BATCH_ENTRY.build({"total_size": size, "magic": 0, "body_crc": 0, **entry._asdict()})
    assert encode_batch([entry]) == layout


def test_magic_and_crc_of_sender_do_not_matter() -> None:
    data = bytearray(GOLDEN)
    data[4:12] = b"\xff" * 8
    assert decode_batch(data) == ENTRIES


@pytest.mark.parametrize("length", [length for length in range(len(GOLDEN)) if length not in (0, 0x21)])
def test_truncated_batch_is_a_protocol_error(length: int) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(GOLDEN[:length])


@pytest.mark.parametrize("at", [0, 16])
@pytest.mark.parametrize("number", [0, -1, 1, 21, 22, 2**31 - 1, -(2**31)])
def test_lengths_that_contradict_each_other_are_refused(at: int, number: int) -> None:
    data = bytearray(GOLDEN)
    struct.pack_into(">i", data, at, number)
    with pytest.raises(ProtocolError):
        decode_batch(data)


@pytest.mark.parametrize("number", [-1, 8, 10, 32767])
def test_properties_length_that_does_not_fit_is_refused(number: int) -> None:
    data = bytearray(GOLDEN)
    struct.pack_into(">h", data, 22, number)
    with pytest.raises(ProtocolError):
        decode_batch(data)


@pytest.mark.parametrize("entry", [(2**31, b"", b""), (0, b"", b"p" * 32768)])
def test_what_does_not_fit_is_not_written(entry: tuple[int, bytes, bytes]) -> None:
    with pytest.raises(ProtocolError):
        encode_batch([entry])
