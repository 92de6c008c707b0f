"""The properties of many records as flat Arrow arrays of names and values.

The rules are those of ``protocol.properties``: parts end at 0x02, a value starts after the part's first 0x01, parts
with an empty name or value are skipped, of equal names the last wins.  Here all of these are masks over arrays
of positions.

Source: spark.md 3.5 (d), (e); wire.md 10.3.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
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
        encoded = _well_formed(encoded)
        _, offset_buffer, data = encoded.buffers()
        self._data = data if data is not None else pa.py_buffer(b"")
        offsets: Ints = np.frombuffer(offset_buffer, np.int32, self._count + 1).astype(np.int64)
        parts = _split(np.frombuffer(self._data, np.uint8), offsets)
        self._records, begin, name_end, end = parts
        entries = len(begin)
        if entries:
            positions = np.empty(4 * entries, np.int32)
            positions[0::4], positions[1::4] = begin, name_end
            positions[2::4], positions[3::4] = name_end + 1, end
            self._texts = pa.Array.from_buffers(
                pa.string(), 4 * entries - 1, [None, pa.py_buffer(positions), self._data]
            )  # fmt: skip
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


def _split(data: npt.NDArray[np.uint8], offsets: Ints) -> tuple[Ints, Ints, Ints, Ints]:
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


def _well_formed(encoded: Any) -> Any:
    """Return the same with U+FFFD for invalid UTF-8."""
    try:
        encoded.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace").encode() for value in encoded.to_pylist()], pa.binary())
    return encoded
