"""The columns of the data source, for Spark and Arrow.

Every column is nullable: a null in any other column would be a NullPointerException in the JVM.

Source: spark.md 4.3, 4.4.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from pyspark.sql.types import StructType

from triomq.protocol.errors import ConfigError

#: Property in which our writers store the row id.
ROW_ID: Final = "ROW_ID"


class Column(NamedTuple):
    """A column: its name, its type as ``simpleString`` in Spark, its meaning."""

    name: str
    type: str
    doc: str


READ_COLUMNS: Final = (
    Column("topic", "string", "the topic; of a retried message the original one"),
    Column("broker", "string", "name of the broker it was read from"),
    Column("queueId", "int", "queue"),
    Column("queueOffset", "bigint", "offset in the queue"),
    Column(
        "msgId", "string", "the producer's unique id, else the id that the broker derives from the place of the message"
    ),
    Column("keys", "string", "keys as stored, separated by spaces"),
    Column("tags", "string", "the tag"),
    Column("body", "binary", "the body, decompressed; null, with a warning, if it is damaged or too large"),
    Column("flag", "int", "32 bits for the producer's own use"),
    Column("properties", "map<string,string>", "all properties but KEYS and TAGS"),
    Column("bornTime", "timestamp", "when it was sent, by the producer's clock"),
    Column("storeTime", "timestamp", "when it was stored, by the broker's clock"),
    Column("bornHost", "string", "ip:port of the producer"),
    Column("storeHost", "string", "ip:port of the broker"),
    Column("reconsumeTimes", "int", "how often its consumption failed"),
    Column("delayLevel", "int", "delay level, null if none"),
    Column("transactionState", "string", "none, prepared, commit or rollback"),
    Column("rowId", "string", "id that our writers give a row; null if another producer sent it"),
)
READ_TYPES: Final = {column.name: column.type for column in READ_COLUMNS}

#: Columns of a DataFrame to write, and their possible types.
WRITE_COLUMNS: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "keys": ("string", "array<string>"),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "delayLevel": ("int", "bigint", "smallint", "tinyint"),
    "deliverTime": ("timestamp",),
    "queueId": ("int", "bigint", "smallint", "tinyint"),
    "broker": ("string",),
    "flag": ("int", "bigint", "smallint", "tinyint"),
}


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a user's schema.

    Raises:
        ConfigError: a column does not exist or has another type; the text lists the columns.
    """
    for field in schema.fields:
        found, wanted = field.dataType.simpleString(), READ_TYPES.get(field.name)
        if wanted is None:
            raise ConfigError(f"schema: column {field.name!r} does not exist; the columns are: {ddl_of(READ_TYPES)}")
        if found != wanted:
            hint = "; read it as binary and use cast(body as string)" if field.name == "body" else ""
            raise ConfigError(
                f"schema: column {field.name!r} is {wanted}, not {found}{hint}; the columns are: {ddl_of(READ_TYPES)}"
            )
    return tuple(field.name for field in schema.fields)


def check_write_schema(schema: StructType, *, topic: str | None) -> tuple[str, ...]:
    """Return the columns of a DataFrame that are written.

    Args:
        schema: of the DataFrame.
        topic: the option, which replaces the column.

    Raises:
        ConfigError: a column is missing, unknown or of a wrong type; the text lists the columns.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    possible = "; ".join(f"{name}: {' or '.join(allowed)}" for name, allowed in WRITE_COLUMNS.items())
    if "body" not in types:
        raise ConfigError(f"write: the column 'body' is missing; columns that can be written: {possible}")
    if topic is None and "topic" not in types:
        raise ConfigError("write: give the option 'topic' or a column 'topic'")
    if "delayLevel" in types and "deliverTime" in types:
        raise ConfigError("write: give one of the columns 'delayLevel' and 'deliverTime', not both")
    for name, found in types.items():
        allowed = WRITE_COLUMNS.get(name)
        if allowed is not None and found not in allowed:
            raise ConfigError(f"write: column {name!r} is {found}; it must be {' or '.join(allowed)}")
        # A DataFrame that was read from RocketMQ has columns that the broker sets itself: they are ignored.
        if allowed is None and found != READ_TYPES.get(name):
            raise ConfigError(f"write: column {name!r} is not known; columns that can be written: {possible}")
    return tuple(name for name in types if name in WRITE_COLUMNS)


def ddl_of(names: Iterable[str]) -> str:
    """Return these columns of the read schema as DDL text, for ``spark.read.schema(...)``."""
    return ", ".join(f"`{name}` {READ_TYPES[name]}" for name in names)
