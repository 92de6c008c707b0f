"""What moves in a cluster: counters of brokers, contents of topics, and the lag of all groups, with few requests.

Made for displays that ask again and again: one request for each broker, or for each broker and topic.

Source: wire.md 9.8 (request 28), 9.6 (202, 317).
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from triomq.client.admin.base import BaseAdmin
from triomq.client.admin.broker_answers import BrokerAnswer, NameServerAnswer, ask_brokers, ask_name_servers
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.statistics import ConsumeStatsList, TopicStatsTable
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import REMOTE_ERRORS, TopicNotExistError
from triomq.protocol.java import read_properties
from triomq.protocol.names import RETRY_PREFIX
from triomq.protocol.requests.offsets import GetBrokerConsumeStatsRequestHeader
from triomq.protocol.requests.topics import TopicRequestHeader

_DECIMAL: Final = re.compile(r"\d+(\.\d+)?")


class Counters(NamedTuple):
    """Counters of a broker; ``None``: it does not report them.

    Attributes:
        put, got: messages stored and delivered since its start.
        put_per_s, got_per_s: over the last 10 s, as the broker counts.
        disk: used share of the disk of the commit log, 0 to 1.
        log_bytes: length of the commit log.
        connections: of clients; only triomq's brokers report it.
        stalled_queues: likewise.
    """

    put: int | None
    got: int | None
    put_per_s: float | None
    got_per_s: float | None
    disk: float | None
    log_bytes: int | None
    connections: int | None
    stalled_queues: int | None


class TopicContents(NamedTuple):
    """The contents of a topic.

    Attributes:
        messages: in its queues now.
        ever: how many were ever put into its queues.
        queues: how many it has.
        last_ms: when the newest was stored; 0: unknown.
    """

    messages: int
    ever: int
    queues: int
    last_ms: int


def counters_of(runtime: Mapping[str, str]) -> Counters:
    """Return the counters in a broker's runtime statistics."""
    begin, end = _count(runtime, "commitLogMinOffset"), _count(runtime, "commitLogMaxOffset")
    return Counters(
        put=_count(runtime, "msgPutTotalTodayNow"),
        got=_count(runtime, "msgGetTotalTodayNow"),
        put_per_s=_first(runtime, "putTps"),
        got_per_s=_first(runtime, "getTransferedTps", "getTransferredTps"),  # the latter in 5.x
        disk=_first(runtime, "commitLogDiskRatio"),
        log_bytes=None if begin is None or end is None else end - begin,
        connections=_count(runtime, "triomqConnections"),
        stalled_queues=_count(runtime, "triomqStalledQueues"),
    )


def _count(table: Mapping[str, str], name: str) -> int | None:
    text = table.get(name, "")
    return int(text) if text.isdecimal() else None


def _first(table: Mapping[str, str], *names: str) -> float | None:
    """Return the first of the numbers of a value that is there: rates are those of 10, 60 and 600 s."""
    for name in names:
        if (text := table.get(name, "").partition(" ")[0]) and _DECIMAL.fullmatch(text):
            return float(text)
    return None


class TrafficAdmin(BaseAdmin):
    """Reads what displays show again and again."""

    async def brokers(self) -> list[BrokerAnswer]:
        """Ask all brokers in the name server for their runtime statistics, at once; sorted by name and id.

        Raises:
            NameServerError: no name server answered, or it knows no broker.
        """
        return await ask_brokers(self._entered())

    async def name_servers(self) -> list[NameServerAnswer]:
        """Ask all name servers of this client, at once, for the brokers that they know; in the order given."""
        return await ask_name_servers(self._entered())

    async def broker_settings(self, address: str) -> dict[str, str]:
        """Return the settings of one broker by RocketMQ's names."""
        answer = await self._requests.ask(address, RequestCode.GET_BROKER_CONFIG)
        return read_properties(bytes(answer.body).decode())

    async def backlog(self, cluster: str | None = None) -> dict[str, dict[str, int]]:
        """Return the lag of each group, in messages, by topic and group: one request for each master.

        The lag of a retry topic counts too, under its own name.  Apache's brokers leave out groups without settings:
        those that never had a member.
        """
        found: dict[str, dict[str, int]] = {}
        header = GetBrokerConsumeStatsRequestHeader(is_order=False)
        for answer in await self._ask_masters(RequestCode.GET_BROKER_CONSUME_STATS, header, cluster=cluster):
            for groups in ConsumeStatsList.decode(answer.body).consume_stats_list:
                for group, parts in groups.items():
                    for part in parts:
                        for queue, position in part.offset_table.items():
                            lags = found.setdefault(queue.topic, {})
                            lag = max(0, position.broker_offset - position.consumer_offset)
                            lags[group] = lags.get(group, 0) + lag
        return found

    async def topic_contents(self, topics: Iterable[str]) -> dict[str, TopicContents]:
        """Return the numbers of messages in topics: one request for each topic and master; no route is looked up.

        Topics that no broker has, or that one cannot be asked about now, are left out.
        """
        masters = list((await self._masters()).values())
        found: dict[str, TopicContents] = {}

        async def read(topic: str) -> None:
            code, header = RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic)
            with suppress(*REMOTE_ERRORS):
                answers = await self._requests.ask_each(masters, code, header, without=(TopicNotExistError,))
                tables = (TopicStatsTable.decode(answer.body).offset_table for answer in answers)
                if parts := [part for table in tables for part in table.values()]:
                    messages = sum(part.max_offset - part.min_offset for part in parts)
                    last_ms = max(part.last_update_timestamp for part in parts)
                    found[topic] = TopicContents(messages, sum(part.max_offset for part in parts), len(parts), last_ms)

        await in_parallel(read, topics)
        return found


def lag_by_group(backlog: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the lag of each group in all its topics, retries included, from :meth:`TrafficAdmin.backlog`."""
    found: dict[str, int] = {}
    for lags in backlog.values():
        for group, lag in lags.items():
            found[group] = found.get(group, 0) + lag
    return found


def retry_lag(backlog: Mapping[str, Mapping[str, int]], group: str) -> int:
    """Return the number of messages that wait in the retry topic of a group."""
    return sum(backlog.get(f"{RETRY_PREFIX}{group}", {}).values())
