"""A queue with messages behind a fake broker."""

from collections import defaultdict

import trio

from tests.unit.client.consumer.fake_cluster import make_record, pull_answer
from tests.unit.client.fake_broker import FakeBroker
from triomq.client.config import ClientConfig
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.push import PushConsumer
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.record.message import MessageExt
from triomq.protocol.wire.command import RemotingCommand

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
