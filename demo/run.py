"""The demo from start to end."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from triomq.cli.output import write_text
from triomq.client import Admin, Producer
from triomq.client.nursery import open_service_nursery
from triomq.demo.broker_process import BrokerProcess, open_broker_process
from triomq.demo.flights import Flight, expect, read_flights
from triomq.demo.groups import Group, open_groups
from triomq.demo.load import TOPIC, Sending

QUEUES: Final = 8
LIVE_FLIGHTS: Final = 3_000
CHOSEN: Final = ("UA", "DL")
_REFRESH_S: Final = 0.1


@dataclass(kw_only=True)
class Results:
    """The figures of a run.

    Attributes:
        flights: number of flights.
        read_s, total_s: time to read the data, and in all.
        broker: the broker that served it.
        sending: what was sent.
        groups: what was consumed.
        stored: messages in the topic's queues, according to the broker.
        lags: lag of each group, according to the broker, after its members left.
        drained_s: from the first flight of the bulk to the last delivery.
        cpu_s: processor time of this process.
    """

    flights: int
    broker: BrokerProcess
    sending: Sending
    groups: list[Group]
    read_s: float = 0.0
    total_s: float = 0.0
    cpu_s: float = 0.0
    stored: int = 0
    drained_s: float = 0.0
    lags: dict[str, int] = field(default_factory=dict)

    def sending_problems(self) -> list[str]:
        """Return the problems of sending."""
        found = []
        if self.sending.sent != self.flights:
            found.append(f"sent {self.sending.sent} of {self.flights} flights")
        if self.stored != self.flights:
            found.append(f"the broker stored {self.stored} of {self.flights} flights")
        return found

    def problems(self) -> list[str]:
        """Return all problems."""
        found = self.sending_problems()
        for group in self.groups:
            found += [f"group {group.name}: {difference}" for difference in group.differences()]
            # With a filter a queue may end with messages that the group does not want: then there is a lag.
            if group.expression == "*" and self.lags.get(group.name) != 0:
                found.append(f"group {group.name}: lag {self.lags.get(group.name)} after the end")
        return found


async def run_demo(folder: Path, limit: int | None) -> Results:
    """Run everything with a store below ``folder``.

    Raises:
        TriomqError: the data is missing, the broker did not start, or a request failed.
    """
    console = Console()
    began, cpu_began = time.monotonic(), time.process_time()
    with console.status("reading the flights"):
        flights = await trio.to_thread.run_sync(read_flights, limit)
    read_s = time.monotonic() - began
    groups = [
        Group("every-flight", "*", expect(flights)),
        Group("-or-".join(CHOSEN), " || ".join(CHOSEN), expect(flights, frozenset(CHOSEN))),
    ]
    async with open_broker_process(folder) as broker:
        address = f"broker {broker.broker}, name server {broker.namesrv}, process {broker.pid}"
        write_text(f"{address}, ready after {broker.ready_s:.2f} s\n")
        async with Admin(namesrv=broker.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
            async with Producer("demo", namesrv=broker.namesrv) as producer:
                results = Results(
                    flights=len(flights), broker=broker, sending=Sending(producer), groups=groups, read_s=read_s
                )
                await _send_and_consume(results, flights, console)
            stats = await admin.topic_stats(TOPIC)
            results.stored = sum(queue.max_offset - queue.min_offset for queue in stats.values())
            for group in groups:
                results.lags[group.name] = sum(row.lag for row in await admin.group_lag(group.name, TOPIC))
    results.total_s = time.monotonic() - began
    results.cpu_s = time.process_time() - cpu_began
    return results


async def _send_and_consume(results: Results, flights: list[Flight], console: Console) -> None:
    sending, groups = results.sending, results.groups
    live, bulk = flights[:LIVE_FLIGHTS], flights[LIVE_FLIGHTS:]
    async with open_groups(groups, results.broker.namesrv):
        with console.status("the members share the queues"):
            for group in groups:
                await group.wait_balanced(QUEUES)
        async with _progress(results, console):
            for group in groups:
                group.sent_at = sending.sent_at
            await sending.send_live(live)
            for group in groups:
                await group.wait_consumed(group.expected_of(live))
                group.sent_at = None
            began = trio.current_time()
            await sending.send_bulk(bulk)
            for group in groups:
                await group.wait_consumed(group.expected.by_carrier.total())
            results.drained_s = trio.current_time() - began


@asynccontextmanager
async def _progress(results: Results, console: Console) -> AsyncGenerator[None]:
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:>7} of {task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        sent = progress.add_task("sent", total=results.flights)
        consumed = [
            (progress.add_task(f"consumed {group.name}", total=group.expected.by_carrier.total()), group)
            for group in results.groups
        ]

        def refresh() -> None:
            progress.update(sent, completed=results.sending.sent)
            for task, group in consumed:
                progress.update(task, completed=group.consumed)

        async def keep_refreshing() -> None:
            while True:
                refresh()
                await trio.sleep(_REFRESH_S)

        async with open_service_nursery() as nursery:
            nursery.start_soon(keep_refreshing)
            yield
        refresh()
