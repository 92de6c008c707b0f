"""Where consumption of a newly taken queue begins.

Source: behaviour.md B.6, RebalancePushImpl.computePullFromWhere.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from triomq.client.cluster.pull import PullRequest, PullStatus
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.config import StartPolicy, StartPosition
from triomq.client.consumer.offsets.offset_store import LOGGER, OffsetStore, for_each
from triomq.protocol.errors import RequestCodeNotSupportedError
from triomq.protocol.filters.filter_types import EVERYTHING
from triomq.protocol.message_queue import MessageQueue, QueueOffset, Timestamp

#: Messages read at a time to find the first one of a timestamp.
_SEARCH_BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class FirstOffsets:
    """Finds where to start newly taken queues.

    A stored offset always wins.  Without one the start policy decides, however old the queue is; the decision
    is stored before the first message is delivered, so that it is made once: for the whole group, or
    for this member in broadcasting.
    After a broker error the queue is left out and retried (only code 22 means "nothing stored").

    Queues created while the consumer runs, and those of the retry topic, begin at their first
    message: the group existed before everything in them.

    Attributes:
        requests: how to reach brokers.
        offsets: where progress is kept.
        policy: where a group without offsets begins.
        retry_topic: the group's.
        is_stored: whether the decision is stored; not for queues that are not shared.
    """

    requests: QueueRequests
    offsets: OffsetStore
    policy: StartPolicy
    retry_topic: str
    is_stored: bool = True

    async def find(
        self, queues: Collection[MessageQueue], known_at_start: Collection[MessageQueue]
    ) -> dict[MessageQueue, QueueOffset]:
        """Return the first offsets; queues whose broker did not answer are missing and must be retried."""
        asked = await for_each(queues, self.offsets.stored, "first offset not known")
        late = {queue for queue in asked if queue.topic == self.retry_topic or queue not in known_at_start}
        await self._disclose(asked, late)
        missing = [queue for queue, stored in asked.items() if stored is None]
        found = {queue: stored for queue, stored in asked.items() if stored is not None}
        resolved = await for_each(missing, lambda queue: self._resolve(queue, queue in late), "first offset not found")
        if not self.is_stored:
            return {**found, **resolved}
        for queue in await self.offsets.store_first(resolved):
            LOGGER.info("group starts queue=%s offset=%d", queue, resolved[queue])
            found[queue] = resolved[queue]
        return found

    async def _disclose(self, asked: dict[MessageQueue, QueueOffset | None], late: Collection[MessageQueue]) -> None:
        """Replace each 0 that means "nothing stored" by ``None``; remove queues for which this is unknown.

        Brokers before 5.0 return 0 for a group without offset while the queue's first message is young
        (behaviour.md A.13).  That is right where the policy is "earliest", and where the queue is empty.
        """
        if self.policy.position is StartPosition.EARLIEST:
            return
        zeros = [queue for queue, stored in asked.items() if stored == 0 and queue not in late]
        doubtful = [queue for queue in zeros if not self.offsets.is_exact(queue)]
        ends = await for_each(doubtful, self.requests.max_offset, "end of queue not known")
        one_of_broker = {(queue.topic, queue.broker_name): queue for queue in doubtful if ends.get(queue)}
        tables = await for_each(one_of_broker.values(), self._stored_queue_ids, "stored offsets not known")
        for queue in doubtful:
            if ends.get(queue) == 0:
                continue
            stored_ids = tables.get(one_of_broker.get((queue.topic, queue.broker_name), queue))
            if stored_ids is None:
                del asked[queue]
            elif queue.queue_id not in stored_ids:
                asked[queue] = None

    async def _stored_queue_ids(self, queue: MessageQueue) -> Collection[int]:
        try:
            return await self.requests.stored_queue_ids(queue)
        except RequestCodeNotSupportedError:  # a broker without this request means 0 when it returns 0
            return range(2**31)

    async def _resolve(self, queue: MessageQueue, from_first: bool) -> QueueOffset:
        if from_first or self.policy.position is StartPosition.EARLIEST:
            return await self.requests.min_offset(queue)
        if self.policy.timestamp is not None:
            return await first_stored_at(self.requests, queue, self.policy.timestamp)
        high = await self.requests.max_offset(queue)
        if (wanted := self.policy.queue_offset) is not None and wanted < high:
            return max(wanted, await self.requests.min_offset(queue))
        return high


async def first_stored_at(requests: QueueRequests, queue: MessageQueue, timestamp: Timestamp) -> QueueOffset:
    """Return the offset of the first message stored at or after a time, or the end of the queue.

    A search by time finds the nearest message, or any of those of the same millisecond (wire.md 5.6), so the
    previous millisecond is searched and its messages are skipped.
    """
    offset = await requests.search_offset(queue, Timestamp(timestamp - 1))
    offset = max(offset, await requests.min_offset(queue))
    while True:
        result = await requests.pull(queue, PullRequest(offset, _SEARCH_BATCH, message_filter=EVERYTHING))
        for message in result.messages:
            if message.store_timestamp >= timestamp:
                return message.queue_offset
        if result.status is PullStatus.NO_NEW_MESSAGE or result.next_begin_offset <= offset:
            return result.next_begin_offset
        offset = result.next_begin_offset
