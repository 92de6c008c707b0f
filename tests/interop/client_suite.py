"""What our client must do against any broker: ours, Apache 4.9, Apache 5.

Each scenario is a coroutine function of a name server's address.  It makes topics and groups of its own, so
all of them share one broker.  Waiting is for a condition; the limit is the runner's.

Here are those of pulling, of the admin tool and of the sync face; the others are beside this file.
"""

from queue import Queue
from typing import Final

import pytest
import trio

from tests.interop.suite_consuming import CONSUMING
from tests.interop.suite_retrying import RETRYING
from tests.interop.suite_sending import SENDING
from tests.interop.suite_tools import Inbox, Scenario, fresh, has_no_route, new_topic, send_numbered, until
from triomq.client import (
    Admin,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    SendStatus,
    sync,
)
from triomq.protocol.errors import NoRouteError


async def an_unknown_topic_has_no_route(namesrv: str) -> None:
    async with PullConsumer(fresh("group"), namesrv=namesrv) as pull:
        with pytest.raises(NoRouteError):
            await pull.queues(fresh("missing"))


async def a_pull_consumer_reads_by_offset(namesrv: str) -> None:
    topic, group = await new_topic(namesrv, queues=1), fresh("group")
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        for number in range(10):
            await producer.send(Message(topic, b"%d" % number, tags="even" if number % 2 == 0 else "odd"))
    async with PullConsumer(group, namesrv=namesrv) as pull:
        (queue,) = await pull.queues(topic)
        assert (await pull.min_offset(queue), await pull.max_offset(queue)) == (0, 10)
        found = await pull.pull(queue, 3, max_messages=4)
        assert [message.body for message in found.messages] == [b"3", b"4", b"5", b"6"]
        assert (found.status.name, found.next_begin_offset, found.max_offset) == ("FOUND", 7, 10)
        odd = await pull.pull(queue, 0, "odd")
        assert [message.body for message in odd.messages] == [b"1", b"3", b"5", b"7", b"9"]
        assert (await pull.pull(queue, 10)).status.name == "NO_NEW_MESSAGE"
        assert (await pull.pull(queue, 0, "none")).status.name == "NO_MATCHED_MESSAGE"
        beyond = await pull.pull(queue, 50)
        assert (beyond.status.name, beyond.next_begin_offset) == ("OFFSET_ILLEGAL", 10)
        assert await pull.search_offset(queue, found.messages[0].store_timestamp - 60_000) == 0
        await pull.commit(queue, 7)
        assert await pull.committed(queue) == 7


async def a_waiting_pull_ends_with_the_next_message(namesrv: str) -> None:
    topic = await new_topic(namesrv, queues=1)
    got: list[bytes] = []

    async def wait_for_one(pull: PullConsumer) -> None:
        (queue,) = await pull.queues(topic)
        result = await pull.pull(queue, 0, wait_s=20)
        got.extend(message.body for message in result.messages)

    with trio.fail_after(10):
        async with PullConsumer(fresh("group"), namesrv=namesrv) as pull, trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_one, pull)
            await send_numbered(namesrv, topic, "late", 1)
    assert got == [b"late 0"]


async def topics_are_made_listed_and_deleted(namesrv: str) -> None:
    topic = await new_topic(namesrv, queues=3)
    async with Admin(namesrv=namesrv) as admin:
        assert topic in await admin.topics()
        (queue_data,) = (await admin.topic_route(topic)).queue_datas
        assert (queue_data.read_queue_nums, queue_data.write_queue_nums, queue_data.perm) == (3, 3, 6)
        await admin.delete_topic(topic)
        await until(lambda: has_no_route(admin, topic))
        assert topic not in await admin.topics()


async def admin_sees_offsets_members_and_lag(namesrv: str) -> None:
    topic, group = await new_topic(namesrv), fresh("group")
    inbox = Inbox()
    async with (
        Admin(namesrv=namesrv) as admin,
        PushConsumer(
            group, namesrv=namesrv, on_message=inbox.take, subscriptions={topic: "TagA"}, start="earliest"
        ) as consumer,
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


async def the_sync_face_sends_and_consumes(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    await trio.to_thread.run_sync(_use_the_sync_face, namesrv, topic, abandon_on_cancel=True)


def _use_the_sync_face(namesrv: str, topic: str) -> None:
    received: Queue[MessageExt] = Queue()

    def handle(message: MessageExt) -> None:
        received.put(message)

    with sync.Producer(fresh("producer"), namesrv=namesrv) as producer:
        sent = {producer.send(Message(topic, b"%d" % number, tags="T")).message_id for number in range(10)}
        batch = producer.send_batch([Message(topic, b"batch"), Message(topic, b"batch")])
        assert [result.status for result in batch] == [SendStatus.SEND_OK]
    with sync.PushConsumer(
        fresh("group"), namesrv=namesrv, on_message=handle, subscriptions={topic: "T"}, start="earliest"
    ):
        assert {received.get(timeout=30).message_id for _ in sent} == sent
    with sync.PullConsumer(fresh("group"), namesrv=namesrv) as pull:
        assert sum(pull.max_offset(queue) for queue in pull.queues(topic)) == 12
    with sync.Admin(namesrv=namesrv) as admin:
        assert topic in admin.topics()


ASKING: Final[tuple[Scenario, ...]] = (
    an_unknown_topic_has_no_route,
    a_pull_consumer_reads_by_offset,
    a_waiting_pull_ends_with_the_next_message,
    topics_are_made_listed_and_deleted,
    admin_sees_offsets_members_and_lag,
    the_sync_face_sends_and_consumes,
)

SCENARIOS: Final = (*SENDING, *CONSUMING, *RETRYING, *ASKING)
