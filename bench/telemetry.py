"""What OpenTelemetry costs our client: CPU time of a send, of a message in a batch and of a handled message.

The settings take turns in one process, so that a busy machine is unfair to none; the least of all rounds counts.
"""

import argparse
import time
from contextlib import AsyncExitStack
from typing import Any, Final

import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from bench.report import print_table
from triomq.client import ClientConfig, Message, MessageExt, OpenTelemetry, Producer, PushConsumer
from triomq.testing import BrokerProcess

_TASKS: Final = 16
_BODY: Final = b"x" * 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--rounds", type=int, default=15, help="turns of each setting (default 15)")
    parser.add_argument("--count", type=int, default=2_000, help="messages of a turn (default 2000)")


def run(options: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    with BrokerProcess() as broker:
        figures = trio.run(_measure, options, broker)
    rows = [[setting, *(f"{min(rounds):.1f}" for rounds in kinds.values())] for setting, kinds in figures.items()]
    print_table("CPU time of the client, us for each message", ["OpenTelemetry", "send", "in a batch", "handled"], rows)
    return 0


def _sdk(sampler: Sampler) -> ClientConfig:
    tracers, meters = TracerProvider(sampler=sampler), MeterProvider([InMemoryMetricReader()])
    return ClientConfig(open_telemetry=OpenTelemetry(tracer_provider=tracers, meter_provider=meters))


async def _measure(options: argparse.Namespace, broker: Any) -> dict[str, dict[str, list[float]]]:
    settings = {
        "off": ClientConfig(),
        "on, no SDK": ClientConfig(open_telemetry=True),
        "on, not sampled": _sdk(ALWAYS_OFF),
        "on, sampled": _sdk(ALWAYS_ON),
    }
    figures: dict[str, dict[str, list[float]]] = {name: {"send": [], "batch": [], "handled": []} for name in settings}
    async with AsyncExitStack() as stack:
        producers = {
            name: await stack.enter_async_context(Producer("bench", namesrv=broker.namesrv, config=config))
            for name, config in settings.items()
        }
        for number in range(options.rounds):
            for name, producer in producers.items():
                topic = f"bench-{number}-{name.translate({32: None, 44: None})}"
                broker.create_topic(topic, queues=1)
                await producer.publish_queues(topic)
                for kind, send in (("send", _send_each), ("batch", _send_batch)):
                    began = time.process_time()
                    await send(producer, topic, options.count)
                    figures[name][kind].append((time.process_time() - began) / options.count * 1e6)
                began = time.process_time()
                await _handle(broker.namesrv, settings[name], topic, 2 * options.count)
                figures[name]["handled"].append((time.process_time() - began) / (2 * options.count) * 1e6)
    return figures


async def _send_each(producer: Producer, topic: str, count: int) -> None:
    async def work() -> None:
        for _ in range(count // _TASKS):
            await producer.send(Message(topic, _BODY, tags="A"))

    async with trio.open_nursery() as nursery:
        for _ in range(_TASKS):
            nursery.start_soon(work)


async def _send_batch(producer: Producer, topic: str, count: int) -> None:
    await producer.send_batch([Message(topic, _BODY, tags="A")] * count)


async def _handle(namesrv: str, config: ClientConfig, topic: str, count: int) -> None:
    done, left = trio.Event(), count

    async def on_message(_: MessageExt) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with PushConsumer(
        f"G-{topic}",
        namesrv=namesrv,
        config=config,
        on_message=on_message,
        subscriptions={topic: "*"},
        start="earliest",
    ):
        await done.wait()
