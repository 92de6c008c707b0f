"""Attacks on a client: by messages of another client, and by a false server.

Judged: the client's memory, and that it keeps working.
"""

import subprocess
import sys
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
import trio.testing

from tests.attack.measure import Attack, Target
from tests.unit.client.fake_broker import FakeBroker
from triomq.protocol.codes import RequestCode
from triomq.protocol.requests.groups import GetConsumerRunningInfoRequestHeader
from triomq.protocol.wire.command import RemotingCommand

_TOPIC: Final = "VICTIM"
_BOMB: Final = zlib.compress(bytes(64 * 1024**2), 9)  # 65 KB
_BOMBS: Final = 64
_COMPRESSED: Final = "1"
_WAIT_S: Final = 200  # a busy machine needs minutes for 64 bombs
_ROUND_BYTES: Final = 1024**2


@asynccontextmanager
async def victim(target: Target, kind: str, namesrv: str) -> AsyncGenerator["subprocess.Popen[str]"]:
    """Start a client, whose memory counts from its first line on; ends it."""
    process = _start(kind, namesrv)
    try:
        await line_of(process)
        target.watch(process.pid)
        yield process
    finally:
        target.watched.clear()
        process.kill()
        process.wait()


def _start(kind: str, namesrv: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.attack.victim", kind, namesrv, _TOPIC]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def line_of(process: "subprocess.Popen[str]") -> str:
    """Return the next line.

    Raises:
        TooSlowError: none arrives in time.
    """
    assert process.stdout is not None
    with trio.fail_after(_WAIT_S):
        return await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)


async def _send_bombs(kind: str, target: Target) -> None:
    async with target.connect() as wire:
        await wire.put(_TOPIC, b"begin")
        async with victim(target, kind, target.broker.namesrv) as process:
            for _ in range(_BOMBS):
                await wire.put(_TOPIC, _BOMB, f=_COMPRESSED)
            await wire.put(_TOPIC, b"end")
            assert await line_of(process) == "end\n"
            await trio.sleep(target.seconds / 2)


class BadServer(FakeBroker):
    """Name server and broker.

    Attributes:
        deaf: it reads no more.
    """

    deaf = False

    async def _take(self, stream: trio.abc.Stream, command: RemotingCommand) -> None:
        if self.deaf:
            await trio.sleep_forever()
        await super()._take(stream, command)


@asynccontextmanager
async def bad_server() -> AsyncGenerator[BadServer]:
    """Serve on a free port."""
    async with trio.open_nursery() as nursery:
        server = BadServer(nursery, "bad")
        await server.start()
        server.add_topic(_TOPIC, 1)
        yield server
        nursery.cancel_scope.cancel()


async def _give_a_huge_route(target: Target) -> None:
    async with bad_server() as server, victim(target, "produce", server.address) as process:
        server.add_topic(_TOPIC, 3_000_000)
        await server.drop()  # clients ask for the route again
        await server.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
        with trio.move_on_after(target.seconds):
            while True:
                await line_of(process)
        assert await line_of(process) == "sent\n"  # by the route it had


async def _read_no_answers(target: Target) -> None:
    header = GetConsumerRunningInfoRequestHeader("victims", "client").encode()
    ask = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, 1, ext_fields=header).encode()
    async with bad_server() as server, victim(target, "produce", server.address):
        server.deaf = True
        with trio.move_on_after(target.seconds):
            while True:
                await server.push_bytes(ask * (_ROUND_BYTES // len(ask)))


ATTACKS: Final = (
    Attack(name="decompression-push", run=partial(_send_bombs, "push")),
    Attack(name="decompression-poll", run=partial(_send_bombs, "poll")),
    Attack(name="huge-route", run=_give_a_huge_route),
    Attack(name="unread-answers", run=_read_no_answers),
)
