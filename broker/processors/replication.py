"""The state of master and slaves, for tools (907), and checksums of the commit log, for slaves.

Source: AdminBrokerProcessor.java of RocketMQ 5.5.0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from triomq.broker.network.connection import Connection
from triomq.broker.processors.family import Family
from triomq.broker.work import Answer
from triomq.protocol.bodies.replication import HaStatus
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.requests.offsets import LogChecksum, LogChecksumRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import Work
from triomq.storage.reading.log_compare import log_checksum

_MOST_BYTES: Final = 64 * 1024**2


@dataclass(slots=True, eq=False)
class ReplicationProcessors(Family):
    """Answers with the state of the copies of the commit log, and with checksums of it."""

    ha_status: Callable[[], HaStatus]

    def get_broker_ha_status(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with a master's slaves, or with a slave's progress."""
        return command.reply(body=self.ha_status().encode())

    def get_log_checksum(self, _connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Answer with the CRC-32 of a piece of the log, of at most 64 MiB, and with the ends of the log."""
        piece, log = LogChecksumRequestHeader.decode(command.ext_fields), self.store.commit_log
        if piece.begin != piece.end:
            if not max(log.min_offset, 0) <= piece.begin < piece.end <= log.max_offset:
                text = f"the commit log has [{log.min_offset}, {log.max_offset}), not all of "
                raise RefusedError(f"{text}[{piece.begin}, {piece.end})", ResponseCode.PULL_OFFSET_MOVED)
            if piece.end - piece.begin > _MOST_BYTES:
                raise RefusedError(f"a piece of the commit log has at most {_MOST_BYTES} bytes")
        crc = yield from log_checksum(log, piece.begin, piece.end)
        return command.reply(ext_fields=LogChecksum(crc, log.min_offset, log.max_offset).encode())
