"""What all pull loops of a consumer share."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from triomq.client.consumer.config import PullConfig
from triomq.client.consumer.hooks import FilterHook
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.pulling.flow_control import FlowLimits
from triomq.client.consumer.pulling.progress import Progress
from triomq.client.consumer.requests.queue_requests import QueueRequests
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

LOGGER: Final = logging.getLogger("triomq.client.consumer.pull")

#: How often a pull that waits for room checks again by itself.
_RECHECK_S: Final = 1.0


class ConsumeService(Protocol):
    """Takes the messages."""

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Take messages that were put into a process queue."""

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        """Return how many messages handlers are processing."""


@dataclass(slots=True)
class PullContext:
    """What all pull loops of a consumer share.

    Attributes:
        requests: how to reach brokers.
        offsets: where progress is kept.
        progress: what moves it.
        service: where messages go.
        config: settings.
        announce: requests a heartbeat soon, because a broker does not know the subscription.
        orderly: whether consumption is orderly.
        filters: choose among the messages of each pull.
        suspended: nothing is pulled.
        limits: limits of each queue; replaced when the number of queues changes.
        corrections: offsets that brokers refused.
        gone_topics: were deleted since the consumer began: a queue taken later begins at its first message.
        complaints: present errors of pulls, and how many queues have each.
        failures: logs them, whichever queues have them.
    """

    requests: QueueRequests
    offsets: OffsetStore
    progress: Progress
    service: ConsumeService
    config: PullConfig
    announce: Callable[[], None]
    orderly: bool = False
    filters: Sequence[FilterHook] = ()
    suspended: bool = False
    limits: FlowLimits = field(init=False)
    corrections: int = 0
    gone_topics: set[str] = field(default_factory=set)
    complaints: Counter[str] = field(default_factory=Counter)
    failures: EventLog = field(
        default_factory=lambda: EventLog(LOGGER, "pull failed, retrying queue=%s error=%s", logging.WARNING)
    )

    def __post_init__(self) -> None:
        self.share_limits(1)

    async def wait_for_room(self, process_queue: ProcessQueue, is_room: Callable[[], bool]) -> None:
        """Return when a removal has made room, or after a time: limits may have changed."""
        room = trio.Event()

        def look() -> None:
            if is_room():
                room.set()

        process_queue.on_removal = look
        try:
            with trio.move_on_after(_RECHECK_S):
                await room.wait()
        finally:
            process_queue.on_removal = None

    def share_limits(self, queues: int) -> None:
        """Divide the limits among this many queues."""
        self.limits = FlowLimits.of(self.config, queues, orderly=self.orderly)

    def complain(self, queue: MessageQueue, before: str, complaint: str, level: int) -> None:
        """Record and log why the last pull of a queue failed, and the one before; "": it did not."""
        if complaint:
            self.failures.occurred(queue, complaint, key=complaint, level=level)
        if complaint == before:
            return
        if complaint:
            self.complaints[complaint] += 1
        if before and self.withdraw(before) and not complaint:
            self.failures.ended(key=before)
            LOGGER.info("pulls work again queue=%s error=%s", queue, before)

    def withdraw(self, complaint: str) -> bool:
        """Record that a queue no longer has this error; return whether it was the last one."""
        self.complaints[complaint] -= 1
        if self.complaints[complaint]:
            return False
        del self.complaints[complaint]
        return True
