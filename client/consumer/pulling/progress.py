"""What moves the progress of a queue: the results of handlers, or only the commits of the user."""

from typing import Final

import trio

from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.units import QueueOffset

_STORE_LIMIT_S: Final = 1.0


class Progress:
    """Progress that only the user's commits move, as lite pull consumers have it.

    Attributes:
        is_lite: whether pulls name their tag expression, and say that a lite pull consumer sends them.
    """

    is_lite = True

    def begin(self, queue: MessageQueue, first_offset: QueueOffset) -> None:
        """Record where a queue begins."""

    def note(self, process_queue: ProcessQueue) -> None:
        """Bring the progress in memory up to what is consumed."""

    def skip(self, process_queue: ProcessQueue, next_offset: QueueOffset) -> None:
        """Record that no message before an offset matched."""

    async def move(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:
        """Record that a queue continues at another offset."""
        await trio.lowlevel.checkpoint()

    def keeps_cached(self, correction: QueueOffset, next_offset: QueueOffset) -> bool:
        """Whether cached messages stay when the broker corrects the offset of the next pull."""
        return correction > next_offset


class HandlerProgress(Progress):
    """Progress that handlers make, as push consumers have it."""

    is_lite = False

    def __init__(self, offsets: OffsetStore) -> None:
        self._offsets = offsets

    def begin(self, queue: MessageQueue, first_offset: QueueOffset) -> None:
        """Record the offset; the broker knows it."""
        self._offsets.update(queue, first_offset, increase_only=False)
        self._offsets.told(queue, first_offset)

    def note(self, process_queue: ProcessQueue) -> None:
        """Record the offset up to which handlers have ended."""
        if not process_queue.dropped and (consumed := process_queue.consumed_offset()) is not None:
            self._offsets.update(process_queue.queue, consumed, increase_only=True)

    def skip(self, process_queue: ProcessQueue, next_offset: QueueOffset) -> None:
        """Record the offset if no message before it waits, so that the lag falls although nothing matches."""
        if not process_queue.cached_messages:
            self._offsets.update(process_queue.queue, next_offset, increase_only=True)

    async def move(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:
        """Record the offset and store it."""
        self._offsets.update(queue, queue_offset, increase_only=False)
        with trio.move_on_after(_STORE_LIMIT_S):
            await self._offsets.persist_now([queue])

    def keeps_cached(self, _correction: QueueOffset, _next_offset: QueueOffset) -> bool:
        """Return false: handlers would record progress before the correction."""
        return False
