"""Consume the flights with groups of two members, which count them."""

from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from zlib import crc32

import trio

from triomq.client import ConsumeContext, MessageExt, PushConsumer
from triomq.demo.flights import Flight
from triomq.demo.program import DemoError

TOPIC: Final = "flights"
MEMBERS: Final = 2
_POLL_S: Final = 0.02
_LIMIT_S: Final = 120.0


class Group:
    """A consumer group that wants the flights of some carriers, and counts what its members receive.

    Attributes:
        carriers: that it wants; empty: all.
        received: flights by carrier and member.
        checksum: sum of the CRC-32 of the lines: independent of order, different if a line is missing or changed.
        sent_at: when each of the flights was sent that measure the latency, by their line.
        latencies_s: from their send to their handler.
    """

    def __init__(self, name: str, carriers: Collection[str] = ()) -> None:
        self.name: Final = name
        self.carriers: Final = carriers
        self.received: Final[list[Counter[str]]] = [Counter() for _ in range(MEMBERS)]
        self.checksum = 0
        self.sent_at: dict[bytes, float] = {}
        self.latencies_s: Final[list[float]] = []
        self._consumers: list[PushConsumer] = []

    @property
    def consumed(self) -> int:
        """Flights received by all members."""
        return sum(counter.total() for counter in self.received)

    def wanted(self, flights: Sequence[Flight]) -> list[Flight]:
        """Return the flights that the group wants."""
        return [flight for flight in flights if not self.carriers or flight.carrier in self.carriers]

    def differences(self, flights: Sequence[Flight]) -> list[str]:
        """Compare what arrived with the data; nothing if each flight arrived once, unchanged."""
        wanted = self.wanted(flights)
        expected, got = Counter(flight.carrier for flight in wanted), sum(self.received, Counter[str]())
        wrong = [
            f"group {self.name}: {carrier}: {got[carrier]} instead of {expected[carrier]}"
            for carrier in sorted(got.keys() | expected.keys())
            if got[carrier] != expected[carrier]
        ]
        if not wrong and self.checksum != sum(crc32(flight.line) for flight in wanted):
            wrong.append(f"group {self.name}: the counts are right, but the contents are not")
        return wrong

    async def handle(self, member: int, messages: list[MessageExt]) -> None:
        """Count messages; a member's consumer calls this."""
        now = trio.current_time()
        for message in messages:
            self.received[member][message.tags or ""] += 1
            self.checksum += crc32(message.body)
            if (sent_at := self.sent_at.pop(message.body, None)) is not None:
                self.latencies_s.append(now - sent_at)

    async def wait_consumed(self, count: int) -> None:
        """Wait until so many flights arrived, for two minutes at most."""
        with trio.move_on_after(_LIMIT_S):
            while self.consumed < count:  # noqa: ASYNC110  # no event exists
                await trio.sleep(_POLL_S)

    @asynccontextmanager
    async def open(self, namesrv: str, queues: int) -> AsyncGenerator[None]:
        """Run the members while the block runs, which starts once each has its share of the queues.

        Raises:
            DemoError: the members did not share the queues within two minutes.
        """
        async with AsyncExitStack() as stack:
            for member in range(MEMBERS):

                async def handle(messages: list[MessageExt], _: ConsumeContext, member: int = member) -> None:
                    await self.handle(member, messages)

                consumer = PushConsumer(
                    self.name,
                    namesrv=namesrv,
                    on_messages=handle,
                    subscriptions={TOPIC: " || ".join(self.carriers) or "*"},
                    start="earliest",
                    max_concurrency=4,
                )
                self._consumers.append(await stack.enter_async_context(consumer))
            await self._wait_balanced(queues)
            yield

    async def _wait_balanced(self, queues: int) -> None:
        """Wait until no queue will move: a move could deliver messages twice."""
        with trio.move_on_after(_LIMIT_S):
            while any(self._held(one) != queues // MEMBERS for one in self._consumers):  # noqa: ASYNC110  # no event exists
                await trio.sleep(_POLL_S)
            return
        raise DemoError(f"group {self.name}: its members did not share {queues} queues within {_LIMIT_S:g} s")

    def _held(self, consumer: PushConsumer) -> int:
        return sum(queue.topic == TOPIC for queue in consumer.statistics().queues)
