"""What moves and waits in a cluster: counters of brokers, contents of topics, positions of all groups.

Made for displays that ask again and again: one request for each broker, or for each broker and topic.

Source: wire.md 9.8 (request 28), 9.6 (202, 317).
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from triomq.client.admin.base import BaseAdmin
from triomq.client.admin.broker_answers import (
    BrokerAnswer,
    NameServerAnswer,
    ask_brokers,
    ask_name_servers,
    count_of,
    read_settings,
)
from triomq.client.cluster.pull import PullRequest
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.statistics import ConsumeStatsList, OffsetWrapper, TopicStatsTable
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import REMOTE_ERRORS, TopicNotExistError
from triomq.protocol.filters.filter_types import EVERYTHING
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.names import RETRY_PREFIX
from triomq.protocol.requests.offsets import GetBrokerConsumeStatsRequestHeader
from triomq.protocol.requests.topics import TopicRequestHeader

#: Messages of one group that are read to find the oldest.
_MOST_READ: Final = 16
_DECIMAL: Final = re.compile(r"\d+(\.\d+)?")

#: The position of a group in each of its queues, those of its retry topic included.
Positions = Mapping[MessageQueue, OffsetWrapper]


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
    begin, end = count_of(runtime, "commitLogMinOffset"), count_of(runtime, "commitLogMaxOffset")
    return Counters(
        put=count_of(runtime, "msgPutTotalTodayNow"),
        got=count_of(runtime, "msgGetTotalTodayNow"),
        put_per_s=_first(runtime, "putTps"),
        got_per_s=_first(runtime, "getTransferedTps", "getTransferredTps"),  # the latter in 5.x
        disk=_first(runtime, "commitLogDiskRatio"),
        log_bytes=None if begin is None or end is None else end - begin,
        connections=count_of(runtime, "triomqConnections"),
        stalled_queues=count_of(runtime, "triomqStalledQueues"),
    )


def _first(table: Mapping[str, str], *names: str) -> float | None:
    """Return the first of the numbers of a value that is there: rates are those of 10, 60 and 600 s."""
    for name in names:
        if (text := table.get(name, "").partition(" ")[0]) and _DECIMAL.fullmatch(text):
            return float(text)
    return None


class TrafficAdmin(BaseAdmin):
    """Reads what displays show again and again, with few requests."""

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
        return await read_settings(self._entered(), address)

    async def positions(self, cluster: str | None = None) -> dict[str, dict[MessageQueue, OffsetWrapper]]:
        """Return the position of each group in each of its queues: one request for each master.

        Retry topics are included.  Apache's brokers leave out groups without settings: those that never had a member.
        """
        found: dict[str, dict[MessageQueue, OffsetWrapper]] = {}
        header = GetBrokerConsumeStatsRequestHeader(is_order=False)
        for answer in await self._ask_masters(RequestCode.GET_BROKER_CONSUME_STATS, header, cluster=cluster):
            for groups in ConsumeStatsList.decode(answer.body).consume_stats_list:
                for group, parts in groups.items():
                    for part in parts:
                        found.setdefault(group, {}).update(part.offset_table)
        return found

    async def backlog(self, cluster: str | None = None) -> dict[str, dict[str, int]]:
        """Return the lag of each group, in messages, by topic and group; see :meth:`positions`.

        The lag of a retry topic counts too, under its own name.
        """
        found: dict[str, dict[str, int]] = {}
        for group, positions in (await self.positions(cluster)).items():
            for queue, position in positions.items():
                lags = found.setdefault(queue.topic, {})
                lags[group] = lags.get(group, 0) + position.lag
        return found

    async def oldest_waiting_ms(self, positions: Positions) -> int | None:
        """Return the store time (ms) of the oldest message that waits for a group.

        Only few messages are read: a message that waits is younger than the last one consumed from its queue.

        Returns:
            ``None`` if no message waits, or those that do cannot be read.
        """
        lagging = [(each.last_timestamp, queue, each) for queue, each in positions.items() if each.lag]
        requests = QueueRequests(self._entered(), TOOLS_GROUP)
        oldest_ms: int | None = None
        for last_ms, queue, each in sorted(lagging, key=lambda item: item[:2])[:_MOST_READ]:
            if oldest_ms is not None and last_ms >= oldest_ms:
                break
            try:
                await self._entered().routes.topic_route(queue.topic)
                pull = PullRequest(QueueOffset(each.consumer_offset), 1, message_filter=EVERYTHING)
                answer = await requests.pull(queue, pull)
                if not answer.messages and answer.next_begin_offset > each.consumer_offset:  # those are deleted
                    answer = await requests.pull(
                        queue, PullRequest(answer.next_begin_offset, 1, message_filter=EVERYTHING)
                    )
            except REMOTE_ERRORS:
                continue
            times = [message.store_timestamp for message in answer.messages]
            oldest_ms = min(times if oldest_ms is None else [oldest_ms, *times], default=oldest_ms)
        return oldest_ms

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
