"""A consume service with one process queue and a sender that takes notes."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import cast

import trio

from tests.unit.client.consumer.fake_cluster import make_message
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.handlers import Handler, OnMessage, OnMessages
from triomq.client.consumer.processing.concurrently import ConcurrentService
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.processing.send_back import SendBack
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

QUEUE = MessageQueue("T", "broker-a", 0)


class Sender:
    """Records messages that are sent back, and refuses on request."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.refuses = False
        self.before: Callable[[], None] = lambda: None

    async def send(self, message: MessageExt, delay_level: int) -> bool:
        await trio.lowlevel.checkpoint()
        self.before()
        if not self.refuses:
            self.sent.append((message.queue_offset, delay_level))
        return not self.refuses


class Bench:
    """A service with one process queue."""

    def __init__(
        self, on_message: OnMessage | None = None, on_messages: OnMessages | None = None, **settings: float
    ) -> None:
        self.sender = Sender()
        config = ConsumerConfig(**settings)  # type: ignore[arg-type]  # names are checked by the class
        self.service = ConcurrentService(
            Handler.of(on_message, on_messages, "G"), cast("SendBack", self.sender), config
        )
        self.queue = ProcessQueue(QUEUE)

    def pull(self, *offsets: int) -> None:
        messages = [make_message(queue_offset) for queue_offset in offsets]
        self.queue.put(messages)
        self.service.submit(self.queue, messages)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[trio.Nursery, None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.service.run)
            nursery.start_soon(self.service.maintain)
            yield nursery
            nursery.cancel_scope.cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that becomes true by the removal of a message."""
        while not condition():
            changed = trio.Event()
            self.queue.on_removal = changed.set
            await changed.wait()

    async def consumed(self, queue_offset: int) -> None:
        await self.until(lambda: self.queue.consumed_offset() == queue_offset)
