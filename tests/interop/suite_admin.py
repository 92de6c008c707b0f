"""Scenarios of the client suite: the admin tool."""

from tests.facades import Admin, Producer
from tests.interop.suite_tools import Inbox, fresh, has_no_route, new_topic, push_consumer, until
from triomq.client import Message, TopicSettings


async def topics_are_made_listed_and_deleted(namesrv: str) -> None:
    topic = await new_topic(namesrv, queues=3)
    async with Admin(namesrv=namesrv) as admin:
        assert topic in await admin.topics()
        there = (await admin.topic_route(topic)).queue_datas
        assert (sum(data.read_queue_nums for data in there), sum(data.write_queue_nums for data in there)) == (3, 3)
        assert {data.perm for data in there} == {6}
        await admin.delete_topic(topic)
        await until(lambda: has_no_route(admin, topic))
        assert topic not in await admin.topics()


async def update_of_topic_keeps_other_settings(namesrv: str) -> None:
    topic = await new_topic(namesrv, queues=3)
    async with Admin(namesrv=namesrv) as admin:
        changes = await admin.update_topic(topic, TopicSettings(write_queues=1))
        numbers = {change.broker_name: change.before.read_queue_nums for change in changes}
        kept = {}
        for name, _, after, _ in changes:
            assert (after.read_queue_nums, after.write_queue_nums, after.perm) == (numbers[name], 1, 6)
        for name, _, after, _ in await admin.update_topic(
            topic, TopicSettings(perm=4, order=True, message_type="FIFO")
        ):
            assert (after.read_queue_nums, after.write_queue_nums, after.perm) == (numbers[name], 1, 4)
            kept[name] = after.order, (after.attributes or {}).get("message.type")
        assert set(kept.values()) <= {(True, "FIFO"), (False, None)}  # RocketMQ 5; others
        for name, _, after, _ in await admin.update_topic(topic, TopicSettings(read_queues=5)):
            found = after.order, (after.attributes or {}).get("message.type")
            assert (after.read_queue_nums, found) == (5, kept[name])


async def admin_sees_offsets_members_and_lag(namesrv: str) -> None:
    topic, group = await new_topic(namesrv), fresh("group")
    inbox = Inbox()
    async with (
        Admin(namesrv=namesrv) as admin,
        push_consumer(namesrv, topic, inbox.take, group=group, tags="TagA") as consumer,
    ):
        await consumer.wait_assigned()
        async with Producer(fresh("producer"), namesrv=namesrv) as producer:
            for _ in range(8):
                await producer.send(Message(topic, b"x", tags="TagA"))
        await inbox.wait_count(8)
        members = await admin.group_members(group)
        assert len(members.connection_set) == 1
        assert members.subscription_table[topic].sub_string == "TagA"
        stats = await admin.topic_stats(topic)
        assert sum(queue.max_offset - queue.min_offset for queue in stats.values()) == 8
        assert (await admin.cluster()).broker_addr_table


async def messages_are_found_by_keys_ids_and_times(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        sent = [
            await producer.send(Message(topic, b"%d" % number, keys=[f"key-{number}", "ключ"])) for number in range(10)
        ]
    async with Admin(namesrv=namesrv) as admin:

        async def is_indexed() -> bool:
            return len(await admin.find_messages(topic, "ключ")) == 10

        await until(is_indexed)
        (third,) = await admin.find_messages(topic, "key-3")
        assert (third.body, third.message_id, third.queue_id) == (b"3", sent[3].message_id, sent[3].queue.queue_id)
        times = [message.store_timestamp for message in await admin.find_messages(topic, "ключ")]
        newest = await admin.find_messages(topic, "ключ", max_messages=2)
        assert [message.store_timestamp for message in newest] == times[-2:] == sorted(times)[-2:]
        assert await admin.find_messages(topic, "key-10") == []
        since = await admin.find_messages(topic, "ключ", begin_ms=third.store_timestamp)
        assert {message.body for message in since} >= {b"%d" % number for number in range(3, 10)}
        assert await admin.find_messages(topic, "ключ", end_ms=third.store_timestamp - 3_600_000) == []
        for number, result in enumerate(sent):
            assert (await admin.message(result.message_id, topic)).body == b"%d" % number
            assert (await admin.message(result.offset_message_id)).body == b"%d" % number
