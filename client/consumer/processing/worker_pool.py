"""The workers of a consume service: tasks that call the handler, as many as were asked for, now or while they run."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import trio

from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.processing.turns import Turns
from triomq.protocol.record.message import MessageExt


class WorkerSlot(Protocol):
    """What a worker does now.

    Attributes:
        process_queue: whose messages the handler has.
        messages: which; empty if it has none.
        retired: there are too many workers: this one ends after what it has begun.
    """

    process_queue: ProcessQueue | None
    messages: Sequence[MessageExt]
    retired: bool


S = TypeVar("S", bound=WorkerSlot)


class WorkerPool(Turns, ABC, Generic[S]):
    """Runs workers: :meth:`run` it in a nursery of its own.

    Attributes:
        concurrency: how many workers there shall be.
        slots: what the workers do.
        threads: limits the threads of plain functions.
        stopped: no new message is handed to the handler any more.
    """

    def __init__(self, concurrency: int) -> None:
        super().__init__()
        self.concurrency = concurrency
        self.slots: list[S] = []
        self.threads = trio.CapacityLimiter(concurrency)
        self.stopped = False
        self.parked = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None

    @abstractmethod
    def make_slot(self) -> S:
        """Return the slot of a new worker."""

    @abstractmethod
    async def work(self, slot: S) -> None:
        """Call the handler until the service is stopped or the slot is retired."""

    async def run(self) -> None:
        """Work until the service is stopped; what handlers had begun is finished then."""
        self.use_clock()
        async with trio.open_nursery() as self._nursery:
            self.resize(self.concurrency)

    def resize(self, concurrency: int) -> None:
        """Have so many workers; those that are too many end when their handler does."""
        self.concurrency = concurrency
        self.threads.total_tokens = concurrency
        for index, slot in enumerate(self.slots):
            slot.retired = index >= concurrency
        if self._nursery is not None:
            while len(self.slots) < concurrency:
                slot = self.make_slot()
                self.slots.append(slot)
                self._nursery.start_soon(self._live, slot)
        self.parked.unpark_all()

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        """Return how many messages handlers have now, of one queue or of all."""
        return sum(
            len(slot.messages) for slot in self.slots if process_queue is None or slot.process_queue is process_queue
        )

    async def _live(self, slot: S) -> None:
        try:
            await self.work(slot)
        finally:
            self.slots.remove(slot)
