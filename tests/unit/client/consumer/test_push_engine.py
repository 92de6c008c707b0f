"""A push consumer over real sockets, with a scripted broker at the other end."""

import pytest
import trio

from tests.unit.client.consumer.scripted_queues import CLIENT_ID, GROUP, Queues
from tests.unit.client.fake_broker import FakeBroker
from triomq.protocol.bodies.client import ConsumerRunningInfo, ResetOffsetBody
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader, GetConsumerRunningInfoRequestHeader
from triomq.protocol.requests.offsets import ResetOffsetRequestHeader
from triomq.protocol.wire.command import RemotingCommand


@pytest.fixture
def queues(fake_broker: FakeBroker) -> Queues:
    return Queues(fake_broker)


def notification() -> RemotingCommand:
    header = ConsumerGroupRequestHeader(GROUP)
    return RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 5, 2, header.encode())


async def test_a_consumer_starts_consumes_and_leaves_in_this_order(queues: Queues) -> None:
    queues.send(3)
    with trio.fail_after(10):
        async with queues.consumer():
            await queues.wait_handled(2)
    codes = [command.code for command in queues.broker.requests]
    first = [
        codes.index(code)
        for code in (
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.HEART_BEAT,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.PULL_MESSAGE,
        )
    ]
    assert first == sorted(first)
    assert codes[-2:] == [RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNREGISTER_CLIENT]
    assert queues.committed["T", 0] == 3
    (leave,) = queues.broker.of(RequestCode.UNREGISTER_CLIENT)
    assert leave.ext_fields == {"clientID": CLIENT_ID, "consumerGroup": GROUP}


async def test_a_notification_causes_a_rebalance_at_once(queues: Queues) -> None:
    with trio.fail_after(10):
        async with queues.consumer() as consumer:
            await consumer.wait_assigned()
            assert list(consumer.statistics().queues) == [MessageQueue("T", queues.broker.name, 0)]
            queues.broker.consumer_ids[GROUP] = ["127.0.0.1@before", CLIENT_ID]
            await queues.broker.push(notification())
            await queues.broker.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, 2)  # its start, then given up
            while consumer.statistics().queues:
                await trio.lowlevel.checkpoint()


async def test_a_consumer_survives_the_loss_of_its_connection(queues: Queues) -> None:
    with trio.fail_after(20):
        async with queues.consumer():
            queues.send()
            await queues.wait_handled(0)
            before = len(queues.broker.of(RequestCode.HEART_BEAT))
            await queues.broker.drop()
            queues.send()
            await queues.wait_handled(1)
            assert len(queues.broker.of(RequestCode.HEART_BEAT)) > before


async def test_a_broker_can_ask_how_the_consumer_stands(queues: Queues) -> None:
    with trio.fail_after(10):
        async with queues.consumer() as consumer:
            queues.send()
            await consumer.wait_assigned()
            await queues.wait_handled(0)
            header = GetConsumerRunningInfoRequestHeader(GROUP, CLIENT_ID)
            await queues.broker.push(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, 77, 0, header.encode()))
            answers: list[RemotingCommand] = []
            while not answers:
                await trio.lowlevel.checkpoint()
                answers = [command for command in queues.broker.requests if command.is_response]
    assert answers[0].opaque == 77
    info = ConsumerRunningInfo.decode(answers[0].body)
    assert [queue.topic for queue in info.mq_table] == ["T"]


async def test_a_broker_can_reset_the_offset(queues: Queues) -> None:
    queues.send(3)
    with trio.fail_after(10):
        async with queues.consumer():
            await queues.wait_handled(2)
            header = ResetOffsetRequestHeader("T", GROUP, 0, is_force=True)
            body = ResetOffsetBody({MessageQueue("T", queues.broker.name, 0): 1}).encode()
            await queues.broker.push(
                RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, 78, 2, header.encode(), body)
            )
            await queues.wait_handled(2, times=2)
    assert queues.handled == {0: 1, 1: 2, 2: 2}
