"""The name server's key-value table: text by namespace and key.

Source: behaviour.md A.17; KVConfigManager.java.
"""

from collections.abc import Callable
from typing import Any, Final

from triomq.broker.saved_table import SavedTable
from triomq.protocol.errors import RefusedError
from triomq.storage.files.json_table import JsonTable

#: Most namespaces, keys and values together, and most characters in them: tools write few and short ones.
MAX_TEXTS: Final = 8192
MAX_CHARACTERS: Final = 1024**2


class KvTable(SavedTable):
    """Namespace to key to value, as in ``kvConfig.json``."""

    _FIELD = "configTable"

    def __init__(self, table: JsonTable, *, on_change: Callable[[], None]) -> None:
        super().__init__(table, on_change)
        self._spaces: dict[str, dict[str, str]] = {}

    def _take(self, saved: Any) -> None:
        self._spaces = self._rows(saved, lambda row: {str(key): str(value) for key, value in row.items()})

    def to_json(self) -> dict[str, Any]:
        """Return the table as RocketMQ's file holds it."""
        return {self._FIELD: self._spaces}

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value; ``None`` if the table has no such key."""
        return self._spaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return the entries of a namespace, ``None`` if nothing was ever put there."""
        return self._spaces.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Add or replace a value.

        Raises:
            RefusedError: the table would become too large; it is unchanged.
        """
        wanted = {**self._spaces, namespace: {**self._spaces.get(namespace, {}), key: value}}
        texts = [text for space, entries in wanted.items() for text in (space, *entries, *entries.values())]
        if len(texts) > MAX_TEXTS or sum(map(len, texts)) > MAX_CHARACTERS:
            raise RefusedError(f"the key-value table is full: {MAX_TEXTS} texts, {MAX_CHARACTERS} characters at most")
        self._spaces = wanted
        self._changed()

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if the table has it; its namespace stays: brokers learn that it is empty."""
        if self._spaces.get(namespace, {}).pop(key, None) is not None:
            self._changed()
