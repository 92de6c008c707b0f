"""Peers that make a broker hold a lot, over real sockets."""

import contextlib
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.integration.broker_wire import Wire, broker_port, connected, request, running, until
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData, SubscriptionData
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.wire.command import RemotingCommand

BUDGET = 4 * 1024**2
BEGUN = (5_000_000).to_bytes(4) + bytes(1_500_000)
TOPICS = request(RequestCode.GET_ALL_TOPIC_CONFIG) * 10_000
SUBSCRIPTION = ConsumerData("G", subscription_data_set=[SubscriptionData("T", "\U0001f600" + "x" * 300_000)])
HEARTBEAT = request(RequestCode.HEART_BEAT, body=HeartbeatData("c", [], [SUBSCRIPTION]).encode())


@pytest.mark.parametrize("data", [BEGUN, TOPICS, HEARTBEAT], ids=["unfinished", "unread", "subscribed"])
async def test_who_makes_the_broker_hold_most_is_closed(tmp_path: Path, mock_clock: MockClock, data: bytes) -> None:
    async with running(tmp_path, memory_budget_bytes=BUDGET, unread_high_bytes=2 * 1024**2) as broker:
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            wires = [await stack.enter_async_context(connected(broker_port(broker))) for _ in range(7)]
            honest, slow, *bad = wires
            await honest.put()
            await slow.send(BEGUN[:10_000])
            for wire in bad:
                nursery.start_soon(send, wire, data)
            while broker.statistics.given_up_peers < 2:
                assert broker.context.budget.held_bytes <= BUDGET
                assert await honest.works()
            await until(lambda: len(broker.connections) <= len(wires) - 2)
            assert sum(each.held_bytes for each in broker.connections) == broker.context.budget.held_bytes
            assert any(each.held_bytes == 10_000 for each in broker.connections)
            assert await honest.works()
            nursery.cancel_scope.cancel()
    assert broker.context.budget.held_bytes == broker.context.budget.reserved_bytes == 0


async def send(wire: Wire, data: bytes) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await wire.send(data)


async def test_subscriptions_count_until_they_are_given_back(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker_port(broker)) as wire:
        budget, consumers = broker.context.budget, broker.groups.consumers
        for group, text in (("small", "x"), ("large", "x" * 20_000)):
            data = ConsumerData(group, subscription_data_set=[SubscriptionData("T", text)])
            await wire.send(request(RequestCode.HEART_BEAT, body=HeartbeatData("c", [], [data]).encode()))
            await until(lambda group=group: consumers.get(group) is not None)  # type: ignore[misc]
            assert bool(budget.held_bytes) is (group == "large")  # little is not counted
        assert 20_000 < budget.held_bytes < 25_000
        await wire.send(request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "large"}))
        await until(lambda: consumers.get("large") is None)
        assert budget.held_bytes == 0


async def test_long_answer_is_held_once_without_copies(tmp_path: Path) -> None:
    """A copy of 16 MiB holds the event loop up for 5 to 15 ms."""
    async with running(tmp_path) as broker, connected(broker_port(broker)) as wire:
        assert await wire.works()
        (connection,) = broker.connections
        body = bytes(8 * 1024**2)
        connection.send(RemotingCommand(ResponseCode.SUCCESS, 5, CommandFlag.RESPONSE, body=body))
        chunks = connection._writes.chunks()
        assert isinstance(chunks[0], memoryview)
        assert chunks[0].obj is body  # the kernel has taken the head and the begin
        assert len(body) < broker.context.budget.held_bytes < len(body) + 1024
        answer = await wire.next()
        assert (answer.opaque, answer.body) == (5, body)
        await until(lambda: not broker.context.budget.held_bytes)
