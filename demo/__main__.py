"""``python -m triomq.demo``: flights go through a broker to two consumer groups, and the counts are compared.

The tail number is the sharding key: all flights of an aircraft go to one queue, in order.  The first flights are sent
one by one, to measure the latency; the rest in batches, as fast as possible.
"""

import statistics
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from triomq.cli.errors import ExitCode
from triomq.cli.output import write_table, write_text
from triomq.client import (
    Admin,
    ConsumeContext,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    select_by_hash,
)
from triomq.demo.program import QUEUES, TOPIC, DemoError, run_program

_MEMBERS: Final = 2
_LIVE_FLIGHTS: Final = 3_000
_LIVE_RATE: Final = 1_000
_BATCH: Final = 64
_LIMIT_S: Final = 120.0
_POLL_S: Final = 0.02
#: The time of the send, in flights that measure the latency.
_SENT_AT: Final = "sent-at"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    description = "Start a broker, send the flights of New York City in 2013, consume them with two groups, count."
    return run_program(argv, "demo", description, _run)


class Group:
    """A consumer group that wants the flights of some carriers, and counts what its members receive.

    Attributes:
        tags: its subscription.
        wanted, received: lines that should arrive, and that arrived, with how often.
        counts: flights by member.
        latencies_s: from send to handler, of the flights that measure it.
    """

    def __init__(self, name: str, flights: Sequence[Message], carriers: Collection[str] = ()) -> None:
        self.name: Final = name
        self.tags: Final = " || ".join(carriers) or "*"
        self.wanted: Final = Counter(one.body for one in flights if not carriers or one.tags in carriers)
        self.received: Final[Counter[bytes]] = Counter()
        self.counts: Final = [0] * _MEMBERS
        self.latencies_s: Final[list[float]] = []

    def problems(self) -> list[str]:
        """Compare what arrived with the data; nothing if each flight that the group wants arrived once, unchanged."""
        missing, unwanted = (self.wanted - self.received).total(), (self.received - self.wanted).total()
        if not missing and not unwanted:
            return []
        return [f"group {self.name}: {missing} flights are missing, {unwanted} are changed, unwanted or too many"]

    async def handle(self, member: int, messages: list[MessageExt], _context: ConsumeContext | None = None) -> None:
        """Count messages; a member's consumer calls this."""
        now = trio.current_time()
        self.counts[member] += len(messages)
        self.received.update([message.body for message in messages])
        sent_at = (message.user_properties.get(_SENT_AT) for message in messages)
        self.latencies_s.extend(now - float(text) for text in sent_at if text is not None)

    async def wait_consumed(self) -> None:
        """Wait until as many flights arrived as the group wants.

        Raises:
            DemoError: they did not within two minutes.
        """
        wanted = self.wanted.total()
        await _wait_until(lambda: sum(self.counts) >= wanted, f"group {self.name}: {wanted} flights did not arrive")

    @asynccontextmanager
    async def open(self, namesrv: str) -> AsyncGenerator[None]:
        """Run the members while the block runs, which starts once each has its share of the queues.

        A queue that moves later could deliver messages twice.

        Raises:
            DemoError: the members did not share the queues within two minutes.
        """
        async with AsyncExitStack() as stack:
            consumers = [
                await stack.enter_async_context(
                    PushConsumer(
                        self.name,
                        namesrv=namesrv,
                        on_messages=partial(self.handle, member),
                        subscriptions={TOPIC: self.tags},
                        start="earliest",
                        max_concurrency=4,
                    )
                )
                for member in range(_MEMBERS)
            ]

            def is_shared() -> bool:
                held = [sum(queue.topic == TOPIC for queue in one.statistics().queues) for one in consumers]
                return held == [QUEUES // _MEMBERS] * _MEMBERS

            await _wait_until(is_shared, f"group {self.name}: its members did not share {QUEUES} queues")
            yield


async def _wait_until(is_done: Callable[[], bool], text: str) -> None:
    with trio.move_on_after(_LIMIT_S):
        while not is_done():  # noqa: ASYNC110  # no event exists
            await trio.sleep(_POLL_S)
        return
    raise DemoError(f"{text} within {_LIMIT_S:g} s")


async def _run(lines: list[bytes], namesrv: str, _folder: Path) -> int:
    began = trio.current_time()
    flights = make_messages(lines)
    groups = [Group("every-flight", flights), Group("UA-or-DL", flights, ("UA", "DL"))]
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer("demo", namesrv=namesrv))
            for group in groups:
                await stack.enter_async_context(group.open(namesrv))
            await _send_live(producer, flights[:_LIVE_FLIGHTS])
            bulk_began = trio.current_time()
            await _send_bulk(producer, flights[_LIVE_FLIGHTS:])
            sent_s = trio.current_time() - bulk_began
            for group in groups:
                await group.wait_consumed()
            consumed_s = trio.current_time() - bulk_began
        problems = [problem for group in groups for problem in group.problems()]
        stored = sum(one.max_offset - one.min_offset for one in (await admin.topic_stats(TOPIC)).values())
        if stored != len(flights):
            problems.append(f"the broker stored {stored} of {len(flights)} flights")
        # With a filter a queue may end with messages that the group does not want: then it has a lag.
        if lag := sum(row.lag for row in await admin.group_lag(groups[0].name, TOPIC)):
            problems.append(f"group {groups[0].name}: lag {lag} after the end")
    _report(flights, groups, sent_s, consumed_s)
    for problem in problems:
        write_text(f"WRONG {problem}\n")
    if not problems:
        write_text(
            "RIGHT: every flight was stored once and delivered once to each group that wants it, unchanged; "
            f"{trio.current_time() - began:.1f} s\n"
        )
    return ExitCode.FAILED if problems else ExitCode.OK


def _report(flights: Sequence[Message], groups: Sequence[Group], sent_s: float, consumed_s: float) -> None:
    rows: list[tuple[str, int, str, str]] = [("sent", len(flights), f"{len(flights) / sent_s:,.0f}", "")]
    for group in groups:
        median_ms, count = statistics.median(group.latencies_s or [0.0]) * 1000, sum(group.counts)
        name = f"group {group.name}, tags {group.tags}"
        rows.append((name, count, f"{count / consumed_s:,.0f}", f"{median_ms:.2f}"))
        rows += [(f"  member {number}", count, "", "") for number, count in enumerate(group.counts, 1)]
    write_table(("FLIGHTS", "COUNT", "PER SECOND", "MEDIAN SEND TO HANDLER, MS"), rows)


def make_messages(lines: Sequence[bytes]) -> list[Message]:
    """Return a message for each line below the heading: its carrier is the tag, its tail number the sharding key."""
    columns = lines[0].split(b",")
    carrier, tail_number = columns.index(b"carrier"), columns.index(b"tailnum")
    return [
        Message(TOPIC, line, tags=cells[carrier].decode(), sharding_key=cells[tail_number].decode())
        for line in lines[1:]
        if (cells := line.split(b","))
    ]


async def _send_live(producer: Producer, flights: Sequence[Message]) -> None:
    """Send one by one, 1000 a second."""
    write_text(f"sending {len(flights)} flights one by one, {_LIVE_RATE} a second\n")
    began = trio.current_time()
    for number, flight in enumerate(flights):
        await trio.sleep_until(began + number / _LIVE_RATE)
        timed = replace(flight, properties={_SENT_AT: str(trio.current_time())})
        await producer.send(timed, selector=select_by_hash)


async def _send_bulk(producer: Producer, flights: Sequence[Message]) -> None:
    """Send in batches, one at a time to each queue, which keeps the order."""
    write_text(f"sending {len(flights)} flights in batches of {_BATCH}\n")
    queues = await producer.publish_queues(TOPIC)
    by_queue: dict[MessageQueue, list[Message]] = {queue: [] for queue in queues}
    for flight in flights:
        by_queue[select_by_hash(queues, flight, None)].append(flight)

    async def send_queue(queue: MessageQueue, messages: list[Message]) -> None:
        for begin in range(0, len(messages), _BATCH):
            await producer.send_batch(messages[begin : begin + _BATCH], queue=queue)

    async with trio.open_nursery() as nursery:
        for queue, messages in by_queue.items():
            nursery.start_soon(send_queue, queue, messages)


if __name__ == "__main__":
    sys.exit(main())
