"""Consume the flights with groups of two members, which count what they receive."""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from zlib import crc32

import trio

from triomq.cli.histogram import Histogram
from triomq.client import ConsumeContext, MessageExt, PushConsumer
from triomq.demo.flights import Expected, Flight
from triomq.demo.load import NUMBER_PROPERTY, TOPIC
from triomq.protocol.errors import TriomqError

MEMBERS: Final = 2
_POLL_S: Final = 0.02
_STALLED_S: Final = 20.0
_ASSIGN_S: Final = 15.0


class StalledError(TriomqError):
    """The consumers did not make the expected progress."""


class Member:
    """One consumer of a group.

    Attributes:
        by_carrier: flights received.
        checksum: sum of their lines' CRC-32.
    """

    def __init__(self, group: "Group") -> None:
        self.by_carrier: Counter[str] = Counter()
        self.checksum = 0
        self.consumer: PushConsumer
        self._group = group

    def queues(self) -> int:
        """Return how many queues it holds, without that of the retry topic."""
        return sum(queue.topic == TOPIC for queue in self.consumer.statistics().queues)

    async def handle(self, messages: list[MessageExt], _context: ConsumeContext) -> None:
        """Count messages; called by the consumer."""
        if self._group.sent_at is not None:
            self._group.note_live(messages, self._group.sent_at)
        else:
            born_ms = messages[0].born_timestamp
            self._group.bulk_latencies.add(max(0, time.time_ns() // 1_000_000 - born_ms) / 1000, len(messages))
        for message in messages:
            self.by_carrier[message.tags or ""] += 1
            self.checksum += crc32(message.body)


class Group:
    """The members of a group.

    Attributes:
        sent_at: in the live part, when each flight was sent, by number; ``None`` in the bulk.
        live_latencies: from send to handler.
        bulk_latencies: from the creation of a batch to the handler, including the time in the backlog.
    """

    def __init__(self, name: str, expression: str, expected: Expected) -> None:
        self.name: Final = name
        self.expression: Final = expression
        self.expected: Final = expected
        self.members: Final = [Member(self) for _ in range(MEMBERS)]
        self.sent_at: list[float] | None = None
        self.live_latencies: Final = Histogram()
        self.bulk_latencies: Final = Histogram()

    @property
    def consumed(self) -> int:
        """Flights received by all members."""
        return sum(member.by_carrier.total() for member in self.members)

    def expected_of(self, flights: Sequence[Flight]) -> int:
        """Return how many of these flights the group wants."""
        return sum(flight.carrier in self.expected.by_carrier for flight in flights)

    def note_live(self, messages: list[MessageExt], sent_at: list[float]) -> None:
        """Record the latency of live flights."""
        now = trio.current_time()
        for message in messages:
            self.live_latencies.add(now - sent_at[int(message.properties[NUMBER_PROPERTY])])

    def differences(self) -> list[str]:
        """Compare the received flights with the data; nothing if all arrived once, unchanged."""
        got: Counter[str] = Counter()
        for member in self.members:
            got += member.by_carrier
        wrong = [
            f"{carrier}: {got[carrier]} instead of {self.expected.by_carrier[carrier]}"
            for carrier in sorted(got.keys() | self.expected.by_carrier.keys())
            if got[carrier] != self.expected.by_carrier[carrier]
        ]
        if not wrong and sum(member.checksum for member in self.members) != self.expected.checksum:
            wrong.append("the counts are right, but the contents are not")
        return wrong

    async def wait_consumed(self, count: int) -> None:
        """Wait until so many flights arrived, or none arrived for 20 s."""
        seen, seen_at = -1, trio.current_time()
        while self.consumed < count and trio.current_time() < seen_at + _STALLED_S:
            if self.consumed != seen:
                seen, seen_at = self.consumed, trio.current_time()
            await trio.sleep(_POLL_S)

    async def wait_balanced(self, queues: int) -> None:
        """Wait until each member has its share of the queues: a later move could deliver messages twice.

        Raises:
            StalledError: this took over 15 s.
        """
        with trio.move_on_after(_ASSIGN_S):
            while any(member.queues() != queues // MEMBERS for member in self.members):  # noqa: ASYNC110  # there is no event
                await trio.sleep(_POLL_S)
            return
        held = [member.queues() for member in self.members]
        raise StalledError(f"group {self.name}: its members hold {held} of {queues} queues after {_ASSIGN_S:g} s")


@asynccontextmanager
async def open_groups(groups: list[Group], namesrv: str) -> AsyncGenerator[None]:
    """Run all members while the block runs; they store their offsets when they leave."""
    async with AsyncExitStack() as stack:
        for group in groups:
            for member in group.members:
                member.consumer = PushConsumer(
                    group.name,
                    namesrv=namesrv,
                    on_messages=member.handle,
                    subscriptions={TOPIC: group.expression},
                    start="earliest",
                    max_concurrency=4,
                )
                await stack.enter_async_context(member.consumer)
        yield
