"""Scenarios of the client suite: requests, and the replies of handlers."""

import pytest
import trio

from tests.facades import Producer, PushConsumer
from tests.interop.suite_tools import fresh, new_topic
from triomq.client import BrokerResponseError, ClientError, Message, MessageExt, RequestTimeoutError, Responder


async def handlers_reply_to_requests(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    refused: list[Exception] = []

    async def answer(message: MessageExt) -> None:
        if message.body == b"plain":
            try:
                await message.reply(b"nobody asked")
            except ClientError as exc:
                refused.append(exc)
        else:
            await message.reply(b"re: " + message.body)

    async with (
        PushConsumer(fresh("group"), namesrv=namesrv, on_message=answer, subscriptions={topic: "*"}) as consumer,
        Producer(fresh("producer"), namesrv=namesrv) as producer,
    ):
        await consumer.wait_assigned()
        await producer.send(Message(topic, b"plain"))
        reply = await producer.request(Message(topic, b"ping", tags="T", keys="k"), timeout_s=20)
        assert (reply.body, reply.properties["MSG_TYPE"]) == (b"re: ping", "reply")
        large = b"0123456789" * 10_000
        assert (await producer.request(Message(topic, large), timeout_s=20)).body == b"re: " + large
        replies: dict[int, bytes] = {}

        async def request(number: int) -> None:
            found = await producer.request(Message(topic, b"%d" % number), timeout_s=20)
            replies[number] = found.body

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(request, number)
        assert replies == {number: b"re: %d" % number for number in range(20)}
        while not refused:  # noqa: ASYNC110  # the handler runs elsewhere
            await trio.sleep(0.05)
    assert "is no request" in str(refused[0])


async def responders_return_their_replies(namesrv: str) -> None:
    topic = await new_topic(namesrv)

    def answer(message: MessageExt) -> bytes | None:
        return None if message.body == b"secret" else message.body.upper()

    async def answer_soon(message: MessageExt) -> bytes:
        await _pause()
        return b"soon"

    responder = Responder(answer)
    async with (
        PushConsumer(fresh("group"), namesrv=namesrv, on_message=responder, subscriptions={topic: "*"}) as consumer,
        Producer(fresh("producer"), namesrv=namesrv) as producer,
    ):
        await consumer.wait_assigned()
        assert (await producer.request(Message(topic, b"abc"), timeout_s=20)).body == b"ABC"
        with pytest.raises(RequestTimeoutError, match="no reply to message"):
            await producer.request(Message(topic, b"secret"), timeout_s=0.5)
    async with (
        PushConsumer(
            fresh("group"), namesrv=namesrv, on_message=Responder(answer_soon), subscriptions={topic: "*"}
        ) as consumer,
        Producer(fresh("producer"), namesrv=namesrv) as producer,
    ):
        await consumer.wait_assigned()
        assert (await producer.request(Message(topic, b"abc"), timeout_s=20)).body == b"soon"


async def _pause() -> None:
    """Wait a little where any event loop runs."""
    if trio.lowlevel.in_trio_task():
        await trio.sleep(0.01)


async def late_replies_are_dropped_and_lost_requesters_reported(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    asked, may_reply, refused = trio.Event(), trio.Event(), list[Exception]()

    async def answer(message: MessageExt) -> None:
        asked.set()
        await may_reply.wait()
        try:
            await message.reply(b"late")
        except BrokerResponseError as exc:
            refused.append(exc)

    async with PushConsumer(fresh("group"), namesrv=namesrv, on_message=answer, subscriptions={topic: "*"}) as consumer:
        await consumer.wait_assigned()
        async with Producer(fresh("producer"), namesrv=namesrv) as producer:
            with pytest.raises(RequestTimeoutError):
                await producer.request(Message(topic, b"?"), timeout_s=1)
            await asked.wait()
        may_reply.set()
        while not refused:  # noqa: ASYNC110  # the handler runs elsewhere
            await trio.sleep(0.05)
    assert "push reply message fail" in str(refused[0])
