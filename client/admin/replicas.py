"""Master and slaves of a cluster: how far each copy of a commit log is.

Each broker is asked for its settings, its statistics, and (triomq and RocketMQ 5) for the state of its copies.

Source: behaviour.md A.18; store.md 9; HAStatusSubCommand.java of RocketMQ 5.5.0.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import trio

from triomq.client.admin.base import BaseAdmin
from triomq.client.admin.broker_answers import BrokerAnswer, ask_brokers, count_of, read_settings
from triomq.client.cluster.instance import ClientInstance
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.replication import HaConnection, HaStatus
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import REMOTE_ERRORS, NoBrokerError, RequestTimeoutError
from triomq.protocol.requests.topics import PROMOTED, REGISTERED, PromoteRequestHeader

#: A master closes the connection of a slave without a report for this time; so does a slave without a heartbeat.
SILENCE_MS: Final = 20_000
_DECISION_S: Final = 15.0  # the slave looks for its master
_PROMOTION_S: Final = 60.0
_PAUSE_S: Final = 0.2
SYNC_MASTER: Final = "sync-master"


class SlaveCopy(NamedTuple):
    """A connected slave as its master sees it.

    Attributes:
        address: from where it is connected.
        end: the end of its commit log, in bytes; ``None``: it has not reported yet.
        lag_bytes: the bytes that it misses.
        lag_ms: for how long it has missed the oldest byte that it misses; ``None``: the master does not report it.
        reported_ms: time of its last report, likewise.
    """

    address: str
    end: int | None
    lag_bytes: int
    lag_ms: int | None
    reported_ms: int | None

    @property
    def is_in_touch(self) -> bool:
        """Whether it has reported; a master closes the connection of a silent one."""
        return self.end is not None


class Replica(NamedTuple):
    """A broker of a cluster, master or slave.

    Attributes:
        name, broker_id, address: as registered.
        role: ``async-master``, ``sync-master`` or ``slave``; ``None``: unknown.
        end: the end of its commit log, in bytes; ``None``: unknown.
        lag_bytes: a slave: the bytes of its master's commit log that it misses; ``None``: a master, or unknown.
        master: a slave: where it copies from, as it says; ``None``: unknown.
        is_in_touch: a slave: whether its master sent something within 20 s; ``None``: unknown.
        heard_ms: a slave: when its master sent something, in ms since 1970.
        reported_ms: a slave: when it reported last.
        copies: the connected slaves; ``None``: a slave without any, or RocketMQ 4, which does not report them.
        error: why the broker did not answer.
        tails_aside: how many tails of its log it has set aside, whose messages it serves no more.
    """

    name: str
    broker_id: int
    address: str
    role: str | None = None
    end: int | None = None
    lag_bytes: int | None = None
    master: str | None = None
    is_in_touch: bool | None = None
    heard_ms: int | None = None
    reported_ms: int | None = None
    copies: tuple[SlaveCopy, ...] | None = None
    error: str | None = None
    tails_aside: int = 0

    @property
    def is_master(self) -> bool:
        """Whether it takes messages."""
        return not self.broker_id


class ReplicaAdmin(BaseAdmin):
    """Examines the copies of a cluster, and makes a slave the master."""

    async def replicas(self) -> list[Replica]:
        """Return all brokers that the name server knows, sorted by name and id, each with the state of its copies.

        Raises:
            NameServerError: no name server answered, or it knows no broker.
        """
        instance = self._entered()
        return await read_replicas(instance, await ask_brokers(instance))

    async def promote(self, broker: str | None = None, *, role: str = "async-master", force: bool = False) -> str:
        """Make a slave of triomq the master; return its address once it serves as such, and is registered.

        Args:
            broker: address of the slave; ``None``: the only slave that the name server knows.
            role: ``async-master`` or ``sync-master``.
            force: do so although its master answers, or it has copied nothing.

        Raises:
            NoBrokerError: none or several brokers are known as slaves.
            BrokerResponseError: the broker refuses, and says why.
            RequestTimeoutError: it does not serve as the master after 60 s; its log says why.
            ClientError: it does not answer.
        """
        requests = self._requests
        address = broker or await self._only_slave()
        answer = await requests.ask(
            address, RequestCode.PROMOTE, PromoteRequestHeader(role, force), timeout_s=_DECISION_S
        )
        promoted = {PROMOTED: answer.ext_fields.get(PROMOTED, ""), REGISTERED: "true"}
        with trio.move_on_after(_PROMOTION_S):
            while True:
                with suppress(*REMOTE_ERRORS):  # it opens again
                    answer = await requests.ask(address, RequestCode.GET_PROMOTION)
                    if promoted.items() <= answer.ext_fields.items():
                        return address
                await trio.sleep(_PAUSE_S)
        raise RequestTimeoutError(f"{address} does not serve as the master after {_PROMOTION_S:.0f} s: see its log")

    async def _only_slave(self) -> str:
        table = (await self.cluster()).broker_addr_table.values()
        slaves = [at for each in table for broker_id, at in each.broker_addrs.items() if broker_id]
        if len(slaves) != 1:
            found = f"several slaves, choose one: {', '.join(slaves)}" if slaves else "no slave"
            raise NoBrokerError(f"name server {self._requests.name_servers.current} knows {found}")
        return slaves[0]


async def read_replicas(instance: ClientInstance, brokers: Sequence[BrokerAnswer]) -> list[Replica]:
    """Ask brokers that have answered for role and copies; return all of them in the same order."""
    found = await in_parallel(partial(_read, instance), brokers)
    ends = {replica.name: replica.end for replica in found if replica.is_master}
    return [replica._replace(lag_bytes=_lag(replica, ends.get(replica.name))) for replica in found]


def _lag(replica: Replica, master_end: int | None) -> int | None:
    if replica.is_master or replica.end is None or master_end is None:
        return None
    return max(master_end - replica.end, 0)  # it was asked after its master


async def _read(instance: ClientInstance, broker: BrokerAnswer) -> Replica:
    replica = Replica(broker.name, broker.broker_id, broker.address, error=broker.error)
    if broker.reached_at is None:
        return replica
    replica = replica._replace(end=count_of(broker.runtime, "commitLogMaxOffset"), error=None)
    try:
        role = (await read_settings(instance, broker.reached_at)).get("brokerRole", "")
        replica = replica._replace(role=role.lower().replace("_", "-") or None)
        answer = await instance.requests.ask(broker.reached_at, RequestCode.GET_BROKER_HA_STATUS)
        return _with_status(replica, HaStatus.decode(answer.body), wall_clock_ms() + (broker.clock_ahead_ms or 0))
    except REMOTE_ERRORS:  # RocketMQ 4 does not know the request, and only administrators may read either
        return replica


def _with_status(replica: Replica, status: HaStatus, now_ms: int) -> Replica:
    """Add what a broker whose clock shows ``now_ms`` has answered."""
    copies = tuple(map(_copy, status.ha_connection_info))
    replica = replica._replace(tails_aside=status.tails_aside or 0)
    if status.master:
        return replica._replace(end=status.master_commit_log_max_offset, copies=copies)
    slave = status.ha_client_runtime_info
    return replica._replace(
        end=slave.max_offset,
        copies=copies or None,
        master=slave.master_addr,
        is_in_touch=now_ms - slave.last_read_timestamp <= SILENCE_MS,
        heard_ms=slave.last_read_timestamp or None,
        reported_ms=slave.last_write_timestamp or None,
    )


def _copy(slave: HaConnection) -> SlaveCopy:
    end = slave.slave_ack_offset if slave.slave_ack_offset >= 0 else None
    return SlaveCopy(slave.addr, end, max(slave.diff, 0), slave.lag_ms, slave.reported_ms or None)
