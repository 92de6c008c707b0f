"""The state of master and slaves, for tools (907).

Source: AdminBrokerProcessor.java of RocketMQ 5.5.0.
"""

from collections.abc import Callable
from dataclasses import dataclass

from triomq.broker.network.connection import Connection
from triomq.protocol.bodies.replication import HaStatus
from triomq.protocol.wire.command import RemotingCommand


@dataclass(frozen=True, slots=True, eq=False)
class ReplicationProcessors:
    """Answers with the state of the copies of the commit log."""

    ha_status: Callable[[], HaStatus]

    def get_broker_ha_status(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with a master's slaves, or with a slave's progress."""
        return command.reply(body=self.ha_status().encode())
