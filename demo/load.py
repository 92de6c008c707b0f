"""Send the flights.

The tail number is the sharding key: all flights of an aircraft go to one queue, in order.  Batches keep that order: a
batch is for one queue, and the queue's only task waits for each answer before it sends the next batch.
"""

from collections.abc import Sequence
from typing import Final

import trio

from triomq.cli.histogram import Histogram
from triomq.client import Message, MessageQueue, Producer, select_by_hash
from triomq.demo.flights import Flight

TOPIC: Final = "flights"
LIVE_RATE: Final = 1_000
BATCH: Final = 64
_YIELD_EVERY: Final = 2_000
NUMBER_PROPERTY: Final = "demo_number"


class Sending:
    """Sends flights and measures it.

    Attributes:
        sent: flights stored by the broker.
        live_latencies: of requests with one flight each.
        bulk_latencies: of requests with up to :data:`BATCH` flights.
        sent_at: when each live flight was sent, by its number.
        bulk_s: how long the bulk took.
    """

    def __init__(self, producer: Producer) -> None:
        self.sent = 0
        self.live_latencies: Final = Histogram()
        self.bulk_latencies: Final = Histogram()
        self.sent_at: list[float] = []
        self.bulk_s = 0.0
        self._producer = producer

    async def send_live(self, flights: Sequence[Flight]) -> None:
        """Send one by one, :data:`LIVE_RATE` per second, as from an airport."""
        began = trio.current_time()
        for number, flight in enumerate(flights):
            await trio.sleep_until(began + number / LIVE_RATE)
            message = Message(
                TOPIC,
                flight.line,
                tags=flight.carrier,
                sharding_key=flight.tail_number,
                properties={NUMBER_PROPERTY: str(number)},
            )
            self.sent_at.append(trio.current_time())
            await self._producer.send(message, selector=select_by_hash)
            self.live_latencies.add(trio.current_time() - self.sent_at[-1])
            self.sent += 1

    async def send_bulk(self, flights: Sequence[Flight]) -> None:
        """Send as fast as possible."""
        began = trio.current_time()
        queues = await self._producer.publish_queues(TOPIC)
        waiting: dict[MessageQueue, list[Message]] = {queue: [] for queue in queues}
        async with trio.open_nursery() as nursery:
            lines = {}
            for queue in queues:
                lines[queue], batches = trio.open_memory_channel[list[Message]](4)
                nursery.start_soon(self._send_batches, queue, batches)
            for number, flight in enumerate(flights):
                message = Message(TOPIC, flight.line, tags=flight.carrier, sharding_key=flight.tail_number)
                queue = select_by_hash(queues, message, None)
                batch = waiting[queue]
                batch.append(message)
                if len(batch) == BATCH:
                    waiting[queue] = []
                    await lines[queue].send(batch)
                elif number % _YIELD_EVERY == 0:
                    await trio.lowlevel.checkpoint()
            for queue, line in lines.items():
                if waiting[queue]:
                    await line.send(waiting[queue])
                line.close()
        self.bulk_s = trio.current_time() - began

    async def _send_batches(self, queue: MessageQueue, batches: trio.MemoryReceiveChannel[list[Message]]) -> None:
        async for batch in batches:
            began = trio.current_time()
            await self._producer.send_batch(batch, queue=queue)
            self.bulk_latencies.add(trio.current_time() - began)
            self.sent += len(batch)
