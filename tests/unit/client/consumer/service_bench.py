"""A consume service with one process queue, a scripted handler, and a sender that records its messages."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import trio

from tests.unit.client.consumer.fake_cluster import make_message, offsets_of
from triomq.client.consumer.config import ConsumerConfig, ConsumeStatus, OrderlyContext
from triomq.client.consumer.handlers import Handler, OnMessage, OnMessages
from triomq.client.consumer.processing.concurrently import ConcurrentService
from triomq.client.consumer.processing.orderly import OrderlyService
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.processing.send_back import SendBack
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

QUEUE = MessageQueue("T", "broker-a", 0)
SUSPEND = ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class Sender:
    """Records failed messages and their delay levels, and the offsets of dead letters; refuses some on request."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.dead: list[int] = []
        self.refused: set[int] = set()
        self.before: Callable[[], None] = lambda: None

    async def send(self, message: MessageExt, delay_level: int) -> bool:
        await trio.lowlevel.checkpoint()
        self.before()
        if is_taken := message.queue_offset not in self.refused:
            self.sent.append((message.queue_offset, delay_level))
        return is_taken

    async def send_to_dead_letters(self, message: MessageExt) -> bool:
        await trio.lowlevel.checkpoint()
        if is_taken := message.queue_offset not in self.refused:
            self.dead.append(message.queue_offset)
        return is_taken


@dataclass
class Script:
    """A batch handler that returns these statuses, or raises them, and then SUCCESS."""

    statuses: Iterable[object]
    auto_commit: bool = True
    suspend_s: float | None = None
    calls: list[list[int]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = iter(self.statuses)

    async def __call__(self, messages: list[MessageExt], context: OrderlyContext) -> Any:
        await trio.lowlevel.checkpoint()
        self.calls.append(offsets_of(messages))
        self.times.append(trio.current_time())
        context.auto_commit = self.auto_commit
        context.suspend_s = self.suspend_s
        return next(self._next, ConsumeStatus.SUCCESS)


class Bench:
    """A concurrent service with one process queue."""

    kind: type[ConcurrentService | OrderlyService] = ConcurrentService

    def __init__(
        self, on_message: OnMessage | None = None, on_messages: OnMessages | None = None, **settings: float
    ) -> None:
        self.sender = Sender()
        config = ConsumerConfig(**settings)  # type: ignore[arg-type]  # names are checked by the class
        self.service: Any = self.kind(Handler.of(on_message, on_messages, "G"), cast("SendBack", self.sender), config)
        self.queue = ProcessQueue(QUEUE)

    def pull(self, *offsets: int, queue: ProcessQueue | None = None) -> None:
        queue = queue or self.queue
        messages = [make_message(queue_offset) for queue_offset in offsets]
        queue.put(messages)
        self.service.submit(queue, messages)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[trio.Nursery, None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.service.run)
            nursery.start_soon(self.service.maintain)
            yield nursery
            nursery.cancel_scope.cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that becomes true by the removal of a message, or by time on a clock that jumps."""
        with trio.fail_after(1_000):
            while not condition():
                changed = trio.Event()
                self.queue.on_removal = changed.set
                with trio.move_on_after(0.05):
                    await changed.wait()

    async def consumed(self, queue_offset: int) -> None:
        await self.until(lambda: self.queue.consumed_offset() == queue_offset)


class OrderlyBench(Bench):
    """An orderly service with process queues."""

    kind: type[ConcurrentService | OrderlyService] = OrderlyService

    def __init__(
        self, on_message: OnMessage | None = None, on_messages: OnMessages | None = None, **settings: float
    ) -> None:
        super().__init__(on_message, on_messages, **{"batch_max_size": 1, **settings})
