"""The fast way to copy records does what the slow one does: decode, look up, encode."""

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triomq.protocol.errors import IllegalNameError, ProtocolError
from triomq.protocol.host import IPV4_HOST_LENGTH, encode_host
from triomq.protocol.record.properties import get_property
from triomq.protocol.record.record import decode_record, encode_record, tags_code_of
from triomq.protocol.record.record_copy import split_record
from triomq.storage.message_store import MessageStore
from triomq.storage.reading import record_copies
from triomq.storage.reading.record_copies import CopyReader, PackedCopies, RecordCopy, copy_size
from triomq.storage.store_writer import Appended

HOSTS: Final = st.sampled_from([encode_host("127.0.0.1", 10911), encode_host("::1", 10912)])
PLACE: Final = b"REAL_TOPIC\x01T\x02REAL_QID\x011"
SEVERAL: Final = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
PARTS: Final = st.sampled_from([
    b"TAGS\x01a", b"TAGS\x01\xc3\xa4", b"TAGS\x01", b"XTAGS\x01b", b"TAGS", b"UNIQ_KEY\x010A", b"", b"DELAY\x013",
    b"REAL_TOPIC\x01T", b"REAL_TOPIC\x01U", b"REAL_TOPIC\x01", b"REAL_QID\x010", b"REAL_QID\x011", b"REAL_QID\x01",
    PLACE,    b"OLD_REAL_TOPIC\x01V\x02REAL_QID\x012",
])  # fmt: skip
PROPERTIES: Final = st.lists(PARTS, max_size=8).map(b"\x02".join)
ENDING: Final = st.tuples(PROPERTIES, st.booleans()).map(
    lambda drawn: drawn[0] + b"\x02" + PLACE if drawn[1] else drawn[0]
)


def look_of(store: MessageStore, looked: list[int]) -> Callable[[int, int], RecordCopy | None]:
    """Return the slow way, which notes where it was asked to look."""

    def look(physical_offset: int, size: int) -> RecordCopy | None:
        looked.append(physical_offset)
        record = store.commit_log.view(physical_offset, size)
        try:
            source = split_record(record if record is not None else memoryview(b""))
            properties = source[-1][2:]
            topic, queue_id = (get_property(properties, name) or b"" for name in (b"REAL_TOPIC", b"REAL_QID"))
            queue = store.queue(topic.decode("utf-8", "replace"), int(queue_id))
        except (ProtocolError, IllegalNameError, ValueError):
            return None
        return queue, tags_code_of(properties), *source

    return look


def put(store: MessageStore, properties: bytes, body: bytes = b"body", host: bytes = bytes(8)) -> Appended:
    return store.put(store.queue("W", 0), body, properties, 0, 3, 0, 5, host, host)


def read(store: MessageStore, reader: CopyReader, *places: Appended) -> list[RecordCopy | None]:
    units = [store.queue_units("W", 0, place.queue_offset, 1)[0] for place in places]
    return reader.read(store.commit_log, units)


@SEVERAL
@given(messages=st.lists(st.tuples(ENDING, st.binary(max_size=40), HOSTS), min_size=1, max_size=6))
def test_what_is_read_is_what_decoding_each_record_gives(
    store: MessageStore, messages: list[tuple[bytes, bytes, bytes]]
) -> None:
    places = [put(store, *message) for message in messages]
    first = places[0].queue_offset
    looked: list[int] = []
    look = look_of(store, looked)
    reader = CopyReader(look)
    expected = [look(unit.physical_offset, unit.size) for unit in store.queue_units("W", 0, first, len(places))]
    for _ in range(2):  # it has learned the second time
        assert read(store, reader, *places) == expected
    looked.clear()
    usual = [
        place
        for place, (properties, _, host) in zip(places, messages, strict=True)
        if len(host) == IPV4_HOST_LENGTH and b"TAGS\x01" not in properties and properties.endswith(b"\x02" + PLACE)
    ]
    read(store, reader, *usual)
    assert looked == [], "they are known"


@SEVERAL
@given(at=st.integers(0, 300), value=st.integers(0, 255), learned=st.booleans())
def test_a_damaged_record_is_read_as_the_slow_way_reads_it(
    store: MessageStore, at: int, value: int, learned: bool
) -> None:
    good, bad = (put(store, b"TAGS\x01a\x02UNIQ_KEY\x010123456789ABCDEF\x02" + PLACE) for _ in range(2))
    look = look_of(store, [])
    reader = CopyReader(look)
    if learned:
        read(store, reader, good)
    (unit,) = store.queue_units("W", 0, bad.queue_offset, 1)
    file = store.commit_log.files.file_at(bad.physical_offset)
    assert file is not None
    file.map[bad.physical_offset - file.start + at % unit.size] = value
    assert reader.read(store.commit_log, [unit]) == [look(unit.physical_offset, unit.size)]


@pytest.mark.parametrize("unit", [(-1, 200, 0), (0, 0, 0), (0, -5, 0), (0, 90, 0), (10**12, 200, 0), (5, 65_536, 0)])
def test_a_unit_that_points_nowhere_gives_nothing(store: MessageStore, unit: tuple[int, int, int]) -> None:
    good = put(store, PLACE)
    reader = CopyReader(look_of(store, []))
    (good_unit,) = store.queue_units("W", 0, good.queue_offset, 1)
    for units in ([unit], [good_unit, unit], [unit, good_unit]):
        copies = reader.read(store.commit_log, units)
        assert [copy is None for copy in copies] == [each == unit for each in units]


def test_records_of_several_files_are_read_in_one_go(store: MessageStore) -> None:
    places = [put(store, b"TAGS\x01a\x02" + PLACE, bytes(20_000)) for _ in range(10)]
    looked: list[int] = []
    reader = CopyReader(look_of(store, looked))
    copies = read(store, reader, *places)
    assert [copy[3][-20_000:] == bytes(20_000) for copy in copies if copy is not None] == [True] * 10
    assert looked == [0], "the others are alike"


def test_what_it_remembers_has_a_bound(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_copies, "_MOST_KNOWN", 3)
    reader = CopyReader(look_of(store, []))
    for number in range(10):
        read(store, reader, put(store, b"TAGS\x01%d\x02REAL_TOPIC\x01T%d\x02REAL_QID\x010" % (number, number)))
        assert len(reader._codes) <= 3
        assert len(reader._queues) <= 3


@SEVERAL
@given(messages=st.lists(st.tuples(PROPERTIES, st.binary(max_size=40), HOSTS, HOSTS), min_size=1, max_size=6))
def test_a_copy_is_the_record_that_encoding_it_anew_would_give(
    store: MessageStore, messages: list[tuple[bytes, bytes, bytes, bytes]]
) -> None:
    copies: list[RecordCopy] = []
    expected = []
    at = 1000
    next_offset = {0: 0, 1: 0}
    for number, (properties, body, born_host, store_host) in enumerate(messages):
        queue_id = number % 2
        encode = partial(
            encode_record,
            sys_flag=1,
            born_timestamp=2,
            born_host=born_host,
            store_host=store_host,
            body=body,
            properties=properties,
            flag=-7,
            reconsume_times=4,
            prepared_transaction_offset=9,
        )
        waiting = encode(queue_id=7, queue_offset=8, physical_offset=9, store_timestamp=10, topic=b"WAITING")
        copies.append((store.queue("T", queue_id), 4711 + number, *split_record(memoryview(waiting))))
        delivered = encode(
            queue_id=queue_id,
            queue_offset=next_offset[queue_id],
            physical_offset=at,
            store_timestamp=11,
            topic=b"T",
        )
        expected.append((delivered, queue_id, struct.pack(">qiq", at, len(delivered), 4711 + number)))
        next_offset[queue_id] += 1
        at += len(delivered)
    packed = PackedCopies(copies, 1000, 11)
    assert b"".join(packed.parts) == b"".join(record for record, _, _ in expected)
    assert packed.size_bytes == sum(map(copy_size, copies)) == at - 1000
    for queue, units in packed.units.items():
        assert units == [unit for _, queue_id, unit in expected if queue_id == queue.queue_id]
    assert decode_record(b"".join(packed.parts[:4])).topic == "T"
