"""Scenarios of the client suite: pull consumers and lite pull consumers."""

from tempfile import TemporaryDirectory

import pytest
import trio

from tests.facades import LitePullConsumer, Producer, PullConsumer
from tests.interop.suite_tools import fresh, new_topic, poll_bodies, send_all, send_numbered
from triomq.client import ClientConfig, LitePullConfig, Message, MessageModel
from triomq.protocol.errors import ClientError, ConfigError, NoRouteError


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
        stored_at = found.messages[0].store_timestamp
        assert await pull.search_offset(queue, stored_at - 60_000) == 0
        assert await pull.offset_for_timestamp(queue, stored_at + 60_000) == 10
        await pull.commit(queue, 7)
        assert await pull.committed(queue) == 7


async def pull_of_hundred_messages_returns_thirty_two(namesrv: str) -> None:
    """C.2 scenario 24."""
    topic = await new_topic(namesrv, queues=1)
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        await producer.send_batch([Message(topic, b"x")] * 100)
    async with PullConsumer(fresh("group"), namesrv=namesrv) as pull:
        (queue,) = await pull.queues(topic)
        found = await pull.pull(queue, 5, max_messages=100)
    assert (len(found.messages), found.next_begin_offset) == (32, 37)


async def a_waiting_pull_ends_with_the_next_message(namesrv: str) -> None:
    topic = await new_topic(namesrv, queues=1)
    got: list[bytes] = []

    async def wait_for_one(pull: PullConsumer) -> None:
        (queue,) = await pull.queues(topic)
        result = await pull.pull(queue, 0, wait_s=20)
        got.extend(message.body for message in result.messages)

    with trio.fail_after(30):
        async with PullConsumer(fresh("group"), namesrv=namesrv) as pull, trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_one, pull)
            await send_numbered(namesrv, topic, "late", 1)
    assert got == [b"late 0"]


async def subscription_is_polled_to_end_and_resumed(namesrv: str) -> None:
    topic, group = await new_topic(namesrv), fresh("group")
    for name in ("before", "after"):
        sent = await send_numbered(namesrv, topic, name, 40)
        async with LitePullConsumer(group, namesrv=namesrv, start="earliest", auto_commit=False) as consumer:
            await consumer.subscribe(topic)
            assert sorted(await poll_bodies(consumer, 40)) == sorted(sent)
            assert await consumer.poll(0.2) == []
            await consumer.commit()
            offsets = [await consumer.committed(queue) for queue in consumer.assignment()]
        assert sum(offset or 0 for offset in offsets) == (40 if name == "before" else 80)


async def a_lite_pull_consumer_filters_by_tag(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    await send_all(namesrv, [Message(topic, b"%d" % n, tags="even" if n % 2 == 0 else "odd") for n in range(40)])
    async with LitePullConsumer(fresh("group"), namesrv=namesrv, start="earliest") as consumer:
        await consumer.subscribe(topic, "odd || other")
        got = await poll_bodies(consumer, 20)
        assert await consumer.poll(0.2) == []
    assert sorted(map(int, got)) == list(range(1, 40, 2))


async def lite_pull_members_share_the_queues(namesrv: str) -> None:
    topic, group = await new_topic(namesrv), fresh("group")
    async with (
        LitePullConsumer(group, namesrv=namesrv, start="earliest") as first,
        LitePullConsumer(group, namesrv=namesrv, start="earliest") as second,
    ):
        await first.subscribe(topic)
        await first.wait_assigned()
        assert len(first.assignment()) == 4
        await second.subscribe(topic)
        while len(first.assignment()) != 2 or len(second.assignment()) != 2:
            assert await first.poll(0.05) == []
        sent = await send_numbered(namesrv, topic, "shared", 20)
        got = {id(first): [b""] * 0, id(second): []}
        while sum(map(len, got.values())) < len(sent):
            for consumer in (first, second):
                got[id(consumer)] += [message.body for message in await consumer.poll(0.05)]
        assert sorted(got[id(first)] + got[id(second)]) == sorted(sent)
        assert {len(bodies) for bodies in got.values()} == {10}


async def broadcasting_members_poll_everything_and_resume(namesrv: str) -> None:
    """C.2 scenario 38: progress is in the members' own files, not at the broker."""
    topic, group = await new_topic(namesrv), fresh("group")

    def member(name: str) -> LitePullConsumer:
        return LitePullConsumer(
            group,
            namesrv=namesrv,
            config=ClientConfig(instance_name=f"{group}-{name}"),
            model=MessageModel.BROADCASTING,
            start="earliest",
            auto_commit=False,
            settings=LitePullConfig(local_offset_dir=folder),
        )

    with TemporaryDirectory() as folder:
        for round_name in ("before", "after"):
            sent = await send_numbered(namesrv, topic, round_name, 20)
            async with member("one") as one, member("two") as two:
                for consumer in (one, two):
                    await consumer.subscribe(topic)
                    assert sorted(await poll_bodies(consumer, 20)) == sorted(sent)
                    await consumer.commit()
                    assert sum([await consumer.committed(queue) or 0 for queue in consumer.assignment()]) % 20 == 0
                await one.seek_to_begin(one.assignment()[0])  # and does not commit it
    async with PullConsumer(group, namesrv=namesrv) as pull:
        assert not any([await pull.committed(queue) for queue in await pull.queues(topic)])


async def assigned_queues_are_sought_paused_and_resumed(namesrv: str) -> None:
    """C.2 scenario 68."""
    topic = await new_topic(namesrv, queues=2)
    async with LitePullConsumer(fresh("group"), namesrv=namesrv, start="earliest") as consumer:
        queue, other = await consumer.queues(topic)
        async with Producer(fresh("producer"), namesrv=namesrv) as producer:
            for number in range(10):
                await producer.send(Message(topic, b"%d" % number), queue=queue)
        await consumer.assign([queue])
        with pytest.raises(ClientError, match="mutually exclusive"):
            await consumer.subscribe(topic)
        for wrong in (-1, 11):
            with pytest.raises(ConfigError, match="not within 0 and 10"):
                await consumer.seek(queue, wrong)
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.seek(other, 0)
        await consumer.seek(queue, 7)
        assert await poll_bodies(consumer, 3) == [b"7", b"8", b"9"]
        await consumer.seek_to_begin(queue)
        assert await poll_bodies(consumer, 10) == [b"%d" % number for number in range(10)]
        await consumer.seek_to_end(queue)
        consumer.pause([queue])
        async with Producer(fresh("producer"), namesrv=namesrv) as producer:
            sent = await producer.send(Message(topic, b"10"), queue=queue)
        assert sent.queue_offset == 10
        assert await consumer.poll(0.2) == []
        consumer.resume([queue])
        (last,) = await consumer.poll(10)
        assert last.body == b"10"
        await consumer.seek_to_timestamp(queue, last.store_timestamp)
        assert b"10" in await poll_bodies(consumer, 1)


async def unpolled_message_is_never_committed(namesrv: str) -> None:
    """C.2 scenario 68: also not by an auto-commit; what one poll returned is committed by the next."""
    topic, group = await new_topic(namesrv, queues=1), fresh("group")
    await send_numbered(namesrv, topic, "n", 64)
    async with LitePullConsumer(group, namesrv=namesrv, start="earliest") as consumer:
        (queue,) = await consumer.queues(topic)
        await consumer.assign([queue])
        polled = len(await consumer.poll())
        await trio.sleep(1)
        assert consumer.statistics().cached_messages == 64 - polled
    async with PullConsumer(group, namesrv=namesrv) as pull:
        assert not await pull.committed(queue)
    async with LitePullConsumer(group, namesrv=namesrv, start="earliest") as consumer:
        await consumer.assign([queue])
        polled = len(await consumer.poll())
        consumer.commit_nowait()
        assert len(await consumer.poll()) == 64 - polled
    async with PullConsumer(group, namesrv=namesrv) as pull:
        assert await pull.committed(queue) == polled
