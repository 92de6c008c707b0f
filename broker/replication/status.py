"""How far the copies of the commit log are: for tools (907), metrics and health.

Source: DefaultHAService.java, getRuntimeInfo, of RocketMQ 5.5.0.
"""

from collections.abc import Callable, Mapping

import trio

from triomq.broker.replication.lag import SlaveState
from triomq.broker.replication.master import SILENCE_S, Master
from triomq.broker.replication.slave import Slave
from triomq.broker.services.group_commit import MAX_LAG_BYTES
from triomq.protocol.bodies.replication import HaClient, HaConnection, HaStatus
from triomq.storage.aside import tails_aside
from triomq.storage.message_store import MessageStore


class Copies:
    """The copies of a master's log, or the copy that a slave has.

    Attributes:
        master: sends the log to slaves; ``None``: it listens for none.
        slave: copies the log of a master; ``None``: the broker is no slave.
    """

    def __init__(
        self, store: MessageStore, master: Master | None, slave: Slave | None, clock_ms: Callable[[], int]
    ) -> None:
        """Take both ends; they are asked when the state is wanted."""
        self.master = master
        self.slave = slave
        self._store = store
        self._clock_ms = clock_ms
        self._seen: Mapping[str, tuple[float, int]] = {}

    def status(self) -> HaStatus:
        """Return the state as RocketMQ answers it; rates are those since the previous call."""
        end = self._store.commit_log.max_offset
        slaves = [] if self.master is None else self.master.slaves
        taken = {} if self.slave is None else {"": self.slave.taken_bytes}
        rates = self._rates({each.peer: each.sent_bytes for each in slaves} | taken)
        found = [self._connection(each, rates[each.peer]) for each in slaves]
        if self.slave is not None:
            client = self._client(self.slave, end, rates[""])
            return HaStatus(
                ha_connection_info=found, ha_client_runtime_info=client, tails_aside=self.tails_aside or None
            )
        return HaStatus(
            master=True,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=sum(each.in_sync for each in found),
            ha_connection_info=found,
            tails_aside=self.tails_aside or None,
        )

    @property
    def tails_aside(self) -> int:
        """How many tails of the log were set aside and not deleted since."""
        return len(tails_aside(self._store.config.root))

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
        self._seen = {key: (now, total) for key, total in totals.items()}
        rates = dict.fromkeys(totals, 0)
        for key in totals.keys() & before.keys():
            at, count = before[key]
            if now > at:
                rates[key] = round((totals[key] - count) / (now - at))
        return rates

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
        return 0 if age_s is None else self._clock_ms() - round(age_s * 1000)
