"""Rows encoded together equal rows encoded one by one; odd rows are left to the row encoder."""

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.producer.publish import encode_message_properties
from triomq.protocol.record.batch import BatchEntry, decode_batch
from triomq.protocol.record.properties import decode_properties
from triomq.spark.writing.rows import BatchEncoder, EncodedRows, RowEncoder, RowSettings

IDS = (1, "w:3:1:")
MAP = pa.map_(pa.string(), pa.string())
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
    "body": pa.binary(), "keys": pa.string(), "tags": pa.string(), "properties": MAP, "flag": pa.int32(),
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
        columns[name] = pa.array(
            values, pa.list_(pa.string()) if isinstance(values[0], list) and name == "keys" else TYPES[name]
        )
    return pa.RecordBatch.from_pydict(columns)


def encoder(columns: Any, **settings: Any) -> BatchEncoder:
    numbers = itertools.count()
    given = RowSettings(list(columns), *IDS, **{"topic": "T", **settings})
    return BatchEncoder(given, lambda count: [f"ID{next(numbers)}" for _ in range(count)])


def at_once(rows: list[dict[str, Any]], first: int = 0, **settings: Any) -> EncodedRows | None:
    return encoder(rows[0], **settings).encode(batch(rows), first)


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
    found = entries(encoder(rows[0]).encode(made, first))
    decoded = [(entry.flag, entry.body, decode_properties(entry.properties)) for entry in found]
    assert decoded == one_by_one(made, first)


def test_lists_of_keys_are_joined() -> None:
    (entry, other) = entries(at_once([{"body": b"x", "keys": ["a", "b"]}, {"body": b"x", "keys": []}]))
    assert decode_properties(entry.properties)["KEYS"] == "a b"
    assert "KEYS" not in decode_properties(other.properties)


def test_non_null_lists_of_keys_are_joined() -> None:
    kind = pa.list_(pa.field("element", pa.string(), nullable=False))
    made = pa.RecordBatch.from_pydict({"body": [b"x"], "keys": pa.array([["a", "b"]], kind)})
    (entry,) = entries(encoder(["body", "keys"]).encode(made, 0))
    assert decode_properties(entry.properties)["KEYS"] == "a b"


def test_the_topic_may_be_a_column() -> None:
    encoded = at_once([{"body": b"x", "topic": "A"}] * 2, topic=None)
    assert encoded is not None
    assert encoded.topic == "A"


@pytest.mark.parametrize(
    "odd",
    [
        {"body": None}, {"body": b""}, {"body": bytes(4096)}, {"topic": None}, {"topic": "B"}, {"topic": "no blank"},
        {"delayLevel": 1}, {"queueId": 0}, {"shardingKey": "s"}, {"keys": "a\x01"}, {"tags": "\x02"},
        {"keys": "k" * 33_000}, {"tags": "a||b"}, {"tags": "  "}, {"tags": " a"}, {"tags": "a "},
        {"properties": {"KEYS": "k"}}, {"properties": {"": "v"}}, {"properties": {"a": "\x01"}},
        {"properties": {"a": None}},
    ],
    ids=str,
)  # fmt: skip
def test_odd_row_leaves_slice_to_row_encoder(odd: dict[str, Any]) -> None:
    usual = {"body": b"x", "topic": "A", **dict.fromkeys(odd)}
    usual.update({"body": b"x", "topic": "A"})
    assert at_once([usual, usual], topic=None) is not None
    assert at_once([usual, {**usual, **odd}], topic=None) is None


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
