"""``python -m triomq.demo``: flights go through a broker to two consumer groups, and the counts are compared.

The tail number is the sharding key: all flights of an aircraft go to one queue, in order.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import trio

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
from triomq.demo.program import QUEUES, TOPIC, DemoError, report, run_program

#: Each group, and the tags that it subscribes to.
_GROUPS: Final = {"every-flight": "*", "UA-or-DL": "UA || DL"}
_MEMBERS: Final = 2
_BATCH: Final = 64
_LIMIT_S: Final = 120.0
_POLL_S: Final = 0.1

Received = Sequence[Counter[bytes]]
"""The lines that each member of a group has got, with how often."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    description = "Start a broker, send the flights of New York City in 2013, consume them with two groups, count."
    return run_program(argv, "demo", description, _run)


async def _run(lines: list[bytes], namesrv: str, _folder: Path) -> int:
    flights = make_messages(lines)
    wanted = {name: lines_of(flights, tags) for name, tags in _GROUPS.items()}
    received = {name: [Counter[bytes]() for _ in range(_MEMBERS)] for name in _GROUPS}

    def is_consumed() -> bool:
        return all(sum(got.total() for got in received[name]) >= wanted[name].total() for name in _GROUPS)

    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer("demo", namesrv=namesrv))
            for name, tags in _GROUPS.items():
                members = [_member(name, tags, got, namesrv) for got in received[name]]
                for member in members:
                    await stack.enter_async_context(member)
                # A queue that moves later could deliver messages twice.
                await _wait_until(lambda: _are_shared(members), f"group {name}: its members did not share the queues")  # noqa: B023  # at once
            write_text(f"sending {len(flights)} flights in batches of {_BATCH}\n")
            began = trio.current_time()
            await _send(producer, flights)
            sent_s = trio.current_time() - began
            await _wait_until(is_consumed, "flights did not arrive")
            consumed_s = trio.current_time() - began
        problems = [text for name in _GROUPS for text in differences(name, wanted[name], received[name])]
        stored = sum(one.max_offset - one.min_offset for one in (await admin.topic_stats(TOPIC)).values())
        if stored != len(flights):
            problems.append(f"the broker stored {stored} of {len(flights)} flights")
    _show(len(flights), received, sent_s, consumed_s)
    return report(problems, "every flight was stored once and delivered once to each group that wants it, unchanged")


def make_messages(lines: Sequence[bytes]) -> list[Message]:
    """Return a message for each line below the heading: its carrier is the tag, its tail number the sharding key."""
    columns = lines[0].split(b",")
    carrier, tail_number = columns.index(b"carrier"), columns.index(b"tailnum")
    return [
        Message(TOPIC, line, tags=cells[carrier].decode(), sharding_key=cells[tail_number].decode())
        for line in lines[1:]
        if (cells := line.split(b","))
    ]


def lines_of(flights: Sequence[Message], tags: str) -> Counter[bytes]:
    """Return the lines of the flights that a group with this subscription wants."""
    return Counter(flight.body for flight in flights if tags == "*" or flight.tags in tags.split(" || "))


def differences(name: str, wanted: Counter[bytes], received: Received) -> list[str]:
    """Compare what arrived with the data; nothing if each flight that the group wants arrived once, unchanged."""
    got = sum(received, Counter[bytes]())
    missing, unwanted = (wanted - got).total(), (got - wanted).total()
    if not missing and not unwanted:
        return []
    return [f"group {name}: {missing} flights are missing, {unwanted} are changed, unwanted or too many"]


def _member(name: str, tags: str, got: Counter[bytes], namesrv: str) -> PushConsumer:
    async def count(messages: list[MessageExt], _: ConsumeContext) -> None:
        got.update([message.body for message in messages])

    return PushConsumer(
        name,
        namesrv=namesrv,
        on_messages=count,
        subscriptions={TOPIC: tags},
        start="earliest",
        max_concurrency=4,
    )


def _are_shared(members: Sequence[PushConsumer]) -> bool:
    held = [sum(queue.topic == TOPIC for queue in member.statistics().queues) for member in members]
    return held == [QUEUES // _MEMBERS] * _MEMBERS


async def _wait_until(is_done: Callable[[], bool], text: str) -> None:
    with trio.move_on_after(_LIMIT_S):
        while not is_done():  # noqa: ASYNC110  # no event exists
            await trio.sleep(_POLL_S)
        return
    raise DemoError(f"{text} within {_LIMIT_S:g} s")


async def _send(producer: Producer, flights: Sequence[Message]) -> None:
    """Send in batches, one at a time to each queue, which keeps the order."""
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


def _show(sent: int, received: Mapping[str, Received], sent_s: float, consumed_s: float) -> None:
    rows = [("sent", sent, f"{sent / sent_s:,.0f}")]
    for name, members in received.items():
        counts = [got.total() for got in members]
        rows.append((f"group {name}, tags {_GROUPS[name]}", sum(counts), f"{sum(counts) / consumed_s:,.0f}"))
        rows += [(f"  member {number}", count, "") for number, count in enumerate(counts, 1)]
    write_table(("FLIGHTS", "COUNT", "PER SECOND"), rows)


if __name__ == "__main__":
    sys.exit(main())
