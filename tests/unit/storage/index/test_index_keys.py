"""index_keys: which keys a record is indexed under."""

from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.storage.making import StoreMaker, overwrite, put
from triomq.protocol.host import encode_host
from triomq.protocol.record.index_unit import key_hash, key_hashes
from triomq.protocol.record.properties import decode_properties, encode_properties
from triomq.storage.index.index_keys import IndexBatch, KeyReader
from triomq.storage.message_store import MessageStore

UNIQUE: Final = "C00002027FEA30946E0966B396D60000"


def read_all(store: MessageStore) -> list[IndexBatch]:
    log = store.commit_log
    batches = []
    position = 0
    while position < log.max_offset:
        batches.append(KeyReader(log).read(position, log.max_offset, 100))
        position = batches[-1].end
    return batches


def hashes(store: MessageStore) -> list[int]:
    return [hashed for batch in read_all(store) for hashed in key_hashes(batch.keys, batch.shares)]


def indexed(topic: str, *keys: str) -> list[int]:
    return [key_hash(topic, key) for key in keys]


@pytest.mark.parametrize(
    ("properties", "keys"),
    [
        ({}, ()),
        ({"TAGS": "A"}, ()),
        ({"UNIQ_KEY": UNIQUE}, (UNIQUE,)),
        ({"WAIT": "true", "UNIQ_KEY": UNIQUE, "TAGS": "A"}, (UNIQUE,)),
        ({"KEYS": "a  b c ", "UNIQ_KEY": UNIQUE}, (UNIQUE, "a", "b", "c")),
        ({"KEYS": " "}, ()),
        ({"KEYS": "a\tb"}, ("a\tb",)),
        ({"UNIQ_KEY": "x" * 33}, ("x" * 33,)),
        ({"UNIQ_KEY": "short", "KEYS": "ключ ключ"}, ("short", "ключ", "ключ")),
        ({"MY_UNIQ_KEY": "no", "MYKEYS": "no"}, ()),
        ({"A": "UNIQ_KEY", "B": "KEYS"}, ()),
    ],
)
def test_record_has_unique_key_and_each_word(
    store: MessageStore, properties: dict[str, str], keys: tuple[str, ...]
) -> None:
    for _ in range(2):
        put(store, "Topic", properties=encode_properties(properties))
    assert hashes(store) == indexed("Topic", *keys) * 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["UNIQ_KEY", "KEYS", "A_UNIQ_KEY", "KEYSX", "TAGS"]),
        st.text(st.sampled_from("ab UNIQ_KEYS=é"), max_size=40),
    ),
    st.sampled_from([b"", b"\x02", b"\x02KEYS\x01", b"\x02UNIQ_KEY\x01\x02", b"\x02UNIQ_KEY\x01other"]),
)
def test_quick_way_finds_what_rules_for_properties_say(
    store: MessageStore, properties: dict[str, str], tail: bytes
) -> None:
    encoded = encode_properties(properties) + tail
    told = decode_properties(encoded)
    wanted = [told["UNIQ_KEY"]] if "UNIQ_KEY" in told else []
    wanted += [word for word in told.get("KEYS", "").split(" ") if word]
    place = put(store, "Topic", properties=encoded)
    batch = store.index._reader.read(place.physical_offset, store.commit_log.max_offset, 1)
    assert key_hashes(batch.keys, batch.shares) == indexed("Topic", *wanted)


def test_rolled_back_messages_are_not_indexed(store: MessageStore) -> None:
    for number, sys_flag in enumerate((0x0, 0x4, 0x8, 0xC)):
        put(store, "T", properties=encode_properties({"KEYS": f"k{number}"}), sys_flag=sys_flag)
    assert hashes(store) == indexed("T", "k0", "k1", "k2")
    (batch,) = read_all(store)
    assert batch.last_record > batch.offsets[-1]


def test_records_with_ipv6_hosts_are_indexed(store: MessageStore) -> None:
    place = put(store, "T", properties=encode_properties({"KEYS": "six"}), born_host=encode_host("::1", 1))
    (batch,) = read_all(store)
    assert key_hashes(batch.keys, batch.shares) == indexed("T", "six")
    assert batch.offsets == [place.physical_offset]
    assert batch.timestamps == [place.store_timestamp]


def test_reading_stops_at_file_border(maker: StoreMaker) -> None:
    store = maker()
    places = [put(store, "T", body=bytes(20_000), properties=b"KEYS\x01k") for _ in range(7)]
    batches = read_all(store)
    assert [batch.offsets for batch in batches] == [
        [place.physical_offset for place in places[begin : begin + 3]] for begin in (0, 3, 6)
    ]
    assert [batch.end for batch in batches] == [65536, 131072, store.commit_log.max_offset]


def test_no_more_records_are_read_than_asked_for(store: MessageStore) -> None:
    places = [put(store, "T", properties=b"KEYS\x01k") for _ in range(5)]
    batch = KeyReader(store.commit_log).read(0, store.commit_log.max_offset, 3)
    assert len(batch.offsets) == 3
    assert batch.end == places[3].physical_offset
    assert KeyReader(store.commit_log).read(batch.end, places[4].physical_offset, 9).end == places[4].physical_offset


def test_place_without_record_is_skipped_and_reported(maker: StoreMaker) -> None:
    store = maker()
    places = [put(store, "T", body=bytes(20_000), properties=b"KEYS\x01k") for _ in range(5)]
    overwrite(store.config.root / "commitlog" / f"{0:020d}", places[1].physical_offset + 4, b"ruin")
    first, second = read_all(store)
    assert first.offsets == [places[0].physical_offset, places[2].physical_offset]
    assert str(places[1].physical_offset) in first.damage
    assert second.offsets == [place.physical_offset for place in places[3:]]
    assert second.damage == ""


def test_damage_up_to_end_of_log_passed_over(maker: StoreMaker) -> None:
    store = maker()
    places = [put(store, "T", properties=b"KEYS\x01k") for _ in range(3)]
    overwrite(store.config.root / "commitlog" / f"{0:020d}", places[2].physical_offset + 4, b"ruin")
    (batch,) = read_all(store)
    assert batch.offsets == [place.physical_offset for place in places[:2]]
    assert batch.end == store.commit_log.max_offset


def test_remembered_topics_are_bounded(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.storage.index.index_keys._MAX_TOPICS", 3)
    reader = KeyReader(store.commit_log)
    for number in range(10):
        put(store, f"T{number}", properties=b"UNIQ_KEY\x01k")
    batch = reader.read(0, store.commit_log.max_offset, 10)
    assert key_hashes(batch.keys, batch.shares) == [key_hash(f"T{number}", "k") for number in range(10)]
    assert len(reader._shares_of) <= 3
