"""What waits for consumer groups: how many messages, and for how long the oldest.

Source: wire.md 9.6 (request 317).
"""

from collections.abc import Mapping
from typing import Final

from triomq.client.admin.base import BaseAdmin
from triomq.client.cluster.pull import PullRequest
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.protocol.bodies.statistics import ConsumeStatsList, OffsetWrapper
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import REMOTE_ERRORS
from triomq.protocol.filters.filter_types import TagFilter
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.requests.offsets import GetBrokerConsumeStatsRequestHeader

#: Messages of one group that are read to find the oldest.
_MOST_READ: Final = 16
_ALL: Final = TagFilter.parse(None)

#: The position of a group in each of its queues, those of its retry topic included.
Positions = Mapping[MessageQueue, OffsetWrapper]


class WaitingAdmin(BaseAdmin):
    """Reads what waits for groups, with few requests."""

    async def positions(self) -> dict[str, dict[MessageQueue, OffsetWrapper]]:
        """Return the position of each group in each of its queues: one request for each master.

        Retry topics are included.  Apache's brokers leave out groups without settings: those that never had a member.
        """
        found: dict[str, dict[MessageQueue, OffsetWrapper]] = {}
        header = GetBrokerConsumeStatsRequestHeader(is_order=False)
        for answer in await self._ask_masters(RequestCode.GET_BROKER_CONSUME_STATS, header):
            for groups in ConsumeStatsList.decode(answer.body).consume_stats_list:
                for group, parts in groups.items():
                    for part in parts:
                        found.setdefault(group, {}).update(part.offset_table)
        return found

    async def oldest_waiting_ms(self, positions: Positions) -> int | None:
        """Return the store time (ms) of the oldest message that waits for a group.

        Only few messages are read: a message that waits is younger than the last one consumed from its queue.

        Returns:
            ``None`` if no message waits, or those that do cannot be read.
        """
        lagging = [(each.last_timestamp, queue, each) for queue, each in positions.items() if lag_of(each)]
        requests = QueueRequests(self._entered(), TOOLS_GROUP)
        oldest_ms: int | None = None
        for last_ms, queue, each in sorted(lagging, key=lambda item: item[:2])[:_MOST_READ]:
            if oldest_ms is not None and last_ms >= oldest_ms:
                break
            try:
                await self._entered().routes.topic_route(queue.topic)
                pull = PullRequest(QueueOffset(each.consumer_offset), 1, message_filter=_ALL)
                answer = await requests.pull(queue, pull)
                if not answer.messages and answer.next_begin_offset > each.consumer_offset:  # those are deleted
                    answer = await requests.pull(queue, PullRequest(answer.next_begin_offset, 1, message_filter=_ALL))
            except REMOTE_ERRORS:
                continue
            times = [message.store_timestamp for message in answer.messages]
            oldest_ms = min(times if oldest_ms is None else [oldest_ms, *times], default=oldest_ms)
        return oldest_ms


def lag_of(position: OffsetWrapper) -> int:
    """Return the number of messages that wait in a queue."""
    return max(0, position.broker_offset - position.consumer_offset)
