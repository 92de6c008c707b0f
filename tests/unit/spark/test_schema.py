"""Scenarios 7 and 32 of spark.md 6: which schemas are accepted."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from triomq.protocol.errors import ConfigError
from triomq.spark.schema import READ_COLUMNS, READ_TYPES, WRITE_COLUMNS, check_write_schema, ddl_of, wanted_columns

TYPES: dict[str, DataType] = {
    "string": StringType(), "int": IntegerType(), "bigint": LongType(), "binary": BinaryType(),
    "timestamp": TimestampType(), "map<string,string>": MapType(StringType(), StringType()),
}  # fmt: skip


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


WHOLE = schema(**{column.name: TYPES[column.type] for column in READ_COLUMNS})


def test_columns_may_have_any_order() -> None:
    assert wanted_columns(WHOLE) == tuple(READ_TYPES)
    assert wanted_columns(schema(tags=StringType(), body=BinaryType())) == ("tags", "body")
    assert ddl_of(("tags", "queueId")) == "`tags` string, `queueId` int"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (schema(Tags=StringType()), "column 'Tags' does not exist"),
        (schema(queueOffset=IntegerType()), "'queueOffset' is bigint, not int"),
        (schema(body=StringType()), r"cast\(body as string\)"),
    ],
)
def test_wrong_column_error_lists_columns(wrong: StructType, words: str) -> None:
    with pytest.raises(ConfigError, match=words + r".*`rowId` string"):
        wanted_columns(wrong)


def test_columns_to_write_are_those_of_the_table() -> None:
    frame = schema(body=StringType(), keys=ArrayType(StringType()), delayLevel=LongType())
    assert check_write_schema(frame, topic="T") == ("body", "keys", "delayLevel")


def test_read_schema_can_be_written() -> None:
    assert set(check_write_schema(WHOLE, topic=None)) == set(READ_TYPES) & set(WRITE_COLUMNS)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (schema(topic=StringType()), "'body' is missing"),
        (schema(body=StringType()), "option 'topic' or a column 'topic'"),
        (schema(body=LongType(), topic=StringType()), "'body' is bigint; it must be binary or string"),
        (schema(body=StringType(), topic=StringType(), extra=LongType()), "'extra' is not known"),
        (schema(body=StringType(), topic=StringType(), msgId=LongType()), "'msgId' is not known"),
        (
            schema(body=StringType(), topic=StringType(), delayLevel=IntegerType(), deliverTime=TimestampType()),
            "not both",
        ),
    ],
)
def test_unwritable_schema_is_rejected(frame: StructType, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_write_schema(frame, topic=None)
