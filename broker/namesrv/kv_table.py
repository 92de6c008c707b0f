"""The name server's key-value table, text by namespace and key, and its settings under RocketMQ's names.

Source: behaviour.md A.17, wire.md 8; KVConfigManager.java, NamesrvConfig.java.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from triomq.broker.saved_table import SavedTable
from triomq.common.broker_settings import FLAGS
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.storage.files.json_table import JsonTable

LOGGER: Final = logging.getLogger("triomq.broker.namesrv.kv_table")

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


_ORDER_MESSAGES: Final = "orderMessageEnable"
_MAX_SHOWN: Final = 80


@dataclass(slots=True)
class NameServerSettings:
    """The settings that tools may read, and the one that they may change.

    Attributes:
        order_messages: routes contain the queues of topics that are in order across brokers.
    """

    kv_config_path: Path
    order_messages: bool = False  # orderMessageEnable

    def texts(self, *, with_paths: bool = True) -> dict[str, str]:
        """Return all settings, or those that are no paths."""
        paths = {"kvConfigPath": str(self.kv_config_path)} if with_paths else {}
        return {_ORDER_MESSAGES: str(self.order_messages).lower(), **paths}

    def change(self, wanted: Mapping[str, str], peer: str) -> None:
        """Change settings at once, all or none, until the next start; those that are as wanted are no changes.

        Raises:
            RefusedError: a setting is unknown or fixed.
            ConfigError: a value is impossible.
        """
        texts = self.texts()
        changes = {name: text for name, text in wanted.items() if texts.get(name) != text}
        for name, text in changes.items():
            if name != _ORDER_MESSAGES:
                problem = f"setting {name[:_MAX_SHOWN]!r} of the name server cannot be changed"
                raise RefusedError(problem, ResponseCode.NO_PERMISSION)
            if text not in FLAGS:
                raise ConfigError(f"setting {name}: {text[:_MAX_SHOWN]!r} is not true or false")
        for name, text in changes.items():
            self.order_messages = FLAGS[text]
            LOGGER.warning("setting changed name=%s from=%s to=%s peer=%s", name, texts[name], text, peer)
