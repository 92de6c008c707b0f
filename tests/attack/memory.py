"""Attacks on memory and connections: peers that do not read or do not finish, and too many connections."""

import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from typing import Final

import trio

from tests.attack.measure import Attack, Target
from tests.integration.broker_wire import Wire, pull_fields, request
from tests.subscriptions import tag_subscription
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData
from triomq.protocol.codes import PullSysFlag, RequestCode, ResponseCode

_GROUP: Final = "G"
_TOPIC: Final = "LARGE"
_MIB: Final = 1024**2
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError, AssertionError)  # the broker had enough
_MANY_PEERS: Final = 3000
_FEW_FILES: Final = 1000


def _heartbeat(client_id: str) -> bytes:
    consumer = ConsumerData(group_name=_GROUP, subscription_data_set=[tag_subscription(_TOPIC, "*", 1)])
    return HeartbeatData(client_id, [], [consumer]).encode()


async def _join(wire: Wire, client_id: str) -> None:
    await wire.send(request(RequestCode.HEART_BEAT, body=_heartbeat(client_id)))
    while not (await wire.next()).is_response:  # notices come first
        pass


async def _send(wire: Wire, data: bytes) -> None:
    with suppress(*_BROKEN):
        await wire.send(data)


async def _hold(target: Target, peers: int, data: bytes) -> None:
    """Have many peers send something and then wait."""
    await _each(target, peers, partial(_send, data=data))


async def _each(target: Target, peers: int, act: Callable[[Wire], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(target.connect()) for _ in range(peers)]
        with trio.move_on_after(target.seconds):
            async with trio.open_nursery() as nursery:
                for wire in wires:
                    nursery.start_soon(act, wire)
            await trio.sleep_forever()


async def _store_large_message(target: Target) -> None:
    async with target.connect() as wire:
        await wire.put(_TOPIC, bytes(4 * _MIB - 1024))


async def _relay_to_deaf_member(target: Target) -> None:
    async with target.connect() as member, target.connect() as tool:
        await _join(member, "deaf")
        stored = await tool.put(_TOPIC, bytes(4 * _MIB - 1024))
        fields = {"consumerGroup": _GROUP, "clientId": "deaf", "msgId": stored.ext_fields["msgId"]}
        await _send(tool, request(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields) * 400)
        await trio.sleep(target.seconds)


async def _answer_deaf_requester(target: Target) -> None:
    """A member answers a tool that does not read with 15 MiB each time."""
    async with target.connect() as member, target.connect() as tool:
        await _join(member, "willing")
        fields = {"consumerGroup": _GROUP, "clientId": "willing"}
        body = bytes(15 * _MIB)
        await tool.send(request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields) * 100)
        with trio.move_on_after(target.seconds), suppress(*_BROKEN):
            while True:
                command = await member.next()
                if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                    await member.send(command.reply(ResponseCode.SUCCESS, body=body).encode())
        await trio.sleep(1)


async def _notify_deaf_members(target: Target) -> None:
    """One member joins and leaves, and 200 others do not read the notices."""
    async with AsyncExitStack() as stack:
        for number in range(200):
            await _join(await stack.enter_async_context(target.connect()), f"deaf-{number}")
        leave = {"clientID": "restless", "consumerGroup": _GROUP}
        both = request(RequestCode.HEART_BEAT, body=_heartbeat("restless")) + request(
            RequestCode.UNREGISTER_CLIENT, leave
        )
        wire = await stack.enter_async_context(target.connect())
        with trio.move_on_after(target.seconds), suppress(*_BROKEN):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read_all, wire)
                while True:
                    await wire.send(both * 100)


async def _read_all(wire: Wire) -> None:
    while await wire.stream.receive_some():
        pass


async def _hold_large_pulls(target: Target) -> None:
    """Pulls at the end of a queue that carry bodies."""
    suspend = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)
    fields = pull_fields(_TOPIC, 1, sysFlag=suspend, suspendTimeoutMillis=30_000)
    pull = request(RequestCode.PULL_MESSAGE, fields, bytes(15 * _MIB))
    async with target.connect() as wire:
        with trio.move_on_after(target.seconds), suppress(*_BROKEN):
            for _ in range(100):
                await wire.send(pull)
            await trio.sleep_forever()


async def _hold_many_pulls(target: Target) -> None:
    suspend = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)
    pulls = (
        request(RequestCode.PULL_MESSAGE, pull_fields(_TOPIC, 1, sysFlag=suspend, suspendTimeoutMillis=60_000)) * 100
    )
    async with target.connect() as wire:
        with trio.move_on_after(max(target.seconds, 30)), suppress(*_BROKEN):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read_all, wire)
                for _ in range(4000):
                    await wire.send(pulls)
                nursery.cancel_scope.cancel()


async def _limit_files(target: Target) -> None:
    resource.prlimit(target.broker.pid, resource.RLIMIT_NOFILE, (_FEW_FILES, _FEW_FILES))


async def _take_all_connections(target: Target) -> None:
    """One address connects until it is refused; then an administrator of this machine connects to both ports."""
    with ExitStack() as stack:
        for _ in range(_FEW_FILES):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.2", 0))
            sock.connect(("127.0.0.1", target.port))
        await trio.sleep(1)
        async with target.connect() as wire:
            assert (await wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == ResponseCode.SUCCESS
        stream = await trio.open_tcp_stream("127.0.0.1", target.namesrv_port)
        async with stream:
            assert (await Wire(stream).ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == ResponseCode.SUCCESS


def _unfinished(size_bytes: int, sent_bytes: int) -> bytes:
    return size_bytes.to_bytes(4) + bytes(sent_bytes)


ATTACKS: Final = (
    Attack(name="relay-to-deaf-member", run=_relay_to_deaf_member),
    Attack(name="answers-to-deaf-requester", run=_answer_deaf_requester),
    Attack(name="notices-to-deaf-members", run=_notify_deaf_members, by_many=True),
    Attack(name="large-held-pulls", run=_hold_large_pulls, prepare=_store_large_message),
    Attack(name="many-held-pulls", run=_hold_many_pulls, prepare=_store_large_message),
    Attack(
        name="unfinished-frames",
        run=partial(_hold, peers=200, data=_unfinished(16_000_000, 15_990_000)),
        by_many=True,
    ),
    Attack(
        name="small-unfinished-frames",
        run=partial(_hold, peers=_MANY_PEERS, data=_unfinished(16_000_000, 200_000)),
        by_many=True,
    ),
    Attack(name="all-connections", run=_take_all_connections, prepare=_limit_files, by_many=True),
)
