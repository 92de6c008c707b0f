"""Scenarios of the client suite: what a producer sends, and what of it arrives."""

import os
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise

import pytest
import trio

from tests.facades import Producer
from tests.interop.suite_tools import Inbox, consume, fresh, new_topic, push_consumer, send_all
from triomq.client import ClientConfig, Message, ProducerConfig, SendResult, SendStatus, select_by_hash
from triomq.protocol.codes import MessageSysFlag, SerializeType
from triomq.protocol.errors import IllegalNameError, MessageIllegalError


async def every_field_arrives(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    sent = Message(
        topic, b"\x00\xffbody", tags="TagA", keys=["k1", "k2"], properties={"a": "b", "empty?": "no"}, flag=7
    )
    before = datetime.now(UTC).timestamp() * 1000
    (result,) = await send_all(namesrv, [sent])
    assert result.status is SendStatus.SEND_OK
    assert result.queue_offset == 0
    assert result.queue.topic == topic
    (got,) = await consume(namesrv, topic, 1)
    assert (got.topic, got.body, got.tags, got.keys, got.flag) == (topic, sent.body, "TagA", ("k1", "k2"), 7)
    assert got.user_properties == {"a": "b", "empty?": "no"}
    assert (got.message_id, got.offset_message_id) == (result.message_id, result.offset_message_id)
    assert (got.broker_name, got.queue_id, got.queue_offset) == (*result.queue[1:], 0)
    assert got.reconsume_times == 0
    assert -1 <= got.born_timestamp - before < 60_000


async def text_beyond_ascii_survives(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    sent = Message(topic, "тело 🚀".encode(), tags="标签", keys=["ключ"], properties={"größe": "ⅷ 🚀 \t"})
    await send_all(namesrv, [Message(topic, b"other", tags="other"), sent])
    (got,) = await consume(namesrv, topic, 1, "标签")
    assert (got.body, got.tags, got.keys) == (sent.body, "标签", ("ключ",))
    assert got.user_properties == {"größe": "ⅷ 🚀 \t"}


async def large_bodies_arrive_unchanged(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    text, noise = b"0123456789" * 10_240, os.urandom(100 * 1024)
    await send_all(namesrv, [Message(topic, text, tags="text"), Message(topic, noise, tags="noise")])
    got = {message.tags: message for message in await consume(namesrv, topic, 2)}
    assert got["text"].body == text
    assert got["text"].sys_flag & MessageSysFlag.COMPRESSED
    assert got["text"].store_size < 10_000
    assert got["noise"].body == noise


async def a_batch_of_any_size_is_split(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    bodies = [bytes([number]) * 200_000 for number in range(60)]  # 12 MB in all, 4 MiB may be sent at once
    async with Producer(fresh("producer"), namesrv=namesrv, settings=ProducerConfig(send_timeout_s=20)) as producer:
        results = await producer.send_batch([Message(topic, body, tags="TagB") for body in bodies])
    assert len(results) >= 3
    assert all(result.status is SendStatus.SEND_OK for result in results)
    got = await consume(namesrv, topic, len(bodies))
    assert sorted(message.body for message in got) == bodies
    assert {message.tags for message in got} == {"TagB"}
    places = {(message.broker_name, message.queue_id, message.queue_offset) for message in got}
    assert len(places) == len(bodies)


async def oneway_messages_are_stored(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    bodies = [b"oneway %d" % number for number in range(20)]
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send_oneway(Message(topic, body))
    got = await consume(namesrv, topic, len(bodies))
    assert sorted(message.body for message in got) == sorted(bodies)


async def equal_keys_go_to_one_queue_in_order(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    orders = [f"order-{number % 10}" for number in range(100)]
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        results = [
            await producer.send(Message(topic, order.encode()), selector=select_by_hash, key=order) for order in orders
        ]
    queues = {order: {r.queue for o, r in zip(orders, results, strict=True) if o == order} for order in orders}
    assert all(len(used) == 1 for used in queues.values())
    assert len(set().union(*queues.values())) > 1
    for order in queues:
        offsets = [r.queue_offset for o, r in zip(orders, results, strict=True) if o == order]
        assert all(earlier < later for earlier, later in pairwise(offsets))


async def the_first_send_makes_the_topic(namesrv: str) -> None:
    topic = fresh("auto")
    results = await send_all(namesrv, [Message(topic, b"first"), Message(topic, b"second")])
    assert all(result.status is SendStatus.SEND_OK for result in results)
    assert Counter(message.body for message in await consume(namesrv, topic, 2)) == {b"first": 1, b"second": 1}


async def many_tasks_send_at_once(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    results: list[SendResult] = []

    async def send_some(producer: Producer, task: int) -> None:
        results.extend([await producer.send(Message(topic, b"%d/%d" % (task, n))) for n in range(20)])

    async with Producer(fresh("producer"), namesrv=namesrv) as producer, trio.open_nursery() as nursery:
        for task in range(50):
            nursery.start_soon(send_some, producer, task)
    assert len({(result.queue, result.queue_offset) for result in results}) == 1000
    assert len({message.body for message in await consume(namesrv, topic, 1000)}) == 1000


async def illegal_messages_are_refused_and_not_stored(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        with pytest.raises(MessageIllegalError):
            await producer.send(Message(topic, bytes(4 * 1024**2 + 1)))
        with pytest.raises(IllegalNameError):
            await producer.send(Message("no such name!", b"x"))
        with pytest.raises(MessageIllegalError):
            await producer.send(Message(topic, b"x", properties={"long": "p" * 33_000}))
        await producer.send(Message(topic, b"good"))
    assert [message.body for message in await consume(namesrv, topic, 1)] == [b"good"]


async def headers_in_binary_form_do_the_same(namesrv: str) -> None:
    topic, config = await new_topic(namesrv), ClientConfig(header_format=SerializeType.ROCKETMQ)
    inbox = Inbox()
    async with (
        Producer(fresh("producer"), namesrv=namesrv, config=config) as producer,
        push_consumer(namesrv, topic, inbox.take, tags="TagA", config=config),
    ):
        for tag in ("TagA", "TagB", "TagA"):
            await producer.send(Message(topic, b"x", tags=tag, properties={"größe": "🚀"}))
        await inbox.wait_count(2)
    assert [(message.tags, message.user_properties) for message in inbox.messages] == [
        ("TagA", {"größe": "🚀"}),
        ("TagA", {"größe": "🚀"}),
    ]
