"""Who filled the commit log, and who created which topics and groups: saved with the other tables.

The table is written every 5 s and at the end.  After a kill what was stored since the last time is counted for nobody,
and what a recovery cut off is still counted, until retention deletes these files of the log.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from triomq.broker.saved_table import SavedTable
from triomq.protocol.errors import StoreLayoutError
from triomq.storage.files.json_table import JsonTable, encode_rows

_KINDS: Final = ("groups", "topics")


class Holdings(SavedTable):
    """What accounts, addresses and topics hold of the store, by their names (``Usage.name``, ``topic T``).

    Attributes:
        held_bytes: of the commit log.
    """

    def __init__(self, table: JsonTable) -> None:
        super().__init__(table)
        self.held_bytes: Counter[str] = Counter()
        self._by_file: dict[int, Counter[str]] = {}  # by the physical offset at which the file begins
        self._created: dict[str, dict[str, set[str]]] = {kind: {} for kind in _KINDS}

    def load(self) -> None:
        """Read the saved table.

        Raises:
            StoreLayoutError: the file and its previous generation cannot be read, or have another content.
        """
        saved = self._table.load() or {}
        try:
            self._by_file = {int(start): Counter(held) for start, held in saved.get("files", {}).items()}
            self.held_bytes = sum(self._by_file.values(), Counter())
            created = saved.get("created", {})
            self._created = {kind: {who: set(names) for who, names in created.get(kind, {}).items()} for kind in _KINDS}
        except (AttributeError, TypeError, ValueError) as exc:
            raise StoreLayoutError(f"{self._table.path.name} does not hold quotas: {exc}") from exc

    def to_json(self) -> dict[str, Any]:
        """Return the table as its file holds it."""
        return {"created": self._lists(), "files": self._by_file}

    def pieces(self) -> Iterator[bytes]:
        """Yield the content of the file in pieces."""
        starts = {str(start): start for start in self._by_file}
        return encode_rows(
            {"created": self._lists()}, "files", list(starts), lambda name: self._by_file.get(starts[name])
        )

    def _lists(self) -> dict[str, dict[str, list[str]]]:
        return {
            kind: {who: sorted(names) for who, names in owners.items() if names}
            for kind, owners in self._created.items()
        }

    def stored(self, file_start: int, size_bytes: int, owners: Iterable[str]) -> None:
        """Count bytes in a file of the commit log for each of the owners."""
        held = self._by_file.get(file_start)
        if held is None:
            held = self._by_file[file_start] = Counter()
        for owner in owners:
            held[owner] += size_bytes
            self.held_bytes[owner] += size_bytes
        self.is_dirty = True

    def restrict(self, min_offset: int, max_offset: int) -> None:
        """Forget the files that are not in the commit log any more."""
        for start in [start for start in self._by_file if not min_offset <= start <= max_offset]:
            self.held_bytes -= self._by_file.pop(start)  # which keeps only what is above 0
            self.is_dirty = True

    def created_by(self, owner: str, kind: str) -> set[str]:
        """Return the names of topics or groups that an owner has created, to be changed; some may be deleted."""
        self.is_dirty = True
        return self._created[kind].setdefault(owner, set())
