"""Configurations of subscription (consumer) groups.

Source: behaviour.md A.12; SubscriptionGroupManager.java, store.md 6.3.
"""

import logging
from collections.abc import Callable
from typing import Final

from triomq.protocol.bodies.route import DataVersion, SubscriptionGroupConfig
from triomq.protocol.errors import ProtocolError, StoreLayoutError
from triomq.protocol.names import validate_group
from triomq.storage.files.json_table import JsonTable, encode

LOGGER: Final = logging.getLogger("triomq.broker.groups.subscription_groups")

_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
_BUILT_IN: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)


class SubscriptionGroupTable:
    """Group name to configuration; a group is created by its first heartbeat or pull, if that is allowed.

    Attributes:
        data_version: grows with every change.
        is_dirty: it is not on the disk as it is.
        on_change: called when it shall be saved.
    """

    def __init__(self, table: JsonTable, *, auto_create: bool, clock_ms: Callable[[], int]) -> None:
        self._table = table
        self._auto_create = auto_create
        self._clock_ms = clock_ms
        self._configs: dict[str, SubscriptionGroupConfig] = {}
        self.data_version = DataVersion(counter=0, timestamp=clock_ms())
        self.is_dirty = False
        self.on_change: Callable[[], None] | None = None

    def load(self) -> None:
        """Read the saved table and add the built-in groups.

        Raises:
            StoreLayoutError: the file and its previous generation cannot be read, or hold no groups.
        """
        saved = self._table.load() or {}
        try:
            for name, entry in dict(saved.get("subscriptionGroupTable") or {}).items():
                self._configs[str(name)] = SubscriptionGroupConfig.from_json(entry)
            if isinstance(saved.get("dataVersion"), dict):
                self.data_version = DataVersion.from_json(saved["dataVersion"])
        except (AttributeError, TypeError, ValueError, ProtocolError) as exc:
            raise StoreLayoutError(f"subscriptionGroup.json holds something else than groups: {exc}") from exc
        for name in _BUILT_IN:
            self._configs.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def to_json(self) -> dict[str, object]:
        """Return the table as ``subscriptionGroup.json`` and response 201 hold it."""
        return {
            "dataVersion": self.data_version.to_json(),
            "subscriptionGroupTable": {name: config.to_json() for name, config in self._configs.items()},
        }

    def encode(self) -> bytes:
        """Return the table's file as it shall be now."""
        return encode(self.to_json())

    def write(self, content: bytes) -> None:
        """Write what :meth:`encode` returned to the file; may run in a worker thread."""
        self._table.write(content)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration without creating it."""
        return self._configs.get(group)

    def get_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration, created with the defaults if that is allowed.

        Raises:
            IllegalNameError: the group would be created and its name breaks the rules.
        """
        config = self._configs.get(group)
        if config is None and (self._auto_create or group.startswith(_SYSTEM_PREFIX)):
            validate_group(group)
            config = SubscriptionGroupConfig(group_name=group)
            LOGGER.info("subscription group created group=%s", group)
            self.put(config)
        return config

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Add or replace a group."""
        self._configs[config.group_name] = config
        self._changed()

    def delete(self, group: str) -> bool:
        """Remove a group; whether it was there."""
        if self._configs.pop(group, None) is None:
            return False
        self._changed()
        return True

    def names(self) -> list[str]:
        """Return all groups."""
        return list(self._configs)

    def _changed(self) -> None:
        self.data_version = DataVersion(counter=self.data_version.counter + 1, timestamp=self._clock_ms())
        self.is_dirty = True
        if self.on_change is not None:
            self.on_change()
