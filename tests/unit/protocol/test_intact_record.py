"""The quick look must never pass what the thorough one refuses, and must pass what is usual."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.intact_record import are_intact
from triomq.protocol.record import encode_record, find_damage

AT: Final = 40  # in the file, with something before and behind
OFFSET: Final = 123_456_789_012
TOPIC_FIELD: Final = b"\x06orders"


def record(body: bytes = b"a body", host: bytes = bytes(8), topic: bytes = b"orders") -> bytes:
    return encode_record(
        queue_id=1,
        queue_offset=2,
        physical_offset=OFFSET,
        sys_flag=MessageSysFlag.COMPRESSED,
        born_timestamp=3,
        born_host=host,
        store_timestamp=4,
        store_host=bytes(8),
        body=body,
        topic=topic,
        properties=b"TAGS\x01a",
    )


def looks(content: bytes, size: int | None = None) -> bool:
    buffer = bytes(AT) + content + bytes(300)
    return are_intact(buffer, [AT], [len(content) if size is None else size], [OFFSET], TOPIC_FIELD)


@given(st.binary(min_size=1, max_size=300))
def test_a_good_record_is_intact(body: bytes) -> None:
    assert looks(record(body))


@given(st.integers(0, len(record()) - 1), st.integers(0, 7))
def test_a_record_with_a_flipped_bit_is_intact_only_where_nothing_can_be_seen(at: int, bit: int) -> None:
    content = bytearray(record())
    content[at] ^= 1 << bit
    if looks(bytes(content)):
        assert not find_damage(content, 0, len(content), TOPIC_FIELD[1:])
        assert not 0 <= at < 12, "size, magic and CRC are compared"
        assert not 28 <= at < 36, "the physical offset is compared"


@given(st.binary(min_size=len(record()), max_size=len(record())))
def test_any_bytes_are_looked_at_without_failing(content: bytes) -> None:
    assert not looks(content)


@given(st.integers(92, 300).filter(lambda size: size != len(record())))
def test_a_record_of_another_size_than_the_unit_says_is_not_intact(size: int) -> None:
    assert not looks(record(), size)


def test_what_is_rare_is_left_to_the_thorough_look() -> None:
    assert not looks(record(body=b""))
    assert not looks(record(host=bytes(20)))
    assert not looks(record(topic=b"others"))


@given(st.integers(0, 4))
def test_one_bad_record_among_good_ones_is_noticed(bad: int) -> None:
    records = [record(b"%d" % number) for number in range(5)]
    positions = [len(b"".join(records[:number])) for number in range(5)]
    sizes = [len(each) for each in records]
    offsets = [OFFSET] * 5
    assert are_intact(b"".join(records), positions, sizes, offsets, TOPIC_FIELD)
    offsets[bad] += 1
    assert not are_intact(b"".join(records), positions, sizes, offsets, TOPIC_FIELD)
