"""``python -m triomq.demo``: flights go through a broker to two consumer groups, and the counts are compared.

The tail number is the sharding key: all flights of an aircraft go to one queue, in order.  The first flights are sent
one by one, to measure the latency; the rest in batches, as fast as possible.
"""

import statistics
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import trio

from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import write_table, write_text
from triomq.client import Admin, Message, MessageQueue, Producer, select_by_hash
from triomq.demo.flights import Flight, read_flights
from triomq.demo.groups import TOPIC, Group
from triomq.demo.program import open_broker_process, run_program

QUEUES: Final = 8
_LIVE_FLIGHTS: Final = 3_000
_LIVE_RATE: Final = 1_000
_BATCH: Final = 64
_YIELD_EVERY: Final = 2_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    description = "Start a broker, send the flights of New York City in 2013, consume them with two groups, count."
    return run_program(argv, "demo", description, _run, may_keep=True)


async def _run(folder: Path, limit: int | None) -> int:
    began = trio.current_time()
    flights = await trio.to_thread.run_sync(read_flights, limit)
    groups = [Group("every-flight"), Group("UA-or-DL", ("UA", "DL"))]
    async with open_broker_process(folder) as broker, Admin(namesrv=broker.namesrv) as admin:
        write_text(f"broker {broker.broker}, name server {broker.namesrv}, process {broker.pid}\n")
        await admin.create_topic(TOPIC, queues=QUEUES)
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer("demo", namesrv=broker.namesrv))
            for group in groups:
                await stack.enter_async_context(group.open(broker.namesrv, QUEUES))
            await send_live(producer, flights[:_LIVE_FLIGHTS], groups)
            sent_s, consumed_s = await _send_bulk(producer, flights[_LIVE_FLIGHTS:], groups)
        problems = [problem for group in groups for problem in group.differences(flights)]
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


async def send_live(producer: Producer, flights: Sequence[Flight], groups: Sequence[Group]) -> None:
    """Send one by one, 1000 a second, and wait until all arrived."""
    write_text(f"sending {len(flights)} flights one by one, {_LIVE_RATE} a second\n")
    began = trio.current_time()
    for number, flight in enumerate(flights):
        await trio.sleep_until(began + number / _LIVE_RATE)
        for group in groups:
            group.sent_at[flight.line] = trio.current_time()
        await producer.send(_message(flight), selector=select_by_hash)
    for group in groups:
        await group.wait_consumed(len(group.wanted(flights)))
        group.sent_at.clear()


async def _send_bulk(producer: Producer, flights: Sequence[Flight], groups: Sequence[Group]) -> tuple[float, float]:
    """Send in batches; return after how many seconds all were sent, and all consumed."""
    write_text(f"sending {len(flights)} flights in batches of {_BATCH}\n")
    began = trio.current_time()
    wanted = [group.consumed + len(group.wanted(flights)) for group in groups]
    queues = await producer.publish_queues(TOPIC)
    by_queue: dict[MessageQueue, list[Message]] = {queue: [] for queue in queues}
    for number, flight in enumerate(flights):
        message = _message(flight)
        by_queue[select_by_hash(queues, message, None)].append(message)
        if number % _YIELD_EVERY == 0:
            await trio.lowlevel.checkpoint()

    async def send_queue(queue: MessageQueue, messages: list[Message]) -> None:
        for begin in range(0, len(messages), _BATCH):  # one at a time, which keeps the order
            await producer.send_batch(messages[begin : begin + _BATCH], queue=queue)

    async with trio.open_nursery() as nursery:
        for queue, messages in by_queue.items():
            nursery.start_soon(send_queue, queue, messages)
    sent_s = trio.current_time() - began
    for group, count in zip(groups, wanted, strict=True):
        await group.wait_consumed(count)
    return sent_s, trio.current_time() - began


def _message(flight: Flight) -> Message:
    return Message(TOPIC, flight.line, tags=flight.carrier, sharding_key=flight.tail_number)


def _report(flights: Sequence[Flight], groups: Sequence[Group], sent_s: float, consumed_s: float) -> None:
    rows: list[tuple[str, int, str, str]] = [("sent", len(flights), f"{len(flights) / sent_s:,.0f}", "")]
    for group in groups:
        median_ms = statistics.median(group.latencies_s) * 1000 if group.latencies_s else 0.0
        name = f"group {group.name}, tags {' || '.join(group.carriers) or '*'}"
        rows.append((name, group.consumed, f"{group.consumed / consumed_s:,.0f}", f"{median_ms:.2f}"))
        rows += [(f"  member {number}", one.total(), "", "") for number, one in enumerate(group.received, 1)]
    write_table(("FLIGHTS", "COUNT", "PER SECOND", "MEDIAN SEND TO HANDLER, MS"), rows)


if __name__ == "__main__":
    sys.exit(main())
