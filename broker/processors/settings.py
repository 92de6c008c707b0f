"""The settings of a running broker under RocketMQ's names, for requests 25 and 26.

Only settings that have an effect in this broker are listed.  Paths, sizes of files and everything that protects the
broker are fixed: no client can change them.

Source: wire.md 7.4, 7.5; BrokerConfig.java, MessageStoreConfig.java.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from triomq.broker.config import BrokerConfig
from triomq.broker.network.connection import Connection
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Answer
from triomq.common.broker_settings import FIXED, SETTINGS, Setting
from triomq.protocol.bodies.route import DataVersion
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.protocol.java import properties_text, read_properties
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import StoreConfig

LOGGER: Final = logging.getLogger("triomq.broker.settings")

_MAX_QUOTED: Final = 80


@dataclass(slots=True, eq=False)
class SettingsProcessor(BrokerPart):
    """Reads and changes the broker's settings as Java properties text (25, 26).

    Attributes:
        version: changes with each change.
    """

    version: DataVersion = field(init=False)
    _settings: dict[str, tuple[Setting, BrokerConfig | StoreConfig]] = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self._settings = {
            setting.name: (setting, config if hasattr(config, setting.field) else config.store)
            for setting in SETTINGS
            if setting.name and setting.kind.is_reported
        }
        self.version = DataVersion(counter=0, timestamp=self.statistics.start_ms)

    def get_broker_config(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Answer with all settings."""
        fields = {"version": self.version.encode().decode()}
        return command.reply(ext_fields=fields, body=properties_text(self._texts(connection.advertised)).encode())

    def update_broker_config(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Change settings that may change while the broker runs; anything else is refused by name."""
        wanted = read_properties(bytes(command.body).decode(errors="replace"))
        self._change(wanted, connection.advertised, connection.peer)
        self.topics.set_template()
        return command.reply()

    def _texts(self, advertised: str) -> dict[str, str]:
        """Return all settings; ``advertised`` is the broker's address for the client that asks."""
        host, _, port = advertised.rpartition(":")
        return {**FIXED, "brokerIP1": host, "listenPort": port} | {
            name: setting.kind.write(getattr(owner, setting.field)) for name, (setting, owner) in self._settings.items()
        }

    def _change(self, wanted: Mapping[str, str], advertised: str, peer: str) -> None:
        """Change settings at once, all or none, until the broker is started again.

        A setting that has the value already is no change, so that a tool may send back all settings that it received.

        Raises:
            RefusedError: a setting is unknown or fixed.
            ConfigError: a value is impossible.
        """
        texts = self._texts(advertised)
        changes = {name: text for name, text in wanted.items() if texts.get(name) != text}
        found: dict[type, dict[str, Any]] = {BrokerConfig: {}, StoreConfig: {}}
        for name, text in changes.items():
            setting, owner = self._live(name)
            try:
                found[type(owner)][setting.field] = setting.kind.read(text)
            except ValueError as exc:
                raise ConfigError(f"setting {name}: {text[:_MAX_QUOTED]!r} is not {exc}") from None
        if found[BrokerConfig].get("slave_read_ratio") is not None:  # one setting in RocketMQ
            ratio = found[StoreConfig].get("in_memory_max_ratio", self.config.store.in_memory_max_ratio)
            found[BrokerConfig]["slave_read_ratio"] = ratio
        replace(self.config, **found[BrokerConfig])
        replace(self.config.store, **found[StoreConfig])  # both check the new values
        for owner in (self.config, self.config.store):
            for attribute, value in found[type(owner)].items():
                object.__setattr__(owner, attribute, value)  # only here: settings are read at each use
        for name, text in changes.items():
            LOGGER.warning("setting changed name=%s from=%s to=%s peer=%s", name, texts[name], text, peer)
        if changes:
            self.version = DataVersion(counter=self.version.counter + 1, timestamp=self.clock_ms())

    def _live(self, name: str) -> tuple[Setting, BrokerConfig | StoreConfig]:
        """Return a setting that may change, and the configuration that holds it.

        Raises:
            RefusedError: it may not, or does not exist.
        """
        found = self._settings.get(name)
        if found is not None and found[0].is_live:
            return found
        problem = f"setting {name} cannot be changed while the broker runs: start it with other options"
        if name not in self._texts("") and name not in {setting.name for setting in SETTINGS}:
            problem = f"setting {name[:_MAX_QUOTED]!r} does not exist in triomq"
        raise RefusedError(problem, ResponseCode.NO_PERMISSION)
