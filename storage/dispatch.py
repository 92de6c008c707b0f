"""Show appended messages to consumers: at once, or once they are on the disk.

The index of keys follows the log by itself: ``index.message_index``.
Source: DefaultMessageStore.java, doDispatch; store.md 3.3.
"""

from collections import deque
from collections.abc import Collection
from typing import Final

from triomq.protocol.codes import MessageSysFlag
from triomq.storage.consume_queue.consume_queue import ConsumeQueue

WITHOUT_UNIT: Final = frozenset({int(MessageSysFlag.TRANSACTION_PREPARED), int(MessageSysFlag.TRANSACTION_ROLLBACK)})
"""Transaction bits of records that no consumer ever sees.  Source: store.md 3.3."""


class Dispatcher:
    """Shows appended messages to consumers: at once, or once they are on the disk."""

    __slots__ = ("_pending", "_wait_for_flush")

    def __init__(self, *, wait_for_flush: bool) -> None:
        self._wait_for_flush = wait_for_flush
        self._pending: deque[tuple[int, ConsumeQueue, int]] = deque()

    def appended(self, queue: ConsumeQueue, physical_end: int) -> None:
        """Note that all units of ``queue`` are written, of records before ``physical_end``."""
        if self._wait_for_flush:
            self._pending.append((physical_end, queue, queue.next_offset))
            return
        queue.max_offset = queue.next_offset
        if queue.on_arrival is not None:
            queue.on_arrival(queue)

    def flushed(self, flushed_offset: int) -> None:
        """Show the messages before ``flushed_offset``; each queue's ``on_arrival`` is called once."""
        pending = self._pending
        arrived: dict[ConsumeQueue, None] = {}
        while pending and pending[0][0] <= flushed_offset:
            _, queue, max_offset = pending.popleft()
            queue.max_offset = max_offset
            arrived[queue] = None
        for queue in arrived:
            if queue.on_arrival is not None:
                queue.on_arrival(queue)

    def forget(self, queues: Collection[ConsumeQueue]) -> None:
        """Drop what waits in queues that were deleted."""
        self._pending = deque(entry for entry in self._pending if entry[1] not in queues)
