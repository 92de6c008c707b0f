"""Pulls that wait: what thousands of them cost an idle broker, and how fast one is woken.

Each pull waits at a different queue, as long as those of Java's push consumer, and is repeated when answered.
The connections are plain sockets, so that the load generator costs little.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from bench.processes import Server, triomq_server
from bench.report import latencies_ms, print_table, text_of, write_json
from triomq.client import Admin, Message, MessageQueue, Producer
from triomq.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from triomq.protocol.errors import TriomqError
from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.record.record import decode_records
from triomq.protocol.requests.messages import PullMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import Frame, FrameSplitter

_TOPIC: Final = "waiting"
_WOKEN_QUEUES: Final = 50
_FLAGS: Final = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--connections", type=int, default=500, help="connections (default 500)")
    parser.add_argument("--pulls", type=int, default=10, help="waiting pulls of each (default 10)")
    parser.add_argument("--suspend", type=float, default=15.0, help="seconds that a pull waits (default 15, as Java)")
    parser.add_argument("--seconds", type=float, default=10.0, help="idle seconds that are measured (default 10)")
    parser.add_argument("--wakes", type=int, default=500, help="messages that each wake one pull (default 500)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Start our broker and measure; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="triomq-bench-") as folder, triomq_server(Path(folder)) as server:
        try:
            figures = trio.run(_measure, options, server)
        except TriomqError as exc:
            print(f"bench: {exc}", file=sys.stderr)
            return 3
    print_table("bench waiting", ["figure", "value"], [[name, text_of(value)] for name, value in figures.items()])
    if options.json:
        write_json(options.json, figures)
    return 0


class _Load:
    """All connections.

    Attributes:
        answers: how many pulls were answered.
        woken_s: the time from before a send until the pull at its queue had the message.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.answers = 0
        self.woken_s: list[float] = []
        self._options = options
        self._offsets: dict[int, int] = {}
        self._woken = trio.Event()

    def _pull(self, queue_id: int) -> bytes:
        """Return a pull for the next message of a queue; its opaque is the number of the queue."""
        header = PullMessageRequestHeader(
            consumer_group="waiting-group",
            topic=_TOPIC,
            queue_id=queue_id,
            queue_offset=QueueOffset(self._offsets.get(queue_id, 0)),
            max_msg_nums=32,
            sys_flag=_FLAGS,
            commit_offset=QueueOffset(0),
            suspend_timeout_millis=round(self._options.suspend * 1000),
            subscription="*",
            sub_version=0,
        )
        return RemotingCommand(RequestCode.PULL_MESSAGE, queue_id, ext_fields=header.encode()).encode()

    async def hold(
        self, port: int, first_queue: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the pulls of one connection waiting until cancelled."""
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            queues = range(first_queue, first_queue + self._options.pulls)
            await stream.send_all(b"".join(map(self._pull, queues)))
            task_status.started()
            splitter = FrameSplitter()
            async for data in stream:
                frames, error = splitter.split(data)
                if error is not None:
                    raise error
                await stream.send_all(b"".join(map(self._answered, frames)))

    def _answered(self, frame: Frame) -> bytes:
        response = RemotingCommand.decode(frame)
        self.answers += 1
        if response.code == ResponseCode.SUCCESS:
            (message,) = decode_records(response.body)
            self.woken_s.append((time.perf_counter_ns() - int.from_bytes(message.body)) / 1e9)
            self._offsets[response.opaque] = message.queue_offset + 1
            self._woken.set()
        return self._pull(response.opaque)

    async def wake(self, producer: Producer) -> None:
        """Send messages to some queues, each when the one before was received; the first ones do not count."""
        queues = range(0, self._options.connections * self._options.pulls, self._options.pulls)
        woken = random.sample(queues, min(_WOKEN_QUEUES, len(queues)))
        for number in range(len(woken) + self._options.wakes):
            if number == len(woken):
                self.woken_s.clear()  # the files of all these queues exist now
            self._woken = trio.Event()
            queue = MessageQueue(_TOPIC, "broker-a", woken[number % len(woken)])
            await producer.send(Message(_TOPIC, time.perf_counter_ns().to_bytes(8)), queue=queue)
            with trio.fail_after(10):
                await self._woken.wait()


async def _measure(options: argparse.Namespace, server: Server) -> dict[str, object]:
    load = _Load(options)
    async with Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic(_TOPIC, queues=options.connections * options.pulls)
        route = await admin.topic_route(_TOPIC)
        port = int(next(iter(route.broker_datas[0].broker_addrs.values())).rpartition(":")[2])
    async with trio.open_nursery() as nursery:
        for number in range(options.connections):
            await nursery.start(load.hold, port, number * options.pulls)
        await trio.sleep(1)
        answers, cpu_s = load.answers, server.cpu_s()
        await trio.sleep(options.seconds)
        answers, cpu_s = load.answers - answers, server.cpu_s() - cpu_s
        async with Producer("bench-waiting", namesrv=server.namesrv) as producer:
            await load.wake(producer)
        memory_mib = server.memory_mib()
        nursery.cancel_scope.cancel()
    return {
        "connections": options.connections,
        "waiting pulls": options.connections * options.pulls,
        "suspend_s": options.suspend,
        "idle_cpu_percent": 100 * cpu_s / options.seconds,
        "answers_per_s": answers / options.seconds,
        "memory_mib": memory_mib,
        **{f"wake_{name}": value for name, value in latencies_ms(load.woken_s).items()},
    }
