"""Turns rows of a DataFrame into messages: many at once, or one by one.

``BatchEncoder`` encodes rows as bodies of batch sends, each step for all rows at once: a message costs 3 us of CPU this
way, and 12 us row by row.  It works for rows without special needs.  A slice with a row that is delayed, chooses its
queue, must be compressed or cannot be a message is left to ``RowEncoder``, which also explains the defect.

Source: spark.md 3.9, 4.4; the layout: protocol/record/batch.py, protocol/record/properties.py.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from triomq.client.producer.config import DEFAULT_MAX_MESSAGE_BYTES
from triomq.client.producer.publish import MAX_SENT_PROPERTIES_BYTES, check_topic
from triomq.protocol.errors import MessageIllegalError, TriomqError
from triomq.protocol.record.message import NOT_SELECTABLE, RESERVED_PROPERTY_NAMES, Message, is_selectable
from triomq.protocol.record.properties import PropertyName
from triomq.spark.schema import ROW_ID

#: Part of an incoming batch that becomes Python objects at a time.
SLICE_ROWS: Final = 1000
SLICE_BYTES: Final = 256 * 1024
#: Of a batch's entry: total size, magic, CRC, flag, body length; see ``protocol.batch``.
_HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
_PROPERTIES_LENGTH: Final = np.dtype(">i2")
_FIXED: Final = _HEAD.itemsize + _PROPERTIES_LENGTH.itemsize
_RESERVED: Final = pa.array(sorted(RESERVED_PROPERTY_NAMES))
_NAME_END: Final = "\x01"
_PART_END: Final = "\x02"
_TEXT_LIST: Final = pa.list_(pa.string())
#: Tags that no consumer can select.
_UNSELECTABLE: Final = r"\|\||\A[\x00-\x20]|[\x00-\x20]\z"
_MAY_NOT_BE_SET: Final = ("deliverTime", "shardingKey", "queueId")


class RowSettings(NamedTuple):
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
        goes_alone: cannot be in a batch: delayed, or long enough to be compressed.
    """

    number: int
    message: Message
    queue_id: int | None
    broker: str | None
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
        topic = self.settings.topic or get("topic")
        if topic is None or (defect := _topic_defect(topic)):
            raise self.bad(number, "topic", "is null" if topic is None else defect)
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
        return OutgoingRow(number, message, queue_id, get("broker"), alone)

    def bad(self, number: int, column: str, defect: str) -> MessageIllegalError:
        """Return the error for a row; it shows no values."""
        return MessageIllegalError(f"partition {self.settings.partition}, row {number}, column '{column}': {defect}")

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
            if _is_unsafe(name) or _is_unsafe(text):
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
        if text and _is_unsafe(text):
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


@lru_cache
def _topic_defect(topic: str) -> str:
    """Return why no message can have a topic; "" if it can."""
    try:
        check_topic(topic)
    except TriomqError as exc:
        return str(exc)
    return ""


def _is_unsafe(text: str) -> bool:
    return _NAME_END in text or _PART_END in text


class EncodedRows(NamedTuple):
    """Rows as entries of batches.

    Attributes:
        topic: of all of them.
        source: the Arrow batch they were made from, in case a broker rejects one.
        first: number of the first row in its partition.
        offsets: start of each entry in ``data``, and the end of the last.
        data: the entries.
    """

    topic: str
    source: Any
    first: int
    offsets: npt.NDArray[np.int32]
    data: memoryview

    def cut(self, most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of batches within the limits; rows are never split."""
        begin, count = 0, len(self.offsets) - 1
        while begin < count:
            fits = int(np.searchsorted(self.offsets, self.offsets[begin] + most_bytes, "right")) - 1
            end = min(max(fits, begin + 1), begin + most_rows, count)
            yield begin, end
            begin = end

    def body(self, begin: int, end: int) -> bytes:
        """Return the body of the batch with these rows."""
        return bytes(self.data[self.offsets[begin] : self.offsets[end]])


class BatchEncoder:
    """Encodes slices of one partition."""

    def __init__(self, settings: RowSettings, unique_ids: Callable[[int], Sequence[str]]) -> None:
        """Take the settings of ``RowEncoder``, and a function that returns a number of unique ids."""
        self._settings = settings
        self._unique_ids = unique_ids
        self._longest = min(settings.compress_above or DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_MAX_MESSAGE_BYTES)

    def encode(self, batch: Any, first: int) -> EncodedRows | None:
        """Encode a batch of at most some MiB; ``None``: a row of it needs ``RowEncoder``.

        Args:
            batch: an Arrow record batch.
            first: number of its first row.
        """
        topic = self._topic_of(batch)
        body = batch.column("body").cast(pa.binary())
        if topic is None or body.null_count or self._has_special_rows(batch):
            return None
        lengths = np.asarray(pc.binary_length(body), np.int64)
        flags: Any = np.zeros(1, np.int64)
        if "flag" in self._settings.columns:
            flags = np.asarray(batch.column("flag").cast(pa.int64()).fill_null(0), np.int64)
        parts = self._properties(batch, body, first)
        if lengths.min() < 1 or lengths.max() > self._longest - 1 or parts is None:
            return None
        if flags.min() < -(2**31) or flags.max() >= 2**31:
            return None
        properties = pc.binary_join_element_wise(*parts, "").cast(pa.binary())
        sizes = np.asarray(pc.binary_length(properties), np.int64)
        if sizes.max() > MAX_SENT_PROPERTIES_BYTES:
            return None
        heads = np.zeros(len(body), _HEAD)
        heads["size"], heads["flag"], heads["body"] = _FIXED + lengths + sizes, flags, lengths
        ends, nothing = _fixed(sizes.astype(_PROPERTIES_LENGTH)), pa.scalar(b"", pa.binary())
        entries = pc.binary_join_element_wise(_fixed(heads), body, ends, properties, nothing)
        _, offsets, data = entries.buffers()
        return EncodedRows(topic, batch, first, np.frombuffer(offsets, np.int32, len(entries) + 1), memoryview(data))

    def _topic_of(self, batch: Any) -> str | None:
        """Return the topic of all rows; ``None`` if they have several or it is not valid."""
        topic = self._settings.topic
        topics = pc.unique(batch.column("topic")).to_pylist() if topic is None else [topic]
        return None if len(topics) != 1 or topics[0] is None or _topic_defect(topics[0]) else topics[0]

    def _has_special_rows(self, batch: Any) -> bool:
        for name in _MAY_NOT_BE_SET:
            if name in self._settings.columns and not (self._settings.is_read_back and name == "queueId"):
                column = batch.column(name)
                if column.null_count != len(column):
                    return True
        return "delayLevel" in self._settings.columns and bool(
            pc.any(pc.not_equal(batch.column("delayLevel"), 0)).as_py()
        )

    def _properties(self, batch: Any, body: Any, first: int) -> list[Any] | None:
        """Return the pieces of the encoded properties, to be joined; ``None`` if a row is not valid."""
        start = f"\x02WAIT\x01true\x02{ROW_ID}\x01{self._settings.id_start}"
        _, offsets, data = body.buffers()
        ends = np.frombuffer(offsets, np.int32)[body.offset : body.offset + len(body) + 1].tolist()
        whole = memoryview(data if data is not None else b"")
        # Iterating over the array itself takes five times as long.
        bodies = (whole[begin:end] for begin, end in pairwise(ends))
        views = zip(self._unique_ids(len(body)), bodies, strict=True)
        fixed = [
            f"UNIQ_KEY\x01{one}{start}{row}:{zlib.crc32(view):08x}" for row, (one, view) in enumerate(views, first)
        ]
        parts: list[Any] = [pa.array(fixed)]
        for column, name in (("keys", PropertyName.KEYS), ("tags", PropertyName.TAGS)):
            if column in self._settings.columns:
                texts = _texts(batch.column(column))
                if texts is None or (
                    column == "tags" and pc.any(pc.match_substring_regex(texts, _UNSELECTABLE)).as_py()
                ):
                    return None
                parts.append(_optional(f"{_PART_END}{name}{_NAME_END}", texts))
        if "properties" in self._settings.columns:
            texts = self._user_properties(batch.column("properties"))
            if texts is None:
                return None
            parts.append(_optional(_PART_END, texts))
        return parts

    def _user_properties(self, column: Any) -> Any:
        """Return the encoded pairs of each row; ``None`` if a pair is not valid."""
        offsets = np.asarray(column.offsets, np.int64)
        names = column.keys.slice(offsets[0], offsets[-1] - offsets[0])
        values = column.items.slice(offsets[0], offsets[-1] - offsets[0])
        offsets -= offsets[0]
        if values.null_count or _has_separator(names) or _has_separator(values) or _has_empty(names):
            return None
        if column.null_count and np.diff(offsets)[np.asarray(column.is_null())].any():
            return None
        reserved = pc.is_in(names, _RESERVED)
        left_out = pc.or_(reserved, pc.equal(values, ""))
        if pc.any(reserved).as_py() and not self._settings.is_read_back:
            return None
        pairs = pc.binary_join_element_wise(names, values, _NAME_END)
        if pc.any(left_out).as_py():
            keep = ~np.asarray(left_out)
            offsets = np.concatenate([[0], np.cumsum(keep)])[offsets]
            pairs = pairs.filter(pa.array(keep))
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pairs), _PART_END)


def _texts(column: Any) -> Any:
    """Return texts without nulls, lists joined by spaces; ``None`` if one is not valid."""
    if pa.types.is_list(column.type):
        if column.flatten().null_count:
            return None
        column = pc.binary_join(column.cast(_TEXT_LIST), " ")  # Spark declares that elements are not null
    return None if _has_separator(column) else column.fill_null("")


def _optional(start: str, texts: Any) -> Any:
    """Return the texts, with ``start`` before each that is not empty."""
    with_start = pc.binary_join_element_wise(start, texts, "")
    return pc.if_else(pc.equal(texts, ""), "", with_start) if _has_empty(texts) else with_start


def _has_separator(texts: Any) -> bool:
    return any(pc.any(pc.match_substring(texts, one)).as_py() for one in (_NAME_END, _PART_END))


def _has_empty(texts: Any) -> bool:
    return bool(pc.any(pc.equal(texts, "")).as_py())


def _fixed(values: npt.NDArray[Any]) -> Any:
    """Return values of a fixed size as a binary array."""
    size = values.dtype.itemsize
    offsets = np.arange(0, size * (len(values) + 1), size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
