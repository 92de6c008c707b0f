"""An orderly service with one process queue, a scripted handler, and a sender that records its messages."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import trio

from tests.unit.client.consumer.fake_cluster import make_message, offsets_of
from triomq.client.consumer.config import ConsumerConfig, ConsumeStatus, OrderlyContext
from triomq.client.consumer.handlers import Handler, OnMessage, OnMessages
from triomq.client.consumer.processing.orderly import OrderlyService
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.processing.send_back import SendBack
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

QUEUE = MessageQueue("T", "broker-a", 0)
SUSPEND = ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class DeadLetters:
    """Records offsets of dead letters, and refuses some on request."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.refused: set[int] = set()

    async def send_to_dead_letters(self, message: MessageExt) -> bool:
        await trio.lowlevel.checkpoint()
        if message.queue_offset in self.refused:
            return False
        self.sent.append(message.queue_offset)
        return True


@dataclass
class Script:
    """A batch handler that says one thing after the other, then SUCCESS."""

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
        status = next(self._next, ConsumeStatus.SUCCESS)
        if isinstance(status, Exception):
            raise status
        return status


class OrderlyBench:
    """A service with process queues."""

    def __init__(
        self, on_message: OnMessage | None = None, on_messages: OnMessages | None = None, **settings: float
    ) -> None:
        self.sender = DeadLetters()
        config = ConsumerConfig(**{"batch_max_size": 1, **settings})  # type: ignore[arg-type]  # the class checks
        self.service = OrderlyService(Handler.of(on_message, on_messages), cast("SendBack", self.sender), config)
        self.queue = ProcessQueue(QUEUE)

    def pull(self, *offsets: int, queue: ProcessQueue | None = None) -> None:
        queue = queue or self.queue
        messages = [make_message(queue_offset) for queue_offset in offsets]
        queue.put(messages)
        self.service.submit(queue, messages)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.service.run)
            nursery.start_soon(self.service.maintain)
            yield
            nursery.cancel_scope.cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; needs a clock that jumps."""
        with trio.fail_after(1_000):
            while not condition():  # noqa: ASYNC110  # the clock jumps
                await trio.sleep(0.05)

    async def consumed(self, queue_offset: int) -> None:
        await self.until(lambda: self.queue.consumed_offset() == queue_offset)
