"""The answer to GET_BROKER_HA_STATUS (907): how far the copies of a commit log are.

Source: HARuntimeInfo.java, DefaultHAService.java of RocketMQ 5.5.0; members with the prefix ``triomq`` are ours.
"""

from dataclasses import dataclass, field
from typing import Annotated

from triomq.protocol.bodies.json_body import JsonBody, Wire


@dataclass(slots=True)
class HaConnection(JsonBody):
    """A slave as its master sees it.

    Attributes:
        addr: from where it is connected.
        slave_ack_offset: the end of its commit log, as it reported last; -1: not yet.
        diff: bytes of the master's commit log that it has not reported.
        in_sync: whether an acknowledgement of it is near enough for a synchronous master.
        transferred_byte_in_second: bytes sent to it in the last second.
        transfer_from_where: the next offset that it is sent; -1: it has not asked yet.
        lag_ms: for how long it has missed the oldest byte that it misses.
        reported_ms: when it reported last, in ms since 1970; 0: not yet.
    """

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0
    lag_ms: Annotated[int | None, Wire("triomqLagMs")] = None
    reported_ms: Annotated[int | None, Wire("triomqReportedMs")] = None


@dataclass(slots=True)
class HaClient(JsonBody):
    """A slave as it sees itself; a master has one, too, without content.

    Attributes:
        master_addr: where it is connected or tries to connect; ``None``: it knows no master.
        transferred_byte_in_second: bytes received in the last second.
        max_offset: the end of its commit log.
        last_read_timestamp: when something came from the master, in ms since 1970; 0: never.
        last_write_timestamp: when it reported, likewise.
        master_flush_offset: what the disk of the master has; 0: the master does not send it.
    """

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


@dataclass(slots=True)
class HaStatus(JsonBody):
    """The answer.

    Attributes:
        master: whether the broker is a master.
        master_commit_log_max_offset: the end of a master's commit log.
        in_sync_slave_nums: how many slaves are in sync.
        ha_connection_info: the connected slaves.
        ha_client_runtime_info: the slave itself.
        tails_aside: how many tails of its log the broker has set aside, if any.
    """

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HaConnection] = field(default_factory=list)
    ha_client_runtime_info: HaClient = field(default_factory=HaClient)
    tails_aside: Annotated[int | None, Wire("triomqTailsAside")] = None
