"""Scenarios of the client suite: two tenants with equal names of topics and groups."""

from typing import Any

import trio

from tests.facades import Admin, LitePullConsumer, Producer, PullConsumer, PushConsumer, TransactionProducer
from tests.interop.suite_tools import Inbox, fresh, new_topic, push_consumer
from triomq.client import ClientConfig, ConsumeContext, ConsumeStatus, Message, MessageExt, TransactionState


async def tenants_with_equal_names_do_not_meet(namesrv: str) -> None:
    """Topics, groups, retries and the tools of each tenant stay in its namespace."""
    topic, group = fresh("orders"), fresh("group")
    tenants = [ClientConfig(namespace=fresh("tenant")) for _ in range(2)]
    async with trio.open_nursery() as nursery:
        for config in tenants:
            nursery.start_soon(_one_tenant, namesrv, config, topic, group)
    async with Admin(namesrv=namesrv) as admin:
        topics = await admin.topics()
        assert topic not in topics
        for config in tenants:
            assert f"{config.namespace}%{topic}" in topics
            assert f"%RETRY%{config.namespace}%{group}" in topics


async def _one_tenant(namesrv: str, config: ClientConfig, topic: str, group: str) -> None:
    inbox = Inbox()

    async def fail_once(message: MessageExt) -> ConsumeStatus:
        await inbox.take(message)
        return ConsumeStatus.SUCCESS if message.reconsume_times else ConsumeStatus.RECONSUME_LATER

    async def handle(messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus:
        context.delay_level = 1
        return await fail_once(messages[0])

    open_client: dict[str, Any] = {"namesrv": namesrv, "config": config}
    body = str(config.namespace).encode()
    await new_topic(namesrv, queues=1, name=topic, config=config)
    async with Admin(**open_client) as admin:
        async with (
            Producer(fresh("producer"), **open_client) as producer,
            push_consumer(topic=topic, group=group, on_messages=handle, **open_client),
        ):
            result = await producer.send(Message(topic, body, keys="key"))
            assert result.queue.topic == topic
            assert await producer.publish_queues(topic) == (result.queue,)
            await inbox.wait_count(2)
            assert [(message.topic, message.body) for message in inbox.messages] == [(topic, body)] * 2
            members = await admin.group_members(group)
            assert set(members.subscription_table) == {topic, f"%RETRY%{group}"}
            (state,) = (await admin.group_state(group, topic)).queues
            assert state.position.queue == result.queue
            assert len(state.owners) == 1
        assert set(await admin.topic_stats(topic)) == {result.queue}
        assert (await admin.message(result.offset_message_id)).topic == topic
    await _other_consumers(open_client, topic, body)


async def _other_consumers(open_client: dict[str, Any], topic: str, body: bytes) -> None:
    inbox = Inbox()
    async with push_consumer(topic=topic, on_message=inbox.take, orderly=True, **open_client):
        await inbox.wait_count(1)
    assert [(message.topic, message.body) for message in inbox.messages] == [(topic, body)]
    async with LitePullConsumer(fresh("lite"), start="earliest", **open_client) as lite:
        await lite.subscribe(topic)
        (message,) = await lite.poll(30)
        assert (message.topic, message.body) == (topic, body)
    async with PullConsumer(fresh("pull"), **open_client) as pull:
        (queue,) = await pull.queues(topic)
        (message,) = (await pull.pull(queue, 0)).messages
        assert (message.topic, message.body, queue.topic) == (topic, body, topic)
        await pull.commit(queue, 1)
        assert await pull.committed(queue) == 1


async def transactions_and_requests_work_in_a_namespace(namesrv: str) -> None:
    topic, config = fresh("orders"), ClientConfig(namespace=fresh("tenant"))
    open_client: dict[str, Any] = {"namesrv": namesrv, "config": config}
    await new_topic(namesrv, name=topic, config=config)
    checked: list[str] = []

    async def check(message: MessageExt) -> TransactionState:
        await trio.lowlevel.checkpoint()
        checked.append(message.topic)
        return TransactionState.COMMIT

    async def leave_open(_transaction: object) -> TransactionState:
        await trio.lowlevel.checkpoint()
        return TransactionState.UNKNOWN

    async def answer(message: MessageExt) -> None:
        if message.body == b"request":
            await message.reply(message.topic.encode())

    inbox = Inbox()
    async with (
        TransactionProducer(fresh("producer"), check=check, **open_client) as transactions,
        push_consumer(topic=topic, on_message=inbox.take, **open_client),
    ):
        await transactions.send(Message(topic, b"half"), leave_open)
        await inbox.wait_count(1)
    assert (inbox.messages[0].topic, inbox.messages[0].body) == (topic, b"half")
    assert set(checked) == {topic}
    async with (
        PushConsumer(fresh("group"), subscriptions={topic: "*"}, on_message=answer, **open_client) as consumer,
        Producer(fresh("producer"), **open_client) as producer,
    ):
        await consumer.wait_assigned()
        assert (await producer.request(Message(topic, b"request"), timeout_s=20)).body == topic.encode()
