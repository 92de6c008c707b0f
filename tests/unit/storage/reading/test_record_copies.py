"""The fast way to copy records does what the slow one does: decode, look up, encode."""

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.storage import making
from tests.unit.storage.making import Appended
from triomq.protocol.errors import IllegalNameError, ProtocolError
from triomq.protocol.host import IPV4_HOST_LENGTH, encode_host
from triomq.protocol.record.consume_queue_unit import ConsumeQueueUnit
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import get_property
from triomq.protocol.record.record import decode_record, tags_code_of
from triomq.storage.append import Entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.message_store import MessageStore
from triomq.storage.reading import record_copies
from triomq.storage.reading.record_copies import Copies, CopyReader, Find

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


def find_of(store: MessageStore, looked: list[int]) -> Find:
    """Return the slow way, which notes where it was asked to look."""

    def find(physical_offset: int, size: int) -> tuple[MessageExt, ConsumeQueue, int] | None:
        looked.append(physical_offset)
        record = store.commit_log.view(physical_offset, size)
        try:
            message = decode_record(record if record is not None else b"")
            if message.store_size != size:
                return None
            properties = message.encoded_properties
            topic, queue_id = (get_property(properties, name) or b"" for name in (b"REAL_TOPIC", b"REAL_QID"))
            queue = store.queue(topic.decode("utf-8", "replace"), int(queue_id))
        except (ProtocolError, IllegalNameError, ValueError):
            return None
        return message, queue, tags_code_of(properties)

    return find


def expected_of(store: MessageStore, units: Sequence[tuple[int, int, int]]) -> Copies:
    """What reading must give, each record by itself with a reader that knows nothing."""
    copies = [CopyReader(find_of(store, [])).read(store.commit_log, [unit]) for unit in units]
    return [each for entries, _ in copies for each in entries], [time for _, times in copies for time in times]


def put(store: MessageStore, properties: bytes, body: bytes = b"body", host: bytes = bytes(8)) -> Appended:
    return making.put(
        store, "W", body=body, properties=properties, tags_code=0, sys_flag=3, born_host=host, store_host=host
    )


def units_of(store: MessageStore, *places: Appended) -> list[ConsumeQueueUnit]:
    return [store.reader.queue_units("W", 0, place.queue_offset, 1)[0] for place in places]


def read(store: MessageStore, reader: CopyReader, *places: Appended) -> list[Entry | None]:
    return reader.read(store.commit_log, units_of(store, *places))[0]


@SEVERAL
@given(messages=st.lists(st.tuples(ENDING, st.binary(max_size=40), HOSTS), min_size=1, max_size=6))
def test_copies_equal_decoded_records(store: MessageStore, messages: list[tuple[bytes, bytes, bytes]]) -> None:
    places = [put(store, *message) for message in messages]
    looked: list[int] = []
    reader = CopyReader(find_of(store, looked))
    units = units_of(store, *places)
    for _ in range(2):  # it has learned the second time
        assert reader.read(store.commit_log, units) == expected_of(store, units)
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
def test_damaged_record_read_as_slow_way_reads(store: MessageStore, at: int, value: int, learned: bool) -> None:
    good, bad = (put(store, b"TAGS\x01a\x02UNIQ_KEY\x010123456789ABCDEF\x02" + PLACE) for _ in range(2))
    reader = CopyReader(find_of(store, []))
    if learned:
        read(store, reader, good)
    (unit,) = store.reader.queue_units("W", 0, bad.queue_offset, 1)
    file = store.commit_log.files.file_at(bad.physical_offset)
    assert file is not None
    file.map[bad.physical_offset - file.start + at % unit.size] = value
    assert reader.read(store.commit_log, [unit]) == expected_of(store, [unit])


@pytest.mark.parametrize("unit", [(-1, 200, 0), (0, 0, 0), (0, -5, 0), (0, 90, 0), (10**12, 200, 0), (5, 65_536, 0)])
def test_unit_without_record_gives_nothing(store: MessageStore, unit: tuple[int, int, int]) -> None:
    good = put(store, PLACE)
    reader = CopyReader(find_of(store, []))
    (good_unit,) = store.reader.queue_units("W", 0, good.queue_offset, 1)
    for units in ([unit], [good_unit, unit], [unit, good_unit]):
        copies, _ = reader.read(store.commit_log, units)
        assert [copy is None for copy in copies] == [each == unit for each in units]


def test_records_of_several_files_read_in_one_go(store: MessageStore) -> None:
    places = [put(store, b"TAGS\x01a\x02" + PLACE, bytes(20_000)) for _ in range(10)]
    looked: list[int] = []
    reader = CopyReader(find_of(store, looked))
    copies = read(store, reader, *places)
    assert [copy.body == bytes(20_000) for copy in copies if copy is not None] == [True] * 10
    assert looked == [0], "the others are alike"


def test_remembered_texts_are_bounded(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_copies, "_MAX_KNOWN", 3)
    reader = CopyReader(find_of(store, []))
    for number in range(10):
        read(store, reader, put(store, b"TAGS\x01%d\x02REAL_TOPIC\x01T%d\x02REAL_QID\x010" % (number, number)))
        assert len(reader._codes) <= 3
        assert len(reader._queues) <= 3
