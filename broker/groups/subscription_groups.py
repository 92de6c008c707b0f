"""Configurations of subscription (consumer) groups.

Source: behaviour.md A.12; SubscriptionGroupManager.java, store.md 6.3.
"""

import logging
from collections.abc import Callable
from typing import Final

from triomq.broker.config import BrokerConfig
from triomq.broker.saved_table import ConfigTable
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.names import validate_group
from triomq.storage.files.json_table import JsonTable

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


class SubscriptionGroupTable(ConfigTable[SubscriptionGroupConfig]):
    """Group name to configuration; the first heartbeat or pull of a group creates it, if that is allowed."""

    _FIELD = "subscriptionGroupTable"
    _CONFIG = SubscriptionGroupConfig
    _KIND = "subscription groups"

    def __init__(
        self, table: JsonTable, config: BrokerConfig, *, clock_ms: Callable[[], int], on_change: Callable[[], None]
    ) -> None:
        super().__init__(table, clock_ms=clock_ms, on_change=on_change)
        self._config = config

    def load(self) -> None:
        """Read the saved table and add the built-in groups.

        Raises:
            StoreLayoutError: the file and its previous generation cannot be read, or hold no groups.
        """
        super().load()
        for name in _BUILT_IN:
            self._configs.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def get_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration, created with the defaults if that is allowed.

        Raises:
            IllegalNameError: the group would be created and its name breaks the rules.
            RefusedError: likewise, and there are too many.
        """
        config = self._configs.get(group)
        if config is None and (self._config.auto_create_group or group.startswith(_SYSTEM_PREFIX)):
            self.check_new(group)
            config = SubscriptionGroupConfig(group_name=group)
            LOGGER.info("subscription group created group=%s", group)
            self.put(config)
        return config

    def check_new(self, group: str) -> None:
        """Check the name of a group that anybody wants, and that it may be created unless it exists.

        Raises:
            IllegalNameError: the name breaks the rules.
            RefusedError: there are too many groups.
        """
        validate_group(group)
        self._check_room(group, self._config.max_groups, "max_groups")

    def notifies_members(self, group: str) -> bool:
        """Whether the members of a group are notified when it changes."""
        config = self._configs.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Add or replace a group."""
        self._put(config.group_name, config)
