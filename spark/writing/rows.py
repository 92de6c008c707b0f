"""Turns rows of a DataFrame into messages, and explains why a row cannot be one.

Source: spark.md 3.9, 4.4.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from triomq.client.producer.config import DEFAULT_MAX_MESSAGE_BYTES
from triomq.client.producer.publish import check_topic
from triomq.protocol.errors import MessageIllegalError, TriomqError
from triomq.protocol.record.message import NOT_SELECTABLE, RESERVED_PROPERTY_NAMES, Message, is_selectable
from triomq.spark.schema import ROW_ID

#: Part of an incoming batch that becomes Python objects at a time.
SLICE_ROWS: Final = 1000
SLICE_BYTES: Final = 256 * 1024
_SEPARATORS: Final = ("\x01", "\x02")


@dataclass(frozen=True, slots=True)
class RowSettings:
    """How the rows of one partition become messages.

    Attributes:
        columns: columns to write.
        partition: its number, for errors.
        id_start: start of the row ids: writer, micro-batch and partition, so that a repeated task makes the same ids.
        topic: replaces the column ``topic``.
        compress_above: bodies of at least this many bytes go alone; 0: none does.
        is_read_back: the rows were read from RocketMQ: its system properties are dropped, not rejected.
    """

    columns: Sequence[str]
    partition: int
    id_start: str
    topic: str | None = None
    compress_above: int = 4096
    is_read_back: bool = False


class OutgoingRow(NamedTuple):
    """A row ready to be sent.

    Attributes:
        number: of the row in its partition, from 0.
        message: what to send.
        queue_id, broker: the target, if the row names one.
        is_keyed: a sharding key chooses the queue.
        goes_alone: cannot be in a batch: delayed, or long enough to be compressed.
    """

    number: int
    message: Message
    queue_id: int | None
    broker: str | None
    is_keyed: bool
    goes_alone: bool


class RowEncoder:
    """Turns the rows of one partition into messages."""

    def __init__(self, settings: RowSettings) -> None:
        self.settings = settings
        left_out = {"topic"} if settings.topic else set()
        if settings.is_read_back:
            left_out |= {"queueId", "broker"}
        self._columns = [name for name in settings.columns if name not in left_out]
        self._compress_above = settings.compress_above or 2**63
        self._checked_topics: set[str] = set()

    def encode(self, batch: Any, first: int = 0) -> Iterator[OutgoingRow]:
        """Yield the rows of an Arrow batch in order.

        Args:
            batch: an Arrow record batch.
            first: number of its first row.

        Raises:
            MessageIllegalError: a row cannot be a message; the text names partition, row, column and defect.
        """
        number = first - 1
        for piece in slices(batch):
            columns = ((name, piece.column(name)) for name in self._columns)
            # the body as bytes even if it is text
            values = [(column.cast("binary") if name == "body" else column).to_pylist() for name, column in columns]
            for row in zip(*values, strict=True):
                number += 1
                yield self._row(number, dict(zip(self._columns, row, strict=True)))

    def _row(self, number: int, row: Mapping[str, Any]) -> OutgoingRow:
        get = row.get
        body = get("body")
        if not body:
            raise self.bad(number, "body", "is null" if body is None else "is empty: RocketMQ rejects empty messages")
        if len(body) > DEFAULT_MAX_MESSAGE_BYTES:
            raise self.bad(number, "body", f"has {len(body)} bytes, at most {DEFAULT_MAX_MESSAGE_BYTES} are allowed")
        topic = self._checked_topic(number, self.settings.topic or get("topic"))
        properties = self._properties(number, get("properties"))
        properties[ROW_ID] = f"{self.settings.id_start}{number}:{zlib.crc32(body):08x}"
        tags = self._text(number, "tags", get("tags"))
        if tags and not is_selectable(tags):
            raise self.bad(number, "tags", f"cannot be written: {NOT_SELECTABLE}")
        sharding_key = self._text(number, "shardingKey", get("shardingKey"))
        queue_id, delay_level = get("queueId"), get("delayLevel") or 0
        if delay_level < 0 or (queue_id is not None and queue_id < 0):
            raise self.bad(number, "delayLevel" if delay_level < 0 else "queueId", "is negative")
        if not -(2**31) <= (get("flag") or 0) < 2**31:
            raise self.bad(number, "flag", "does not fit 32 bits")
        message = Message(
            topic,
            body,
            tags=tags,
            keys=self._keys(number, get("keys")),
            properties=properties,
            flag=get("flag") or 0,
            delay_level=delay_level,
            deliver_at=get("deliverTime"),
            sharding_key=sharding_key,
        )
        alone = message.is_delayed or len(body) >= self._compress_above
        return OutgoingRow(number, message, queue_id, get("broker"), bool(sharding_key), alone)

    def bad(self, number: int, column: str, defect: str) -> MessageIllegalError:
        """Return the error for a row; it shows no values."""
        return MessageIllegalError(f"partition {self.settings.partition}, row {number}, column '{column}': {defect}")

    def _checked_topic(self, number: int, topic: str | None) -> str:
        if topic is None:
            raise self.bad(number, "topic", "is null")
        if topic in self._checked_topics:
            return topic
        try:
            check_topic(topic)
        except TriomqError as exc:
            raise self.bad(number, "topic", str(exc)) from exc
        self._checked_topics.add(topic)
        return topic

    def _properties(self, number: int, given: Any) -> dict[str, str]:
        if not given:
            return {}
        properties = dict(given)
        if not RESERVED_PROPERTY_NAMES.isdisjoint(properties):
            if not self.settings.is_read_back:
                names = ", ".join(sorted(RESERVED_PROPERTY_NAMES.intersection(properties)))
                raise self.bad(number, "properties", f"has names that RocketMQ reserves: {names}")
            properties = {name: text for name, text in properties.items() if name not in RESERVED_PROPERTY_NAMES}
        for name, text in properties.items():
            if not name or text is None:
                raise self.bad(number, "properties", "has an empty name or a null value")
            if _has_separator(name) or _has_separator(text):
                raise self.bad(number, "properties", "has a name or value with a separator, 0x01 or 0x02")
        return properties

    def _keys(self, number: int, keys: Any) -> str:
        if not keys:
            return ""
        if not isinstance(keys, str):
            if None in keys:
                raise self.bad(number, "keys", "has a null")
            keys = " ".join(keys)
        return self._text(number, "keys", keys) or ""

    def _text(self, number: int, column: str, text: str | None) -> str | None:
        if text and _has_separator(text):
            raise self.bad(number, column, "has a separator, 0x01 or 0x02")
        return text


def slices(batch: Any, most_bytes: int = SLICE_BYTES) -> Iterator[Any]:
    """Cut an Arrow batch, which may have 64 MiB, into pieces that are small as Python objects; copies nothing."""
    rows = batch.num_rows
    if not rows:
        return
    step = max(1, min(SLICE_ROWS, rows * most_bytes // max(batch.nbytes, 1)))
    for begin in range(0, rows, step):
        yield batch.slice(begin, step)


def _has_separator(text: str) -> bool:
    return _SEPARATORS[0] in text or _SEPARATORS[1] in text
