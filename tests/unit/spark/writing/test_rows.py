"""Scenarios 28 to 31 of spark.md 6, without Spark: rows as messages, and those that cannot be.

Rows encoded together equal rows encoded one by one; odd rows are left to the row encoder.
"""

import itertools
import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.producer.publish import encode_message_properties
from triomq.protocol.errors import MessageIllegalError
from triomq.protocol.record.batch import BatchEntry, decode_batch
from triomq.protocol.record.properties import decode_properties
from triomq.spark.writing.rows import (
    SLICE_BYTES,
    SLICE_ROWS,
    BatchEncoder,
    EncodedRows,
    OutgoingRow,
    RowEncoder,
    RowSettings,
    slices,
)

MAP = pa.map_(pa.string(), pa.string())


def encoder(*columns: str, **settings: Any) -> RowEncoder:
    return RowEncoder(RowSettings(("body", *columns), 1, "w:3:1:", **{"topic": "T", **settings}))


def encode(rows: RowEncoder, **columns: Any) -> list[OutgoingRow]:
    columns.setdefault("body", [b"x"] * len(next(iter(columns.values()), ["x"])))
    return list(rows.encode(pa.RecordBatch.from_pydict(columns)))


def as_map(pairs: dict[str, str]) -> Any:
    return pa.array([list(pairs.items())], MAP)


def test_columns_become_fields_of_the_message() -> None:
    (row,) = encode(
        encoder("keys", "tags", "properties", "flag", "shardingKey"), keys=[["a", "b"]], tags=["A"],
        properties=as_map({"n": "v"}), flag=[-5], shardingKey=["s"],
    )  # fmt: skip
    message = row.message
    assert (message.topic, message.body, message.keys, message.tags, message.flag) == ("T", b"x", "a b", "A", -5)
    assert message.properties == {"n": "v", "ROW_ID": f"w:3:1:0:{zlib.crc32(b'x'):08x}"}
    assert (message.sharding_key, row.goes_alone) == ("s", False)


def test_the_option_wins_over_the_column() -> None:
    assert encode(encoder("topic"), topic=["other"])[0].message.topic == "T"
    assert encode(encoder("topic", topic=None), topic=["other"])[0].message.topic == "other"


def test_delayed_and_long_rows_go_alone() -> None:
    assert encode(encoder("delayLevel"), delayLevel=[3])[0].goes_alone
    assert not encode(encoder("delayLevel"), delayLevel=pa.array([None], pa.int32()))[0].goes_alone
    assert [row.goes_alone for row in encode(encoder(compress_above=4), body=[b"123", b"1234"])] == [False, True]
    assert not encode(encoder(compress_above=0), body=[b"1234"])[0].goes_alone
    (row,) = encode(encoder("deliverTime"), deliverTime=[datetime(2026, 1, 1, tzinfo=UTC)])
    assert row.goes_alone
    assert row.message.all_properties()["TIMER_DELIVER_MS"] == "1767225600000"


def test_rows_read_back_lose_system_columns() -> None:
    given = as_map({"UNIQ_KEY": "u", "WAIT": "true", "n": "v"})
    rows = encoder("properties", "queueId", "broker", is_read_back=True)
    (row,) = encode(rows, properties=given, queueId=[9], broker=["gone"])
    assert set(row.message.properties) == {"n", "ROW_ID"}
    assert (row.queue_id, row.broker) == (None, None)


def test_a_batch_is_cut_by_rows_and_bytes() -> None:
    many = pa.RecordBatch.from_pydict({"body": [b"x"] * 2500})
    assert [piece.num_rows for piece in slices(many)] == [SLICE_ROWS, SLICE_ROWS, 500]
    large = pa.RecordBatch.from_pydict({"body": [bytes(SLICE_BYTES // 4)] * 10})
    assert max(piece.num_rows for piece in slices(large)) <= 4
    assert sum(piece.num_rows for piece in slices(large)) == 10
    assert list(slices(many.slice(0, 0))) == []


IDS = (1, "w:3:1:")
TEXTS = st.none() | st.text("abä ", max_size=3)
TAGS = TEXTS.map(lambda tags: tags and tags.strip())
PAIRS = st.none() | st.dictionaries(st.sampled_from(["a", "b", "nä"]), st.text("xyü", max_size=3), max_size=3)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=20), "keys": TEXTS, "tags": TAGS, "properties": PAIRS,
            "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        }
    ),
    min_size=1, max_size=12,
)  # fmt: skip
TYPES = {
    "body": pa.binary(), "keys": pa.string(), "tags": pa.string(), "properties": MAP, "flag": pa.int64(),
    "topic": pa.string(), "delayLevel": pa.int32(), "queueId": pa.int32(),
    "shardingKey": pa.string(), "deliverTime": pa.timestamp("us", tz="UTC"),
}  # fmt: skip


def batch(rows: list[dict[str, Any]]) -> Any:
    """Make an Arrow batch of rows that have the same columns."""
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name == "properties":
            values = [None if pairs is None else list(pairs.items()) for pairs in values]
        is_list = any(isinstance(value, list) for value in values) and name == "keys"
        columns[name] = pa.array(values, pa.list_(pa.string()) if is_list else TYPES[name])
    return pa.RecordBatch.from_pydict(columns)


def batch_encoder(columns: Any, **settings: Any) -> BatchEncoder:
    numbers = itertools.count()
    given = RowSettings(list(columns), *IDS, **{"topic": "T", **settings})
    return BatchEncoder(given, lambda count: [f"ID{next(numbers)}" for _ in range(count)])


def at_once(rows: list[dict[str, Any]], first: int = 0, **settings: Any) -> EncodedRows | None:
    return batch_encoder(rows[0], **settings).encode(batch(rows), first)


def entries(encoded: EncodedRows | None) -> list[BatchEntry]:
    assert encoded is not None
    return [entry for begin, end in encoded.cut(3, 10**6) for entry in decode_batch(encoded.body(begin, end))]


def one_by_one(made: Any, first: int) -> list[tuple[int, bytes, dict[str, str]]]:
    rows = RowEncoder(RowSettings(made.schema.names, *IDS, topic="T"))
    return [
        (
            row.message.flag,
            row.message.body,
            decode_properties(encode_message_properties(row.message, f"ID{n}").encode()),
        )
        for n, row in enumerate(rows.encode(made, first))
    ]


@given(ROWS, st.integers(0, 2**40), st.data())
def test_both_ways_make_the_same_messages(rows: list[dict[str, Any]], first: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(rows) - 1))
    made = batch(rows).slice(begin)  # a slice shares the buffers of the whole
    found = entries(batch_encoder(rows[0]).encode(made, first))
    decoded = [(entry.flag, entry.body, decode_properties(entry.properties)) for entry in found]
    assert decoded == one_by_one(made, first)


@pytest.mark.parametrize("is_nullable", [True, False])
def test_lists_of_keys_are_joined(is_nullable: bool) -> None:
    kind = pa.list_(pa.field("element", pa.string(), nullable=is_nullable))
    made = pa.RecordBatch.from_pydict({"body": [b"x", b"x"], "keys": pa.array([["a", "b"], []], kind)})
    found = [decode_properties(entry.properties) for entry in entries(batch_encoder(["body", "keys"]).encode(made, 0))]
    assert [properties.get("KEYS") for properties in found] == ["a b", None]


@pytest.mark.parametrize(
    ("column", "value", "defect"),
    [
        ("body", None, "is null"), ("body", b"", "is empty"), ("body", bytes(4 * 1024**2 + 1), "has 4194305 bytes"),
        ("body", bytes(4096), ""), ("topic", None, "is null"), ("topic", "no blank", "only letters"),
        ("topic", "SCHEDULE_TOPIC_XXXX", "clients may not"), ("topic", "B", ""), ("tags", "\x02", "separator"),
        ("tags", "a||b", "no consumer can select a tag"), ("tags", "  ", "no consumer can select a tag"),
        ("tags", " a", "no consumer can select a tag"), ("tags", "a ", "no consumer can select a tag"),
        ("keys", "a\x01", "separator"), ("keys", ["a", None], "has a null"), ("keys", "k" * 33_000, ""),
        ("shardingKey", "\x01", "separator"), ("shardingKey", "s", ""), ("flag", 2**31, "32 bits"),
        ("flag", -(2**31) - 1, "32 bits"), ("delayLevel", -1, "negative"), ("delayLevel", 1, ""),
        ("queueId", -1, "negative"), ("queueId", 0, ""), ("properties", {"KEYS": "k"}, "reserves: KEYS"),
        ("properties", {"": "v"}, "empty name"), ("properties", {"a": "\x01"}, "separator"),
        ("properties", {"a": None}, "null value"),
    ],
    ids=str,
)  # fmt: skip
def test_odd_row_is_left_to_row_encoder(column: str, value: Any, defect: str) -> None:
    usual = {column: None, "body": b"x", "topic": "A"}
    assert at_once([usual, usual], topic=None) is not None
    made = batch([usual, {**usual, column: value}])
    assert batch_encoder(usual, topic=None).encode(made, 0) is None
    rows = RowEncoder(RowSettings(list(usual), *IDS))
    if not defect:
        assert len(list(rows.encode(made))) == 2
        return
    with pytest.raises(MessageIllegalError, match=rf"partition 1, row 1, column '{column}': .*{defect}"):
        list(rows.encode(made))


def test_rows_read_back_lose_system_properties() -> None:
    rows = [
        {"body": b"x", "properties": {"UNIQ_KEY": "u", "a": "b"}, "queueId": 3},
        {"body": b"y", "properties": {"WAIT": "w"}, "queueId": 1},
    ]
    found = entries(at_once(rows, is_read_back=True))
    assert [decode_properties(entry.properties).get("a") for entry in found] == ["b", None]
    assert [decode_properties(entry.properties)["UNIQ_KEY"] for entry in found] == ["ID0", "ID1"]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 10), st.integers(1, 1000))
def test_batches_keep_to_their_limits(sizes: list[int], most_rows: int, most_bytes: int) -> None:
    encoded = at_once([{"body": bytes(size)} for size in sizes])
    assert encoded is not None
    cuts = list(encoded.cut(most_rows, most_bytes))
    assert [begin for begin, _ in cuts] == [0, *(end for _, end in cuts[:-1])]
    assert cuts[-1][1] == len(sizes)
    for begin, end in cuts:
        assert 1 <= end - begin <= most_rows
        assert end - begin == 1 or len(encoded.body(begin, end)) <= most_bytes
