"""The settings of a running broker under RocketMQ's names, for requests 25 and 26.

Only settings that have an effect in this broker are listed.  Paths, sizes of files and everything that protects the
broker are fixed: no client can change them.

Source: wire.md 7.4, 7.5; BrokerConfig.java, MessageStoreConfig.java.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from triomq.broker.config import BrokerConfig
from triomq.common.broker_settings import FIXED, SETTINGS, Setting
from triomq.protocol.bodies.route import DataVersion
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.storage.config import StoreConfig

LOGGER: Final = logging.getLogger("triomq.broker.settings")

_MAX_QUOTED: Final = 80


class Settings:
    """The settings of a running broker.

    Attributes:
        version: changes with each change.
    """

    def __init__(self, config: BrokerConfig, start_ms: int) -> None:
        self._config = config
        self._settings: dict[str, tuple[Setting, BrokerConfig | StoreConfig]] = {
            setting.name: (setting, config if hasattr(config, setting.field) else config.store)
            for setting in SETTINGS
            if setting.name and setting.kind.is_reported
        }
        self.version = DataVersion(counter=0, timestamp=start_ms)

    def texts(self, advertised: str) -> dict[str, str]:
        """Return all settings; ``advertised`` is the broker's address for the client that asks."""
        host, _, port = advertised.rpartition(":")
        return {**FIXED, "brokerIP1": host, "listenPort": port} | {
            name: setting.kind.write(getattr(owner, setting.field)) for name, (setting, owner) in self._settings.items()
        }

    def change(self, wanted: Mapping[str, str], advertised: str, now_ms: int, peer: str) -> None:
        """Change settings at once, all or none, until the broker is started again.

        A setting that has the value already is no change, so that a tool may send back all settings that it received.

        Raises:
            RefusedError: a setting is unknown or fixed.
            ConfigError: a value is impossible.
        """
        texts = self.texts(advertised)
        changes = {name: text for name, text in wanted.items() if texts.get(name) != text}
        found: dict[type, dict[str, Any]] = {BrokerConfig: {}, StoreConfig: {}}
        for name, text in changes.items():
            setting, owner = self._live(name)
            try:
                found[type(owner)][setting.field] = setting.kind.read(text)
            except ValueError as exc:
                raise ConfigError(f"setting {name}: {text[:_MAX_QUOTED]!r} is not {exc}") from None
        if found[BrokerConfig].get("slave_read_ratio") is not None:  # one setting in RocketMQ
            ratio = found[StoreConfig].get("in_memory_max_ratio", self._config.store.in_memory_max_ratio)
            found[BrokerConfig]["slave_read_ratio"] = ratio
        replace(self._config, **found[BrokerConfig])
        replace(self._config.store, **found[StoreConfig])  # both check the new values
        for owner in (self._config, self._config.store):
            for field, value in found[type(owner)].items():
                object.__setattr__(owner, field, value)  # the only place that changes them: they are read at each use
        for name, text in changes.items():
            LOGGER.warning("setting changed name=%s from=%s to=%s peer=%s", name, texts[name], text, peer)
        if changes:
            self.version = DataVersion(counter=self.version.counter + 1, timestamp=now_ms)

    def _live(self, name: str) -> tuple[Setting, BrokerConfig | StoreConfig]:
        """Return a setting that may change, and the configuration that holds it.

        Raises:
            RefusedError: it may not, or does not exist.
        """
        found = self._settings.get(name)
        if found is not None and found[0].is_live:
            return found
        problem = f"setting {name} cannot be changed while the broker runs: start it with other options"
        if name not in self.texts("") and name not in {setting.name for setting in SETTINGS}:
            problem = f"setting {name[:_MAX_QUOTED]!r} does not exist in triomq"
        raise RefusedError(problem, ResponseCode.NO_PERMISSION)
