"""A consumer that records what its instance asks of it."""

from collections.abc import Callable, Collection, Mapping

import trio

from tests.subscriptions import tag_subscription
from triomq.protocol.bodies.client import ConsumerData
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt


class FakeConsumer:
    """Records what the instance asks of it."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.calls: list[tuple[object, ...]] = []
        self.direct = trio.Event()
        self.direct.set()

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData("group", subscription_data_set=[tag_subscription(t, "*", 1) for t in self.topics])

    def subscribed_topics(self) -> Collection[str]:
        return self.topics

    def route_changed(self, topic: str) -> None:
        self.calls.append(("route", topic))

    def connection_lost(self, address: str) -> None:
        self.calls.append(("lost", address))

    def members_changed(self) -> None:
        self.calls.append(("members",))

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.calls.append(("reset", topic, dict(offsets)))

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return {MessageQueue(topic, "broker-a", 0): 17}

    def running_info(self) -> bytes:
        return b"info"

    async def consume_directly(self, message: MessageExt, broker_name: str) -> bytes:
        await self.direct.wait()
        return b"%s from %s" % (message.body, broker_name.encode())


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until the condition holds."""
    with trio.fail_after(5):
        while not condition():
            await trio.lowlevel.checkpoint()
