"""Push consumers on the cluster in memory."""

import trio

from tests.unit.client.consumer.fake_cluster import BROKER
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.push import PushConsumer
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

QUEUE = MessageQueue("T", BROKER, 0)


class Inbox:
    """A handler that keeps what it gets, and takes its time."""

    def __init__(self, busy_s: float = 0.0) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self._busy_s = busy_s

    async def take(self, message: MessageExt) -> None:
        self.begun.append(message.queue_offset)
        try:
            if self._busy_s:
                await trio.sleep(self._busy_s)
        except trio.Cancelled:
            self.cancelled.append(message.queue_offset)
            raise
        self.ended.append(message.queue_offset)


def consumer(inbox: Inbox, instance: ClientInstance | None, **more: object) -> PushConsumer:
    arguments: dict[str, object] = {"subscriptions": {"T": "*"}, "start": "earliest", "on_message": inbox.take}
    return PushConsumer("G", instance=instance, **(arguments | more))  # type: ignore[arg-type]
