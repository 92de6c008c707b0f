"""What the scenarios of the client suite share."""

import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from tests.facades import Admin, LitePullConsumer, Producer, PushConsumer
from triomq.client import ClientConfig, ClientInstance, ConsumeContext, Message, MessageExt, SendResult, Sql
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import NoRouteError
from triomq.protocol.names import AUTO_CREATE_TOPIC
from triomq.protocol.requests.topics import CreateTopicRequestHeader


def fresh(name: str) -> str:
    """A name not used before."""
    return f"{name}-{secrets.token_hex(6)}"


async def new_topic(
    namesrv: str, queues: int = 4, *, name: str | None = None, config: ClientConfig | None = None
) -> str:
    """Make a topic whose queues are spread over the brokers; one queue is on any of them.

    Returns once the name server has its route, which takes Apache's broker a moment.
    """
    topic = name or fresh("suite")
    async with Admin(namesrv=namesrv, config=config) as admin:
        brokers = list((await admin.cluster()).broker_addr_table.values())
        share, rest = divmod(queues, len(brokers))
        if share:
            await admin.create_topic(topic, queues=share)
        async with ClientInstance(namesrv, config) as instance:
            for broker in random.sample(brokers, rest):
                header = CreateTopicRequestHeader(topic, AUTO_CREATE_TOPIC, share + 1, share + 1, 6)
                code = RequestCode.UPDATE_AND_CREATE_TOPIC
                await instance.requests.ask(broker.broker_addrs[0], code, header)

        async def is_spread() -> bool:
            return await has_route(admin, topic) and queues == sum(
                data.write_queue_nums for data in (await admin.topic_route(topic)).queue_datas
            )

        await until(is_spread)
    return topic


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110  # about another process: no event to wait for
        await trio.sleep(0.05)


async def has_route(admin: Admin, topic: str) -> bool:
    return not await has_no_route(admin, topic)


async def has_no_route(admin: Admin, topic: str) -> bool:
    try:
        await admin.topic_route(topic)
    except NoRouteError:
        return True
    return False


class Inbox:
    """Takes what a consumer delivers, in order of arrival."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self._arrived = trio.Event()

    async def take(self, message: MessageExt) -> None:
        self.messages.append(message)
        self._arrived.set()
        self._arrived = trio.Event()

    async def take_batch(self, messages: list[MessageExt], _context: ConsumeContext) -> None:
        for message in messages:
            await self.take(message)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._arrived.wait()

    async def wait_count(self, count: int) -> None:
        await self.wait_for(lambda: len(self.messages) >= count)

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def send_all(namesrv: str, messages: Sequence[Message]) -> list[SendResult]:
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        return [await producer.send(message) for message in messages]


async def send_numbered(namesrv: str, topic: str, name: str, count: int) -> list[bytes]:
    """Send ``count`` messages with different bodies; return the bodies."""
    bodies = [f"{name} {number}".encode() for number in range(count)]
    await send_all(namesrv, [Message(topic, body) for body in bodies])
    return bodies


def push_consumer(
    namesrv: str, topic: str, on_message: Any = None, *, group: str = "", tags: str | Sql = "*", **options: Any
) -> PushConsumer:
    """A consumer of one topic that begins at the first message, in a new group unless one is given."""
    return PushConsumer(
        group or fresh("group"), namesrv=namesrv, on_message=on_message, subscriptions={topic: tags}, start="earliest",
        **options,
    )  # fmt: skip


async def consume(namesrv: str, topic: str, count: int, expression: str | Sql = "*") -> list[MessageExt]:
    """What a new group gets from the first offset on, once that is at least ``count`` messages."""
    inbox = Inbox()
    async with push_consumer(namesrv, topic, inbox.take, tags=expression):
        await inbox.wait_count(count)
    return inbox.messages


async def poll_bodies(consumer: LitePullConsumer, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        got += [message.body for message in await consumer.poll()]
    return got
