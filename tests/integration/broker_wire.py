"""A broker on free loopback ports, and a peer that speaks frames to it, or anything else."""

import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from tests.commands import make_command
from tests.processes import tests_disk
from triomq.broker.addresses import Address
from triomq.broker.config import BrokerConfig, Listener
from triomq.broker.network.listeners import VIP_PORT_DISTANCE
from triomq.broker.opening import open_broker
from triomq.broker.server import Broker
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter
from triomq.storage.config import StoreConfig

FREE_PORTS: Final = Listener(broker=Address("127.0.0.1", 0), namesrv=Address("127.0.0.1", 0))
_STORE: Final = {
    "commit_log_file_size_bytes": 16 * 1024**2,
    "consume_queue_file_size_bytes": 20 * 2000,
    "disk_clean_ratio": 100,
    "disk_full_ratio": 100,  # other programs may have filled most of the disk
}


def broker_config(root: Path, store: Mapping[str, Any] | None = None, **settings: Any) -> BrokerConfig:
    """Return settings for a broker with small files on any disk and free ports."""
    store_config = StoreConfig(root=root, **{**_STORE, **(store or {})})
    return BrokerConfig(store=store_config, **{"listeners": (FREE_PORTS,), **settings})


@asynccontextmanager
async def running(root: Path, store: Mapping[str, Any] | None = None, **settings: Any) -> AsyncGenerator[Broker]:
    """Serve until the block is left; with a clock that only a test moves, a slow machine causes no timeouts."""
    async with open_broker(broker_config(root, store, **settings), file_system=tests_disk()) as broker:
        broker.worker.clock = trio.current_time
        yield broker


def broker_port(broker: Broker) -> int:
    return broker.addresses["default"][0].port


def namesrv_port(broker: Broker) -> int:
    return broker.addresses["default"][1].port


def namesrv_address(broker: Broker) -> str:
    """Return the address for the clients' ``namesrv``."""
    return f"127.0.0.1:{namesrv_port(broker)}"


def vip_port(broker: Broker) -> int:
    return broker_port(broker) - VIP_PORT_DISTANCE


def send_fields(topic: str = "T", queue_id: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the fields of a send request as a Java producer writes them."""
    return {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0, **fields}


def pull_fields(topic: str = "T", queue_offset: int = 0, queue_id: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the fields of a pull request with its expression; ``sysFlag`` 6 allows the broker to hold it."""
    return {
        "consumerGroup": "G", "topic": topic, "queueId": queue_id, "queueOffset": queue_offset, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subVersion": 0, "subscription": "*",
        **fields,
    }  # fmt: skip


def request(
    code: int,
    fields: Mapping[str, Any] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 1,
    flag: int = 0,
    **rest: Any,
) -> bytes:
    """Return a request's frame."""
    text = {name: str(value) for name, value in (fields or {}).items()}
    return make_command(code, opaque, flag, text, body, **rest).encode()


class Wire:
    """One connection to a broker."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.received: list[RemotingCommand] = []  # not asked for yet
        self._splitter = FrameSplitter()
        self._opaques = itertools.count(1000)

    async def send(self, data: bytes) -> None:
        """Send any bytes."""
        await self.stream.send_all(data)

    async def receive(self) -> RemotingCommand | None:
        """Return the next frame, ``None`` at the end of the connection."""
        while not self.received:
            try:
                data = await self.stream.receive_some()
            except trio.BrokenResourceError:  # closed with bytes unread
                return None
            if not data:
                return None
            frames, error = self._splitter.split(data)
            assert error is None
            self.received += map(RemotingCommand.decode, frames)
        return self.received.pop(0)

    async def next(self) -> RemotingCommand:
        """Return the next frame; there must be one."""
        command = await self.receive()
        assert command is not None, "the broker closed the connection"
        return command

    async def ask(
        self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"", **rest: Any
    ) -> RemotingCommand:
        """Send a request and return its response; nothing else may come before."""
        opaque = next(self._opaques)
        await self.send(request(code, fields, body, opaque=opaque, **rest))
        response = await self.next()
        assert (response.opaque, response.flag) == (opaque, CommandFlag.RESPONSE)
        return response

    async def put(self, topic: str = "T", body: bytes = b"hello", **fields: Any) -> RemotingCommand:
        """Send one message."""
        return await self.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, **fields), body)

    async def works(self) -> bool:
        """Whether the broker still serves this connection."""
        return (await self.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})).code == ResponseCode.SUCCESS

    async def is_closed_by_broker(self) -> bool:
        """Wait for the end of the connection; ``False`` if something else comes first."""
        return await self.receive() is None


@asynccontextmanager
async def connected(port: int, host: str = "127.0.0.1") -> AsyncGenerator[Wire]:
    """Connect to a port of a broker."""
    stream = await trio.open_tcp_stream(host, port)
    async with stream:
        yield Wire(stream)


async def until(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition is true; the test's own time limit ends it else."""
    while not condition():
        await trio.lowlevel.checkpoint()


async def wait_for(condition: Callable[[], bool], within_s: float = 30) -> None:
    """Return soon after the condition is true, which other tasks' handlers or other processes see to."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110  # no task could set an event
            await trio.sleep(0.01)
