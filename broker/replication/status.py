"""How far the copies of the commit log are: for tools (907), metrics and health; checksums of it, for slaves.

Source: DefaultHAService.java, getRuntimeInfo, and AdminBrokerProcessor.java of RocketMQ 5.5.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from triomq.broker.network.connection import Connection
from triomq.broker.replication.lag import SlaveState
from triomq.broker.replication.master import SILENCE_S, Master
from triomq.broker.replication.slave import Slave
from triomq.broker.services.group_commit import MAX_LAG_BYTES
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Answer
from triomq.protocol.bodies.replication import HaClient, HaConnection, HaStatus
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.requests.offsets import LogChecksum, LogChecksumRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.aside import tails_aside
from triomq.storage.reading.cold_read import Work
from triomq.storage.reading.log_compare import log_checksum

_MOST_BYTES: Final = 64 * 1024**2


@dataclass(slots=True, eq=False)
class Copies(BrokerPart):
    """The copies of a master's log, or the copy that a slave has; answers requests about them.

    Attributes:
        master: sends the log to slaves; ``None``: it listens for none.
        slave: copies the log of a master; ``None``: the broker is no slave.
    """

    master: Master | None
    slave: Slave | None
    _seen: Mapping[str, int] = field(default_factory=dict)
    _seen_at: float = 0.0

    def get_broker_ha_status(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with a master's slaves, or with a slave's progress."""
        return command.reply(body=self.status().encode())

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

    def status(self) -> HaStatus:
        """Return the state as RocketMQ answers it; rates are those since the previous call."""
        end = self.store.commit_log.max_offset
        slaves = [] if self.master is None else self.master.slaves
        taken = {} if self.slave is None else {"": self.slave.taken_bytes}
        rates = self._rates({each.peer: each.sent_bytes for each in slaves} | taken)
        found = [self._connection(each, rates[each.peer]) for each in slaves]
        status = HaStatus(ha_connection_info=found, tails_aside=self.tails_aside or None)
        if self.slave is not None:
            status.ha_client_runtime_info = self._client(self.slave, end, rates[""])
        else:
            status.master, status.master_commit_log_max_offset = True, end
            status.in_sync_slave_nums = sum(each.in_sync for each in found)
        return status

    @property
    def tails_aside(self) -> int:
        """How many tails of the log were set aside and not deleted since."""
        return len(tails_aside(self.store.config.root))

    def problem(self) -> str:
        """Return why a slave is not in touch with its master; "" while it is, and for a master."""
        if self.slave is None:
            return ""
        silence_s, address = self.slave.last_received_s, self.slave.master
        if silence_s is not None and silence_s <= SILENCE_S:
            return ""
        since = "nothing yet" if silence_s is None else f"nothing for {silence_s:.0f} s"
        return f"the slave has received {since} from its master" + (f" at {address}" if address else "")

    def _rates(self, totals: Mapping[str, int]) -> dict[str, int]:
        """Return the bytes per second since the previous call; 0 for a key that is new."""
        now, before = trio.current_time(), self._seen
        seconds, self._seen, self._seen_at = now - self._seen_at, totals, now
        return {
            key: round((count - before.get(key, count)) / seconds) if seconds > 0 else 0
            for key, count in totals.items()
        }

    def _client(self, slave: Slave, end: int, rate: int) -> HaClient:
        return HaClient(
            slave.master,
            rate,
            end,
            last_read_timestamp=self._time_ms(slave.last_received_s),
            last_write_timestamp=self._time_ms(slave.last_reported_s),
        )

    def _connection(self, slave: SlaveState, rate: int) -> HaConnection:
        has_joined = slave.sent_offset >= 0
        return HaConnection(
            addr=slave.peer,
            slave_ack_offset=slave.acknowledged_offset,
            diff=slave.lag_bytes,
            in_sync=has_joined and slave.lag_bytes < MAX_LAG_BYTES,
            transferred_byte_in_second=rate,
            transfer_from_where=slave.sent_offset,
            lag_ms=None if slave.lag_s is None else round(slave.lag_s * 1000),
            reported_ms=self._time_ms(slave.report_age_s) if has_joined else 0,
        )

    def _time_ms(self, age_s: float | None) -> int:
        return 0 if age_s is None else self.clock_ms() - round(age_s * 1000)
