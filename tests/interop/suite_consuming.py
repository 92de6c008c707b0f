"""Scenarios of the client suite: push consumers and their groups."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from queue import Queue
from tempfile import TemporaryDirectory

import trio

from tests.facades import Admin, LitePullConsumer, Producer, PullConsumer, PushConsumer
from tests.interop.suite_tools import (
    Inbox,
    consume,
    fresh,
    new_topic,
    poll_bodies,
    push_consumer,
    send_all,
    send_numbered,
)
from triomq.client import (
    ClientConfig,
    ConsumerConfig,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageModel,
    Sql,
    StartPosition,
    select_by_hash,
)


async def tag_filter_gets_only_these_tags(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    tags = ["TagA", "TagB", "TagC", None] * 10
    await send_all(namesrv, [Message(topic, b"%d" % n, tags=tag) for n, tag in enumerate(tags)])
    got = await consume(namesrv, topic, 20, "TagA || TagC")
    assert Counter(message.tags for message in got) == {"TagA": 10, "TagC": 10}


async def an_sql_filter_chooses_by_properties(namesrv: str) -> None:
    """By all kinds of consumers; the error for one that the broker does not take comes before the first message."""
    topic = await new_topic(namesrv)
    wanted = Sql("amount > 4 AND region IN ('eu', 'us') AND note IS NULL")
    regions = ("eu", "us", "cn")
    properties = [{"amount": str(number % 10), "region": regions[number % 3]} for number in range(60)]
    await send_all(namesrv, [Message(topic, b"%d" % n, properties=each) for n, each in enumerate(properties)])
    matching = sorted(
        b"%d" % n for n, each in enumerate(properties) if int(each["amount"]) > 4 and each["region"] != "cn"
    )
    got = await consume(namesrv, topic, len(matching), wanted)
    assert sorted(message.body for message in got) == matching
    async with LitePullConsumer(fresh("group"), namesrv=namesrv, start="earliest") as lite:
        await lite.subscribe(topic, wanted)
        assert sorted(await poll_bodies(lite, len(matching))) == matching
    bodies: list[bytes] = []
    async with PullConsumer(fresh("group"), namesrv=namesrv) as puller:
        for queue in await puller.queues(topic):
            offset, end = 0, await puller.max_offset(queue)
            while offset < end:
                result = await puller.pull(queue, offset, wanted)
                bodies += [message.body for message in result.messages]
                offset = result.next_begin_offset
    assert sorted(bodies) == matching


async def a_waiting_consumer_gets_messages_at_once(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    inbox = Inbox()
    took: list[float] = []
    async with Producer(fresh("producer"), namesrv=namesrv) as producer, push_consumer(namesrv, topic, inbox.take):
        for number in range(21):
            began = trio.current_time()
            await producer.send(Message(topic, b"%d" % number))
            await inbox.wait_count(number + 1)
            took.append(trio.current_time() - began)
    assert sorted(took)[10] < 0.5  # median: a poll by a timer would take a second or more


async def sync_and_batch_handlers_get_every_message(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    sent = await send_numbered(namesrv, topic, "both", 40)
    handled: Queue[bytes] = Queue()
    inbox = Inbox()

    def handle(message: MessageExt) -> None:
        handled.put(message.body)

    async with (
        push_consumer(namesrv, topic, handle),
        push_consumer(namesrv, topic, on_messages=inbox.take_batch, batch_max_size=8),
    ):
        await inbox.wait_count(len(sent))
        received = [await trio.to_thread.run_sync(handled.get, abandon_on_cancel=True) for _ in sent]
    assert sorted(received) == sorted(inbox.bodies()) == sorted(sent)


def places(messages: Sequence[MessageExt]) -> set[tuple[str, int]]:
    return {(message.broker_name, message.queue_id) for message in messages}


async def two_members_share_the_queues(namesrv: str) -> None:
    topic, group = await new_topic(namesrv), fresh("group")
    first, second, both = Inbox(), Inbox(), Inbox()

    def member(inbox: Inbox) -> PushConsumer:
        async def take(message: MessageExt) -> None:
            await inbox.take(message)
            await both.take(message)

        return push_consumer(namesrv, topic, take, group=group)

    async with Producer(fresh("producer"), namesrv=namesrv) as producer, member(first):
        queues = await producer.publish_queues(topic)
        sent = 0

        async def who_gets_the_next_of_each_queue() -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
            """A message may come twice while a queue changes hands, so bodies are counted, not arrivals."""
            nonlocal sent
            before = len(first.messages), len(second.messages)
            for queue in queues:
                await producer.send(Message(topic, b"%d" % sent), queue=queue)
                sent += 1
            await both.wait_for(lambda: len(set(both.bodies())) == sent)
            of_first, of_second = first.messages[before[0] :], second.messages[before[1] :]
            return places(of_first), places(of_second)

        everywhere = {(queue.broker_name, queue.queue_id) for queue in queues}
        assert await who_gets_the_next_of_each_queue() == (everywhere, set())
        async with member(second):
            with trio.fail_after(60):  # the members learn of each other at different times, and may overlap at first
                shares = await who_gets_the_next_of_each_queue()
                while sorted(map(len, shares)) != [2, 2]:
                    shares = await who_gets_the_next_of_each_queue()
            assert set.union(*shares) == everywhere
        assert await who_gets_the_next_of_each_queue() == (everywhere, set())


async def orderly_members_keep_the_steps_of_every_order(namesrv: str) -> None:
    """C.2 scenario 59, while a second member joins and leaves."""
    topic, group = await new_topic(namesrv), fresh("group")
    inboxes = {"first": Inbox(), "second": Inbox(), "both": Inbox()}
    busy: set[tuple[str, int]] = set()
    shared: list[tuple[str, int]] = []  # queues that two members had at the same time

    def member(name: str) -> PushConsumer:
        async def take(message: MessageExt) -> None:
            queue = (message.broker_name, message.queue_id)
            shared.extend(busy & {queue})
            busy.add(queue)
            await trio.sleep(0.005)
            busy.discard(queue)
            await inboxes[name].take(message)
            await inboxes["both"].take(message)

        return push_consumer(namesrv, topic, take, group=group, orderly=True)

    sent = 0
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:

        async def send_step() -> None:
            nonlocal sent
            for order in range(10):
                await producer.send(Message(topic, b"%d:%d" % (order, sent)), selector=select_by_hash, key=order)
            sent += 1

        for _ in range(60):
            await send_step()
        async with member("first"):
            await inboxes["first"].wait_count(20)
            async with member("second"):
                while len(inboxes["second"].messages) < 20:  # else the first may handle all before it gets a queue
                    await send_step()
                    await trio.sleep(0.05)
            await inboxes["both"].wait_count(10 * sent)
    assert shared == []
    for order in range(10):
        of_order = [body.partition(b":") for body in inboxes["both"].bodies() if body.startswith(b"%d:" % order)]
        assert [int(step) for _, _, step in of_order] == list(range(sent))


async def failing_orderly_message_blocks_queue_until_dead_letter(namesrv: str) -> None:
    """C.2 scenario 58; the dead letter is there at once, also at brokers that would delay it."""
    topic, group = await new_topic(namesrv, queues=1), fresh("group")
    await send_numbered(namesrv, topic, "n", 2)
    inbox = Inbox()

    async def take(message: MessageExt) -> ConsumeStatus:
        await inbox.take(message)
        is_bad = message.body == b"n 0"
        return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if is_bad else ConsumeStatus.SUCCESS

    settings = ConsumerConfig(orderly_max_reconsume_times=2, suspend_queue_s=0.1)
    async with push_consumer(namesrv, topic, take, group=group, orderly=True, settings=settings):
        await inbox.wait_count(4)
        assert inbox.bodies() == [b"n 0", b"n 0", b"n 0", b"n 1"]
    (dead,) = await consume(namesrv, f"%DLQ%{group}", 1)
    assert dead.body == b"n 0"


async def restarted_consumer_resumes_at_committed_offset(namesrv: str) -> None:
    topic, group = await new_topic(namesrv), fresh("group")
    for name in ("before", "after"):
        sent = await send_numbered(namesrv, topic, name, 20)
        inbox = Inbox()
        async with push_consumer(namesrv, topic, inbox.take, group=group):
            await inbox.wait_count(20)
        assert sorted(inbox.bodies()) == sorted(sent)
    async with Admin(namesrv=namesrv) as admin:
        rows = await admin.group_lag(group, topic)
    assert sum(row.consumer_offset for row in rows) == 40
    assert sum(row.lag for row in rows) == 0


async def broadcasting_members_get_everything_and_resume(namesrv: str) -> None:
    """C.2 scenario 38."""
    topic, group = await new_topic(namesrv), fresh("group")
    with TemporaryDirectory() as folder:
        for round_name in ("before", "after"):
            inboxes = Inbox(), Inbox()
            one, two = (
                push_consumer(
                    namesrv,
                    topic,
                    inbox.take,
                    group=group,
                    config=ClientConfig(instance_name=f"{group}-{number}"),
                    model=MessageModel.BROADCASTING,
                    settings=ConsumerConfig(local_offset_dir=folder),
                )
                for number, inbox in enumerate(inboxes)
            )
            async with one, two:
                sent = await send_numbered(namesrv, topic, round_name, 20)
                for inbox in inboxes:
                    await inbox.wait_count(len(sent))
            assert [sorted(inbox.bodies()) for inbox in inboxes] == [sorted(sent)] * 2


async def start_latest_misses_nothing_from_then(namesrv: str) -> None:
    await _misses_nothing_from_then_on(namesrv, StartPosition.LATEST)


async def start_at_time_misses_nothing_from_then(namesrv: str) -> None:
    await _misses_nothing_from_then_on(namesrv, datetime.now(UTC))


async def _misses_nothing_from_then_on(namesrv: str, start: StartPosition | datetime) -> None:
    """Old messages may arrive: a broker may start a new group at 0 of a young queue in any case."""
    topic, group = await new_topic(namesrv), fresh("group")
    await send_numbered(namesrv, topic, "old", 8)
    inbox = Inbox()
    async with PushConsumer(
        group, namesrv=namesrv, on_message=inbox.take, subscriptions={topic: "*"}, start=start
    ) as consumer:
        await consumer.wait_assigned()
        sent = await send_numbered(namesrv, topic, "new", 20)
        await inbox.wait_for(lambda: set(sent) <= set(inbox.bodies()))
    assert max(Counter(inbox.bodies()).values()) == 1
