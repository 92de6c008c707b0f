"""The quick check must pass usual records, and none that the thorough check rejects."""

import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records import make_record
from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.record.intact_record import IntactWalk, are_intact
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES
from triomq.protocol.record.record import RecordCheck, RecordKind, check_record, encode_record, find_damage

AT: Final = 40  # in the file, with something before and behind
OFFSET: Final = 123_456_789_012
TOPIC_FIELD: Final = b"\x06orders"
QUEUE_ID: Final = 1
PROPERTIES: Final = b"TAGS\x01a"


def record(body: bytes = b"a body", host: bytes = bytes(8), topic: bytes = b"orders") -> bytes:
    return make_record(
        queue_id=QUEUE_ID,
        physical_offset=OFFSET,
        sys_flag=MessageSysFlag.COMPRESSED,
        born_host=host,
        body=body,
        topic=topic,
        properties=PROPERTIES,
    )


def looks(content: bytes, size: int | None = None) -> bool:
    buffer = bytes(AT) + content + bytes(300)
    return are_intact(buffer, [AT], [len(content) if size is None else size], [OFFSET], TOPIC_FIELD, QUEUE_ID)


@given(st.binary(min_size=1, max_size=300))
def test_a_good_record_is_intact(body: bytes) -> None:
    assert looks(record(body))


@given(st.integers(0, len(record()) - 1), st.integers(0, 7))
def test_flipped_bit_passes_only_in_unchecked_fields(at: int, bit: int) -> None:
    content = bytearray(record())
    content[at] ^= 1 << bit
    if looks(bytes(content)):
        assert not find_damage(content, 0, len(content), TOPIC_FIELD[1:], QUEUE_ID)
        assert not 0 <= at < 16, "size, magic, CRC and queue are compared"
        assert not 28 <= at < 36, "the physical offset is compared"


@given(st.integers(92, 300).filter(lambda size: size != len(record())))
def test_record_size_differing_from_unit_is_not_intact(size: int) -> None:
    assert not looks(record(), size)


@pytest.mark.parametrize("length", [MAX_PROPERTIES_BYTES, MAX_PROPERTIES_BYTES + 1])
def test_properties_as_long_as_signed_length_can_say(length: int) -> None:
    content = record()[: -len(PROPERTIES) - 2] + struct.pack(">H", length) + b"x" * length
    content = struct.pack(">i", len(content)) + content[4:]
    is_good = length <= MAX_PROPERTIES_BYTES
    assert looks(content) == is_good
    assert (find_damage(content, 0, len(content), TOPIC_FIELD[1:], QUEUE_ID) == "") == is_good
    assert len(walked(content + bytes(100), 0, len(content), OFFSET, check_crc=True)) == is_good


def test_what_is_rare_is_left_to_thorough_look() -> None:
    assert not looks(record(body=b""))
    assert not looks(record(host=bytes(20)))
    assert not looks(record(topic=b"others"))


@given(st.integers(0, 4))
def test_one_bad_record_among_good_ones_is_noticed(bad: int) -> None:
    records = [record(b"%d" % number) for number in range(5)]
    positions = [len(b"".join(records[:number])) for number in range(5)]
    sizes = [len(each) for each in records]
    offsets = [OFFSET] * 5
    assert are_intact(b"".join(records), positions, sizes, offsets, TOPIC_FIELD, QUEUE_ID)
    offsets[bad] += 1
    assert not are_intact(b"".join(records), positions, sizes, offsets, TOPIC_FIELD, QUEUE_ID)


START: Final = 3 * 2**30  # of the file that is walked over
HOSTS: Final = st.sampled_from([bytes(8), bytes(20)])
TEXTS: Final = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FFF), max_size=30).map(str.encode)


@st.composite
def files(draw: st.DrawFn, hosts: st.SearchStrategy[bytes] = HOSTS, least_body: int = 0) -> bytes:
    """A commit log file with some records and zeros behind them."""
    file = b""
    for _ in range(draw(st.integers(0, 6))):
        file += encode_record(
            queue_id=draw(st.integers(0, 2**31 - 1)),
            queue_offset=draw(st.integers(0, 2**62)),
            physical_offset=START + len(file),
            sys_flag=draw(st.sampled_from([0, MessageSysFlag.COMPRESSED, 0xC])),
            born_timestamp=3,
            born_host=draw(hosts),
            store_timestamp=draw(st.integers(0, 2**62)),
            store_host=draw(hosts),
            prepared_transaction_offset=draw(st.integers(0, 2**62)),
            body=draw(st.binary(min_size=least_body, max_size=200)),
            topic=draw(TEXTS.filter(bool)),
            properties=b"\x02".join(
                [*draw(st.lists(TEXTS, max_size=3)), draw(st.sampled_from([b"", b"TAGS\x01a", b"xTAGS\x01a"]))]
            ),
        )
    return file + bytes(draw(st.integers(0, 300)))


def checked(file: bytes, *, check_crc: bool) -> list[RecordCheck]:
    """What the thorough look says of the good records from the begin on."""
    found: list[RecordCheck] = []
    at = 0
    while (record := check_record(file, at, len(file), check_crc=check_crc)).kind is RecordKind.MESSAGE:
        if record.physical_offset != START + at:
            break
        found.append(record)
        at += record.size
    return found


def walked(file: bytes, position: int, stop: int, start: int, *, check_crc: bool) -> list[RecordCheck]:
    """What the quick look says, until it leaves a record to the thorough one."""
    walk = IntactWalk(check_crc=check_crc)
    found: list[RecordCheck] = []
    while run := walk.run(file, position, stop, start):
        found += run
        position += sum(each.size for each in run)
    return found


@given(files(hosts=st.just(bytes(8)), least_body=1), st.booleans())
def test_a_walk_passes_over_all_that_is_plain(file: bytes, check_crc: bool) -> None:
    found = walked(file, 0, len(file), START, check_crc=check_crc)
    assert found == checked(file, check_crc=check_crc)


@given(files(), st.booleans(), st.data())
def test_walk_accepts_no_record_that_full_check_rejects(file: bytes, check_crc: bool, data: st.DataObject) -> None:
    damaged = bytearray(file)
    for at in data.draw(st.lists(st.integers(0, max(len(file) - 1, 0)), max_size=2)) if file else ():
        damaged[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    found = walked(bytes(damaged), 0, len(damaged), START, check_crc=check_crc)
    assert found == checked(bytes(damaged), check_crc=check_crc)[: len(found)]


@given(files(hosts=st.just(bytes(8)), least_body=1), st.integers(0, 1000), st.integers(0, 6))
def test_walk_keeps_to_its_bounds(file: bytes, stop: int, skipped: int) -> None:
    records = checked(file, check_crc=True)
    begin = sum(each.size for each in records[:skipped])
    wanted = [each for each in records[skipped:] if each.physical_offset - START < stop]
    assert walked(file, begin, stop, START, check_crc=True) == wanted


def test_a_walk_passes_the_longest_topic_and_properties() -> None:
    fields = {"topic": b"t" * 127, "properties": b"p" * 32767, "physical_offset": START}
    longest = make_record(**fields)
    assert walked(longest, 0, len(longest), START, check_crc=True) == checked(longest, check_crc=True) != []


def test_large_walk_is_split_and_skips_no_record() -> None:
    log = bytearray()  # appending to bytes would copy it each time
    for number in range(5000):
        body = b"b" * (1 + number % 7 * 1000)
        log += make_record(physical_offset=START + len(log), body=body, topic=b"T%d" % number)
    file = bytes(log)
    assert walked(file, 0, len(file), START, check_crc=True) == checked(file, check_crc=True)
    first = IntactWalk(check_crc=True).run(file, 0, len(file), START)
    assert 0 < sum(each.size for each in first[:-1]) < 64 * 1024


@pytest.mark.parametrize("body_bytes", [2048, 2049, 100_000])
def test_walk_notices_flipped_bit_in_any_body(body_bytes: int) -> None:
    whole = record(bytes(body_bytes))
    damaged = bytearray(whole)
    damaged[88 + body_bytes // 2] ^= 1
    assert len(walked(whole, 0, len(whole), OFFSET, check_crc=True)) == 1
    assert walked(bytes(damaged), 0, len(whole), OFFSET, check_crc=True) == []
    assert len(walked(bytes(damaged), 0, len(whole), OFFSET, check_crc=False)) == 1
