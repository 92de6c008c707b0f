"""A push consumer over real sockets, with a scripted broker at the other end."""

from collections import defaultdict

import pytest
import trio

from tests.unit.client.consumer.fake_cluster import make_record, pull_answer
from tests.unit.client.fake_broker import FakeBroker
from triomq.client.config import ClientConfig
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.push import PushConsumer
from triomq.protocol.bodies import ConsumerRunningInfo, ResetOffsetBody
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.command import RemotingCommand
from triomq.protocol.message import MessageExt
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.requests import (
    ConsumerGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    ResetOffsetRequestHeader,
)

GROUP = "G"
CLIENT_ID = "127.0.0.1@me"
CONFIG = ClientConfig(client_ip="127.0.0.1", instance_name="me")


class Queues:
    """One queue of one topic behind a fake broker."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.records: list[bytes] = []
        self.arrived = trio.Event()
        self.committed: dict[tuple[str, int], int] = {}
        self.handled: defaultdict[int, int] = defaultdict(int)
        self.changed = trio.Event()
        broker.add_topic("T", 1)
        broker.consumer_ids[GROUP] = [CLIENT_ID]
        broker.on(RequestCode.PULL_MESSAGE, self._pull)
        broker.on(RequestCode.QUERY_CONSUMER_OFFSET, self._query)
        broker.on(RequestCode.UPDATE_CONSUMER_OFFSET, self._update)
        broker.on(RequestCode.GET_MIN_OFFSET, lambda command: command.reply(ext_fields={"offset": "0"}))

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            self.records.append(make_record("T", 0, len(self.records)))
        self.arrived.set()
        self.arrived = trio.Event()

    async def on_message(self, message: MessageExt) -> None:
        self.handled[message.queue_offset] += 1
        self.changed.set()
        self.changed = trio.Event()

    async def wait_handled(self, queue_offset: int, times: int = 1) -> None:
        while self.handled[queue_offset] < times:
            await self.changed.wait()

    def consumer(self) -> PushConsumer:
        return PushConsumer(
            GROUP,
            namesrv=self.broker.address,
            config=CONFIG,
            subscriptions={"T": "*"},
            start="earliest",
            on_message=self.on_message,
            settings=ConsumerConfig(pull_error_delay_s=0.01),
        )

    async def _pull(self, command: RemotingCommand) -> RemotingCommand:
        wanted = int(command.ext_fields["queueOffset"])
        if wanted >= len(self.records):
            await self.arrived.wait()
        found = self.records[wanted : wanted + 32]
        body = b"".join(found)
        end = len(self.records)
        return pull_answer(command, 0, wanted + len(found), min_offset=0, max_offset=end, body=body)

    def _query(self, command: RemotingCommand) -> RemotingCommand:
        stored = self.committed.get(_key(command))
        if stored is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND)
        return command.reply(ext_fields={"offset": str(stored)})

    def _update(self, command: RemotingCommand) -> RemotingCommand:
        self.committed[_key(command)] = int(command.ext_fields["commitOffset"])
        return command.reply()


def _key(command: RemotingCommand) -> tuple[str, int]:
    return command.ext_fields["topic"], int(command.ext_fields["queueId"])


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
