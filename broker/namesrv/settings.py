"""The name server's settings under RocketMQ's names.

Source: wire.md 8; NamesrvConfig.java.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from triomq.common.broker_settings import FLAGS
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError

LOGGER: Final = logging.getLogger("triomq.broker.namesrv.settings")

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

    def texts(self) -> dict[str, str]:
        """Return all settings."""
        return {_ORDER_MESSAGES: str(self.order_messages).lower(), "kvConfigPath": str(self.kv_config_path)}

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
