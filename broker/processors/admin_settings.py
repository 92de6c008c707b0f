"""GET_BROKER_CONFIG (26) and UPDATE_BROKER_CONFIG (25): the broker's settings as Java properties text.

Source: wire.md 7.4, 7.5; AdminBrokerProcessor.java.
"""

from collections.abc import Callable
from dataclasses import dataclass

from triomq.broker.network.connection import Connection
from triomq.broker.settings import FixedSettingError, Settings
from triomq.broker.topics import TopicTable
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.protocol.java import properties_text, read_properties
from triomq.protocol.wire.command import RemotingCommand


@dataclass(frozen=True, slots=True, eq=False)
class SettingsProcessor:
    """Tells and changes the broker's settings."""

    settings: Settings
    topics: TopicTable
    clock_ms: Callable[[], int]

    def get_broker_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with all settings."""
        version = self.settings.version.encode().decode()
        text = properties_text(self.settings.texts(connection.advertised))
        return command.reply(ext_fields={"version": version}, body=text.encode())

    def update_broker_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Change settings that may change while the broker runs; anything else is refused by name."""
        try:
            wanted = read_properties(bytes(command.body).decode())
            self.settings.change(wanted, connection.advertised, self.clock_ms(), connection.peer)
        except FixedSettingError as exc:
            raise RefusedError(str(exc), ResponseCode.NO_PERMISSION) from None
        except (ConfigError, UnicodeDecodeError) as exc:
            raise RefusedError(str(exc)) from None
        self.topics.set_template()
        return command.reply()
