"""Our orderly consumers on our broker, over sockets: order through joins and leaves, locks of the dead, tools."""

import socket
import struct
from collections import defaultdict
from pathlib import Path

import pytest
import trio

from tests.integration.broker_wire import Wire, broker_port, connected, namesrv_address, request, running, wait_for
from triomq.broker.groups.queue_locks import CLOSE_GRACE_S
from triomq.client import Admin, ConsumerConfig, Message, MessageExt, Producer, PushConsumer
from triomq.client.producer.producer import select_by_hash
from triomq.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
from triomq.storage.reading.cold_read import finish

GROUP = "G"
STEPS, ORDERS = 20, 10


class Orders:
    """A handler that notes the steps of each order, and queues that two members had at the same time."""

    def __init__(self, handling_s: float = 0.002) -> None:
        self._handling_s = handling_s
        self.steps: defaultdict[bytes, list[int]] = defaultdict(list)
        self.by_member: defaultdict[str, int] = defaultdict(int)
        self.shared: set[int] = set()
        self._busy: set[int] = set()

    def member(self, name: str, namesrv: str, **settings: float) -> PushConsumer:
        async def on_message(message: MessageExt) -> None:
            self.shared |= self._busy & {message.queue_id}
            self._busy.add(message.queue_id)
            await trio.sleep(self._handling_s)
            self._busy.discard(message.queue_id)
            order, _, step = message.body.partition(b":")
            self.steps[order].append(int(step))
            self.by_member[name] += 1

        config = ConsumerConfig(**settings)  # type: ignore[arg-type]  # names are checked by the class
        return PushConsumer(
            GROUP,
            namesrv=namesrv,
            orderly=True,
            on_message=on_message,
            subscriptions={"T": "*"},
            start="earliest",
            settings=config,
        )

    @property
    def count(self) -> int:
        return sum(map(len, self.steps.values()))


async def send_orders(address: str) -> None:
    async with Producer("P", namesrv=address) as producer:
        for step in range(STEPS):
            for order in range(ORDERS):
                await producer.send(Message("T", b"%d:%d" % (order, step)), selector=select_by_hash, key=order)


async def test_order_holds_while_members_join_and_leave(root: Path) -> None:
    """C.2 scenario 59; nothing comes twice, because handlers end before a queue changes hands."""
    async with running(root) as broker:
        address, orders = namesrv_address(broker), Orders()
        async with Admin(namesrv=address) as admin:
            await admin.create_topic("T", queues=4)
        async with orders.member("a", address), trio.open_nursery() as nursery:
            nursery.start_soon(send_orders, address)
            await wait_for(lambda: orders.count > 20)
            async with orders.member("b", address):
                await wait_for(lambda: orders.by_member["b"] > 20)
            await wait_for(lambda: orders.count == STEPS * ORDERS)
        assert (list(orders.steps.values()), orders.shared) == ([list(range(STEPS))] * ORDERS, set())


async def test_lone_member_losing_connection_repeats_no_step(root: Path) -> None:
    """No other member can have had the queues, so progress not committed yet counts."""
    async with running(root) as broker:
        address, orders = namesrv_address(broker), Orders()
        async with Admin(namesrv=address) as admin:
            await admin.create_topic("T", queues=4)
        await send_orders(address)
        async with orders.member("a", address):
            for enough in (40, 80, 120):
                await wait_for(lambda: orders.count > enough)  # noqa: B023  # it is over before the next round
                for connection in tuple(broker.connections):
                    connection.close("cut by a test")
            await wait_for(lambda: orders.count >= STEPS * ORDERS)
        assert (list(orders.steps.values()), orders.shared) == ([list(range(STEPS))] * ORDERS, set())
        assert sum(finish(broker.groups.offsets.of_group(GROUP))["T"].values()) == STEPS * ORDERS


@pytest.mark.parametrize("declared", [True, None])
@pytest.mark.parametrize("aborted", [False, True])
async def test_connection_bound_locks_are_released_when_member_dies(
    root: Path, declared: bool | None, aborted: bool
) -> None:
    """Only a plain FIN shows that a process has died; a member behind a reset connection may still consume."""
    queue = MessageQueue("T", "broker-a", 0)

    async def lock(wire: Wire, client_id: str) -> list[MessageQueue]:
        body = LockBatchRequestBody(client_id, GROUP, [queue], declared).encode()
        answer = await wire.ask(RequestCode.LOCK_BATCH_MQ, body=body)
        return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set

    async with running(root) as broker, connected(broker_port(broker)) as second:
        broker.topics.ensure(queue.topic, 1)
        broker.groups.settings.get_or_create(GROUP)
        heartbeat = HeartbeatData("b", [], [ConsumerData(group_name=GROUP)]).encode()
        async with connected(broker_port(broker)) as first:
            assert await lock(first, "a") == [queue]
            await second.send(request(RequestCode.HEART_BEAT, body=heartbeat))
            assert {(await second.next()).code for _ in range(2)} == {
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                ResponseCode.SUCCESS,
            }
            assert await lock(second, "b") == []
            if aborted:
                first.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with trio.move_on_after(2 * CLOSE_GRACE_S):
            notice = await second.next()  # rejected before, committed now
            assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert await lock(second, "b") == [queue] * bool(declared and not aborted)


@pytest.mark.parametrize("closed_by_peer", [True, False])
async def test_disconnected_member_keeps_its_queues(root: Path, closed_by_peer: bool) -> None:
    """Handlers outlive a connection: another member that keeps asking must not get the queues meanwhile."""
    queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
    body = LockBatchRequestBody("thief", GROUP, queues).encode()
    stolen: list[MessageQueue] = []

    async def steal(wire: Wire) -> None:
        while True:
            answer = await wire.ask(RequestCode.LOCK_BATCH_MQ, body=body)
            stolen.extend(LockBatchResponseBody.decode(answer.body).lock_ok_mq_set)
            await trio.sleep(0.01)

    async with running(root) as broker, connected(broker_port(broker)) as thief:
        address, orders = namesrv_address(broker), Orders(handling_s=0.1)
        async with Admin(namesrv=address) as admin:
            await admin.create_topic("T", queues=4)
        await send_orders(address)
        async with orders.member("a", address), trio.open_nursery() as nursery:
            await wait_for(lambda: orders.count > 4)
            nursery.start_soon(steal, thief)
            for _ in range(4):
                seen = orders.count
                for connection in tuple(broker.connections):
                    if connection in broker.groups.locks.groups_of:
                        connection.close("cut by a test", closed_by_peer=closed_by_peer)
                await trio.sleep(CLOSE_GRACE_S / 2)
                await wait_for(lambda: orders.count > seen + 8)  # noqa: B023  # it is over before the next round
            nursery.cancel_scope.cancel()
        assert stolen == []


async def test_a_tool_reaches_our_consumer_through_our_broker(root: Path) -> None:
    """C.2 scenario 62."""
    async with running(root) as broker:
        address, orders = namesrv_address(broker), Orders()
        async with Admin(namesrv=address) as admin:
            await admin.create_topic("T", queues=4)
        async with Producer("P", namesrv=address) as producer:
            sent = await producer.send(Message("T", b"0:0"))
        async with orders.member("a", address) as consumer, connected(broker_port(broker)) as tool:
            await consumer.wait_assigned()
            await wait_for(lambda: orders.count == 1)
            (client_id,) = broker.groups.consumers.get(GROUP).client_ids()  # type: ignore[union-attr]
            who = {"consumerGroup": GROUP, "clientId": client_id}
            info = await tool.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, who)
            running_info = ConsumerRunningInfo.decode(info.body)
            assert running_info.properties["PROP_CONSUMEORDERLY"] == "true"
            assert all(figures.locked for figures in running_info.mq_table.values())
            before = consumer.statistics().queues
            direct = await tool.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, who | {"msgId": sent.offset_message_id})
            result = ConsumeMessageDirectlyResult.decode(direct.body)
            assert (result.order, result.consume_result) == (True, "CR_SUCCESS")
            assert orders.count == 2
            after = consumer.statistics().queues
            assert [after[queue].committed_offset for queue in before] == [
                figures.committed_offset for figures in before.values()
            ]
