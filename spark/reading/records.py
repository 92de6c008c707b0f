"""The records of a chunk: the positions of their parts, their fixed fields as arrays, their properties as Arrow arrays.

A loop finds the start of each record; numpy does all other steps for all records at once, and Arrow copies bodies and
texts out of the chunk.

The rules for properties are those of ``protocol.properties``: parts end at 0x02, a value starts after the part's first
0x01, parts with an empty name or value are skipped, of equal names the last wins.  Here all of these are masks over
arrays of positions.

Source: spark.md 3.5 (a) to (e); protocol/record/layout.py; wire.md 10.3.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.errors import ProtocolError, TriomqError
from triomq.protocol.host import IPV4_HOST_LENGTH, format_host
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record import layout
from triomq.protocol.record.compression import decompress
from triomq.protocol.record.message_id import offset_message_id

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_unpack_size_and_magic = layout.BLANK_HEAD.unpack_from
_NUMBERS: Final = {"i": ">i4", "q": ">i8"}
_FIELDS: Final = tuple(layout.HEAD_FORMATS)


def _numbers(names: tuple[str, ...]) -> np.dtype[Any]:
    return np.dtype([(name, _NUMBERS[layout.HEAD_FORMATS[name]]) for name in names])


# An IPv6 host moves all fields that follow it.
_FRONT: Final = _numbers(_FIELDS[: _FIELDS.index("born_host")])
_REAR: Final = _numbers(_FIELDS[_FIELDS.index("store_host") + 1 :])
_BORN_HOST_AT: Final = layout.head_offset("born_host")
_STORE_TIME_AT: Final = layout.head_offset("store_timestamp")
_STORE_HOST_AT: Final = layout.head_offset("store_host")
_REAR_AT: Final = layout.head_offset("reconsume_times")
_COMPRESSED: Final = int(MessageSysFlag.COMPRESSED)
_MAP: Final = pa.map_(pa.string(), pa.string())
#: With up to 48 names a sum of their bits cannot overflow: a record has fewer than 2**13 properties.
_BITS: Final = 48
_NAME_END: Final = 1
_PART_END: Final = 2


class Properties:
    """The properties of the records of a chunk."""

    def __init__(self, encoded: Any) -> None:
        """Parse the properties of all records.

        Args:
            encoded: binary array with the properties of each record, without nulls, in one buffer from its start.
        """
        self._count = len(encoded)
        try:
            encoded.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [value.decode("utf-8", "replace").encode() for value in encoded.to_pylist()]  # U+FFFD where invalid
            encoded = pa.array(texts, pa.binary())
        _, offset_buffer, data = encoded.buffers()
        self._data = data if data is not None else pa.py_buffer(b"")
        offsets: Ints = np.frombuffer(offset_buffer, np.int32, self._count + 1).astype(np.int64)
        self._records, begin, name_end, end = _split(np.frombuffer(self._data, np.uint8), offsets)
        entries = len(begin)
        if entries:
            positions = np.empty(4 * entries, np.int32)
            positions[0::4], positions[1::4] = begin, name_end
            positions[2::4], positions[3::4] = name_end + 1, end
            buffers = [None, pa.py_buffer(positions), self._data]
            self._texts = pa.Array.from_buffers(pa.string(), 4 * entries - 1, buffers)
        else:
            self._texts = pa.array([], pa.string())
        self._at: Ints = np.arange(0, 4 * entries, 4)  # the name of each property among the texts; two on, its value
        names = self._texts.take(pa.array(self._at)).dictionary_encode()
        self._codes: Ints = np.asarray(names.indices, np.int64)
        self._known: dict[str, int] = {name: code for code, name in enumerate(names.dictionary.to_pylist())}
        self._keep_last()

    def column(self, name: str) -> Any:
        """Return the value of one name for each record, null where it is absent."""
        code = self._known.get(name)
        if code is None:
            return pa.nulls(self._count, pa.string())
        entries = np.flatnonzero(self._codes == code)
        places: Ints = np.full(self._count, -1)
        places[self._records[entries]] = self._at[entries] + 2
        return self._texts.take(pa.array(places, mask=places < 0))

    def map_without(self, names: Sequence[str]) -> Any:
        """Return all properties but these, as a map for each record."""
        left_out = [self._known[name] for name in names if name in self._known]
        keep = ~np.isin(self._codes, left_out)
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(self._records[keep], minlength=self._count), out=offsets[1:])
        chosen = self._at[keep]
        keys, items = self._texts.take(pa.array(chosen)), self._texts.take(pa.array(chosen + 2))
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=_MAP)

    def _keep_last(self) -> None:
        """Drop all but the last of equal names of one record: rare, and a Spark map must not have them."""
        if not len(self._codes) or not self._has_duplicates():
            return
        keys = self._records * len(self._known) + self._codes
        _, last = np.unique(keys[::-1], return_index=True)
        kept = np.sort(len(keys) - 1 - last)
        self._records, self._codes, self._at = self._records[kept], self._codes[kept], self._at[kept]

    def _has_duplicates(self) -> bool:
        if len(self._known) > _BITS:
            keys = self._records * len(self._known) + self._codes
            return len(np.unique(keys)) != len(keys)
        # The sum of a record's bits differs from their union if and only if a name is repeated.
        bits = np.left_shift(np.int64(1), self._codes)
        first = np.flatnonzero(np.diff(self._records, prepend=-1))
        return bool((np.add.reduceat(bits, first) != np.bitwise_or.reduceat(bits, first)).any())


def _split(data: Bytes, offsets: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return for each property its record, where its name begins and ends and where its value ends."""
    cuts = np.flatnonzero(data == _PART_END)
    begin = np.sort(np.concatenate([offsets[:-1], cuts + 1]), kind="stable")
    end = np.sort(np.concatenate([cuts, offsets[1:]]), kind="stable")
    per_record = 1 + np.diff(np.searchsorted(cuts, offsets))
    records = np.repeat(np.arange(len(offsets) - 1), per_record)
    marks = np.append(np.flatnonzero(data == _NAME_END), len(data))  # the last one means "none"
    name_end = marks[np.searchsorted(marks[:-1], begin)]
    good = (name_end > begin) & (name_end + 1 < end)
    if good.all():
        return records, begin, name_end, end
    return records[good], begin[good], name_end[good], end[good]


class Records:
    """The wanted records of a chunk: fixed fields as arrays, and positions of the rest."""

    def __init__(self, queue: MessageQueue, chunk: bytes, begin: int, end: int) -> None:
        """Find the records with ascending offsets from ``begin`` to ``end``.

        Args:
            queue: for errors, and for columns with one value.
            chunk: concatenated records.
            begin: first offset wanted.
            end: first offset not wanted.

        Raises:
            ProtocolError: a record is damaged.
        """
        self.queue = queue
        self._chunk = chunk
        self._bytes: Bytes = np.frombuffer(chunk, np.uint8)
        starts = np.array(_record_starts(queue, chunk), np.int64)
        self.front = self._gather(starts, _FRONT)
        offsets: Ints = self.front["queue_offset"].astype(np.int64)
        wanted = (offsets >= begin) & (offsets < end)
        if len(offsets) > 1:
            highest = np.maximum.accumulate(np.where(wanted, offsets, -1))
            wanted[1:] &= offsets[1:] > highest[:-1]
        if not wanted.all():
            starts, self.front = starts[wanted], self.front[wanted]
        self.sys_flag: Ints = self.front["sys_flag"].astype(np.int64)
        self._born_shift: Ints = np.where(self.sys_flag & layout.BORN_HOST_V6, layout.IPV6_EXTRA_BYTES, 0)
        store_shift = np.where(self.sys_flag & layout.STORE_HOST_V6, layout.IPV6_EXTRA_BYTES, 0)
        self._shift: Ints = self._born_shift + store_shift
        self._check(self.front["size"] >= layout.MIN_RECORD_BYTES + self._shift)  # its flags may claim longer hosts
        self.rear = self._gather(starts + _REAR_AT + self._shift, _REAR)
        self._locate(starts)

    def store_timestamp(self) -> Ints:
        """Return the store times in ms."""
        at = self._starts + _STORE_TIME_AT + self._born_shift
        times: Ints = self._gather(at, np.dtype(">i8")).astype(np.int64)
        return times

    def born_hosts(self) -> Any:
        """Return the producers' addresses as text."""
        return self._hosts(self._starts + _BORN_HOST_AT, self._born_shift)

    def store_hosts(self) -> Any:
        """Return the brokers' addresses as text."""
        at = self._starts + _STORE_HOST_AT + self._born_shift
        return self._hosts(at, self._shift - self._born_shift)

    def compressed(self) -> Ints:
        """Return the indices of records with a compressed body."""
        return np.flatnonzero(self.sys_flag & _COMPRESSED)

    def bodies(self) -> Any:
        """Return the bodies as stored, copied out of the chunk."""
        return self._slices(self._body, self._body_end, pa.binary())

    def decompressed(self, index: int, max_bytes: int) -> bytes:
        """Return one compressed body, decompressed to ``max_bytes`` at most.

        Raises:
            ProtocolError, UnsupportedCompressionError: with the queue and offset in their text.
        """
        body = self._chunk[int(self._body[index]) : int(self._body_end[index])]
        try:
            return decompress(body, int(self.sys_flag[index]), max_bytes)
        except TriomqError as exc:
            raise type(exc)(f"{self.queue} offset {self.front['queue_offset'][index]}: {exc}") from exc

    def topics(self) -> Any:
        """Return the topics as stored."""
        return self._slices(self._body_end + 1, self._topic_end, pa.string())

    @cached_property
    def properties(self) -> Properties:
        """The properties."""
        return Properties(self._slices(self._properties_at, self._end, pa.binary()))

    def offset_ids(self) -> list[str]:
        """Return the offset message id of each record."""
        at = self._starts + _STORE_HOST_AT + self._born_shift
        lengths = IPV4_HOST_LENGTH + self._shift - self._born_shift
        places = zip(at.tolist(), lengths.tolist(), self.front["physical_offset"].tolist(), strict=True)
        return [offset_message_id(self._chunk[start : start + length], place) for start, length, place in places]

    def _gather(self, at: Ints, dtype: np.dtype[Any]) -> Any:
        """Copy one struct from each position."""
        if not len(at):
            return np.empty(0, dtype)
        size = dtype.itemsize  # as plain bytes: numpy copies structs field by field
        everywhere: Any = np.ndarray((len(self._chunk) - size + 1,), f"V{size}", self._chunk, strides=(1,))
        return everywhere[at].view(dtype)

    def _locate(self, starts: Ints) -> None:
        """Find the parts and check that they are inside their record."""
        ends = starts + self.front["size"]
        body = starts + layout.HEAD.size + self._shift
        lengths: Ints = self.rear["body_length"].astype(np.int64)
        body_end = body + lengths
        self._check((lengths >= 0) & (body_end + 4 <= ends))
        topic_lengths: Ints = self._bytes[body_end].astype(np.int64)
        topic_end = body_end + 1 + topic_lengths
        self._check((topic_lengths > 0) & (topic_lengths <= layout.MAX_TOPIC_BYTES) & (topic_end + 2 <= ends))
        properties = topic_end + 2
        encoded = (self._bytes[topic_end].astype(np.int64) << 8) + self._bytes[topic_end + 1]
        self._check(properties + encoded == ends)
        self.count = len(starts)
        self._starts, self._body, self._body_end = starts, body, body_end
        self._topic_end, self._properties_at, self._end = topic_end, properties, ends

    def _check(self, good: npt.NDArray[np.bool_]) -> None:
        if not good.all():
            offset = self.front["queue_offset"][int(np.argmin(good))]
            raise ProtocolError(f"{self.queue} offset {offset}: the parts of the record do not add up to its size")

    def _slices(self, begin: Ints, end: Ints, kind: Any) -> Any:
        """Copy a part of each record out of the chunk.

        The positions are the offsets of an Arrow array over the chunk in which every second value is wanted.
        """
        count = len(begin)
        if not count:
            return pa.array([], kind)
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2], offsets[1::2] = begin, end
        both = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(self._chunk)])
        return both.take(pa.array(np.arange(0, 2 * count, 2)))

    def _hosts(self, at: Ints, longer: Ints) -> Any:
        """Return addresses as text, each distinct one formatted once."""
        if longer.any():
            known: dict[bytes, str | None] = {}
            texts = []
            for start, more in zip(at.tolist(), longer.tolist(), strict=True):
                host = self._chunk[start : start + IPV4_HOST_LENGTH + more]
                if host not in known:
                    known[host] = _host_text(host)
                texts.append(known[host])
            return pa.array(texts, pa.string())
        hosts, inverse = np.unique(self._gather(at, np.dtype(">u8")), return_inverse=True)
        return pa.array([_host_text(int(host).to_bytes(8)) for host in hosts], pa.string()).take(pa.array(inverse))


def _host_text(host: bytes) -> str | None:
    """Return ``ip:port``; ``None`` for an invalid port, which must not stop a queue."""
    try:
        return format_host(host)
    except ProtocolError:
        return None


def _record_starts(queue: MessageQueue, chunk: bytes) -> list[int]:
    """Return the start of each record.

    Raises:
        ProtocolError: a record is missing or truncated.
    """
    starts: list[int] = []
    append = starts.append
    position, limit = 0, len(chunk)
    while position <= limit - layout.MIN_RECORD_BYTES:
        size, magic = _unpack_size_and_magic(chunk, position)
        if magic != layout.MESSAGE_MAGIC or size < layout.MIN_RECORD_BYTES:
            raise ProtocolError(f"{queue}: no record at byte {position} of an answer (magic {magic & 0xFFFF_FFFF:#x})")
        append(position)
        position += size
    if position != limit:
        raise ProtocolError(f"{queue}: an answer of {limit} bytes ends inside a record")
    return starts
