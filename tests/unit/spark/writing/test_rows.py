"""Scenarios 28 to 31 of spark.md 6, without Spark: rows as messages, and those that cannot be."""

import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from triomq.protocol.errors import MessageIllegalError
from triomq.spark.writing.rows import SLICE_BYTES, SLICE_ROWS, OutgoingRow, RowEncoder, RowSettings, slices


def encoder(*columns: str, **settings: Any) -> RowEncoder:
    return RowEncoder(RowSettings(("body", *columns), 1, "w:3:1:", **{"topic": "T", **settings}))


def encode(rows: RowEncoder, **columns: Any) -> list[OutgoingRow]:
    columns.setdefault("body", [b"x"] * len(next(iter(columns.values()), ["x"])))
    return list(rows.encode(pa.RecordBatch.from_pydict(columns)))


def as_map(pairs: dict[str, str]) -> Any:
    return pa.array([list(pairs.items())], pa.map_(pa.string(), pa.string()))


def defect(rows: RowEncoder, **columns: Any) -> str:
    with pytest.raises(MessageIllegalError) as caught:
        encode(rows, **columns)
    return str(caught.value)


def test_columns_become_fields_of_the_message() -> None:
    (row,) = encode(
        encoder("keys", "tags", "properties", "flag", "shardingKey"), keys=[["a", "b"]], tags=["A"],
        properties=as_map({"n": "v"}), flag=[-5], shardingKey=["s"],
    )  # fmt: skip
    message = row.message
    assert (message.topic, message.body, message.keys, message.tags, message.flag) == ("T", b"x", "a b", "A", -5)
    assert message.properties == {"n": "v", "ROW_ID": f"w:3:1:0:{zlib.crc32(b'x'):08x}"}
    assert (message.sharding_key, row.is_keyed, row.goes_alone) == ("s", True, False)


def test_text_is_sent_as_utf_8() -> None:
    (row,) = encode(encoder(), body=["värde"])
    assert row.message.body == "värde".encode()


def test_the_option_wins_over_the_column() -> None:
    assert encode(encoder("topic"), topic=["other"])[0].message.topic == "T"
    assert encode(encoder("topic", topic=None), topic=["other"])[0].message.topic == "other"


def test_row_id_has_five_parts() -> None:
    first, second = encode(encoder(), body=[b"a", b"b"])
    assert first.message.properties["ROW_ID"] == f"w:3:1:0:{zlib.crc32(b'a'):08x}"
    assert second.message.properties["ROW_ID"] == f"w:3:1:1:{zlib.crc32(b'b'):08x}"


def test_delayed_and_long_rows_go_alone() -> None:
    assert encode(encoder("delayLevel"), delayLevel=[3])[0].goes_alone
    assert not encode(encoder("delayLevel"), delayLevel=pa.array([None], pa.int32()))[0].goes_alone
    assert [row.goes_alone for row in encode(encoder(compress_above=4), body=[b"123", b"1234"])] == [False, True]
    assert not encode(encoder(compress_above=0), body=[b"1234"])[0].goes_alone
    (row,) = encode(encoder("deliverTime"), deliverTime=[datetime(2026, 1, 1, tzinfo=UTC)])
    assert row.goes_alone
    assert row.message.all_properties()["TIMER_DELIVER_MS"] == "1767225600000"


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("body", pa.array([None], pa.binary()), "is null"),
        ("body", [b""], "is empty"),
        ("body", [bytes(4 * 1024**2 + 1)], "has 4194305 bytes"),
        ("topic", pa.array([None], pa.string()), "is null"),
        ("topic", ["no blank"], "only letters"),
        ("topic", ["SCHEDULE_TOPIC_XXXX"], "clients may not"),
        ("tags", ["a\x01"], "separator"),
        ("tags", ["a||b"], "no consumer can select a tag"),
        ("tags", [" "], "no consumer can select a tag"),
        ("keys", ["a\x02"], "separator"),
        ("keys", [["a", None]], "null"),
        ("shardingKey", ["\x01"], "separator"),
        ("flag", [2**31], "32 bits"),
        ("delayLevel", [-1], "negative"),
        ("queueId", [-1], "negative"),
    ],
)
def test_a_bad_row_names_partition_row_and_column(column: str, value: Any, words: str) -> None:
    rows = encoder(*([column] if column != "body" else []), topic=None if column == "topic" else "T")
    text = defect(rows, **{column: value})
    assert text.startswith(f"partition 1, row 0, column '{column}': ")
    assert words in text


@pytest.mark.parametrize(
    ("pair", "words"), [(("a", "\x01"), "separator"), (("a", None), "null"), (("KEYS", "k"), "KEYS")]
)
def test_bad_properties_error_hides_values(pair: tuple[str, str | None], words: str) -> None:
    column = pa.array([[pair]], pa.map_(pa.string(), pa.string()))
    assert words in defect(encoder("properties"), properties=column)


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
