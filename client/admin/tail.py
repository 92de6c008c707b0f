"""Following a topic: what arrives from now on, without a group and without an offset on the broker."""

from typing import Final

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.pull import TOOLS_GROUP, PullConsumer
from triomq.client.nursery import in_parallel
from triomq.protocol.filters.filter_types import SUBSCRIBE_ALL, FilterExpression, filter_of
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

_PULLS: Final = 8
_BYTES: Final = 1024 * 1024
_MOST_BEHIND: Final = 10_000
_KEPT: Final = 32


class Tail:
    """Reads what a topic gets between two looks.

    Attributes:
        passed_by: messages that were left out because more arrived than can be looked at.
    """

    def __init__(self, instance: ClientInstance, topic: str, expression: FilterExpression = SUBSCRIBE_ALL) -> None:
        """Take topic and filter; the first :meth:`look` begins at the ends of the queues.

        Raises:
            SubscriptionParseError: the expression cannot be read.
        """
        filter_of(expression)
        self._instance = instance
        self._topic = topic
        self._expression = expression
        self._next: dict[MessageQueue, int] | None = None
        self._lock = trio.Lock()
        self.passed_by = 0

    async def look(self) -> list[MessageExt]:
        """Return the messages that arrived since the last look, in the order of their store times.

        A queue of which more than 1 MiB arrived is read on with the next look; if more than 10,000 messages wait there,
        all but the last 32 are passed by.

        Raises:
            NoRouteError: the topic does not exist.
            BrokerResponseError: a broker refuses, as Apache's do SQL unless ``enablePropertyFilter`` is set.
        """
        async with self._lock, PullConsumer(TOOLS_GROUP, instance=self._instance) as pull:
            await pull.queues(self._topic, refresh=self._next is None)
            bounds = await pull.bounds(self._topic)
            for error in bounds.errors.values():
                raise error
            if self._next is None:
                self._next = {queue: offsets.max_offset for queue, offsets in bounds.offsets.items()}
                return []
            ends = {queue: offsets.max_offset for queue, offsets in bounds.offsets.items()}

            async def read(queue: MessageQueue) -> list[MessageExt]:
                return await self._read(pull, queue, ends[queue])

            found = await in_parallel(read, [queue for queue, end in ends.items() if self._next.get(queue, 0) < end])
        return sorted((one for part in found for one in part), key=lambda message: message.store_timestamp)

    async def _read(self, pull: PullConsumer, queue: MessageQueue, end: int) -> list[MessageExt]:
        assert self._next is not None
        begin = self._next.get(queue, 0)
        if end - begin > _MOST_BEHIND:
            self.passed_by += end - _KEPT - begin
            begin = end - _KEPT
        messages: list[MessageExt] = []
        for _ in range(_PULLS):
            if begin >= end or sum(message.store_size for message in messages) >= _BYTES:
                break
            found = await pull.pull(queue, begin, self._expression)
            messages += found.messages
            if found.next_begin_offset <= begin:
                break
            begin = found.next_begin_offset
        self._next[queue] = begin
        return messages
