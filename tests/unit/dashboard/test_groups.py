"""Consumer groups: the list, one group, resets of offsets, against real brokers."""

import re
import time
from contextlib import AsyncExitStack

import pytest
import trio
from markupsafe import escape

from tests.visitor import check_html, consume, open_visitor, text_of, wait_until
from triomq.broker import Address
from triomq.client import Admin, ClientConfig, Message, MessageExt, Producer, PushConsumer
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.testing import RunningBroker, open_broker

HOSTILE = "<script>alert(1)</script>\u202e\"'&"


async def send(broker: RunningBroker, topic: str, count: int) -> None:
    async with Producer("p", namesrv=broker.namesrv) as producer:
        for _ in range(count):
            await producer.send(Message(topic, b"x"))


async def backlog(broker: RunningBroker, *, done: int, waiting: int) -> str:
    """Return a topic of which the group billing has consumed only the first messages."""
    topic = broker.new_topic("orders")
    await send(broker, topic, done)
    await trio.to_thread.run_sync(consume, broker.namesrv, topic, done)
    await send(broker, topic, waiting)
    return topic


async def test_groups_have_members_lag_and_age(rocketmq_broker: RunningBroker) -> None:
    await backlog(rocketmq_broker, done=5, waiting=3)
    async with open_visitor(rocketmq_broker.namesrv) as visitor:
        text = text_of(await visitor.get("groups"))
        assert re.search(r"billing 0 3 \d+ s 0 0 \d+ ", text), text
        assert "1 of 1 group" in text
        assert "triomq group list" in text
        assert re.search(r"billing 0 3 \d+ s ", text_of(await visitor.fragment("groups")))
        assert "No group has &lt;b&gt;" in (await visitor.get("groups", q="<b>")).replace('<bdi class="name">', "")
        assert "of 1 group " not in text_of(await visitor.get("groups", all="1"))


async def test_age_is_that_of_the_oldest_waiting(rocketmq_broker: RunningBroker) -> None:
    topic = await backlog(rocketmq_broker, done=5, waiting=0)
    rocketmq_broker.clock.advance(hours=5)
    stored_ms = (time.time() + 5 * 3600) * 1000
    await send(rocketmq_broker, topic, 3)
    async with Admin(namesrv=rocketmq_broker.namesrv) as admin:
        positions = (await admin.positions())["billing"]
        assert sum(each.broker_offset - each.consumer_offset for each in positions.values()) == 3
        oldest_ms = await admin.oldest_waiting_ms(positions)
        assert oldest_ms is not None
        assert abs(oldest_ms - stored_ms) < 3_600_000
        await admin.reset_offsets("billing", topic, "latest")
        assert await admin.oldest_waiting_ms((await admin.positions())["billing"]) is None


async def test_group_has_queues_and_the_reason_of_stalls(rocketmq_broker: RunningBroker) -> None:
    topic = await backlog(rocketmq_broker, done=5, waiting=3)
    async with open_visitor(rocketmq_broker.namesrv) as visitor:
        text = text_of(await visitor.get("group", name="billing"))
        for part in ("Members 0", "Messages behind 3", "No member is online", "triomq group show billing"):
            assert part in text
        assert re.search(rf"{topic} \S+:\d 1 – no member of the group is online 1 2 ", text), text
        assert "Not found" in await visitor.get("group", 404, name="billig")
        assert "similar groups: billing" in await visitor.get("group", 404, name="billig")
        assert "does not exist" in await visitor.get("group", 404, name=HOSTILE)
        await visitor.get("group", 400)


def member(broker: RunningBroker, topic: str, tags: str, name: str) -> PushConsumer:
    async def handle(_message: MessageExt) -> None:
        pass

    config = ClientConfig(client_ip="10.0.0.1", instance_name=name)
    return PushConsumer(
        "billing", namesrv=broker.namesrv, config=config, subscriptions={topic: tags}, on_message=handle
    )


async def test_members_with_hostile_and_equal_ids_are_shown(rocketmq_broker: RunningBroker) -> None:
    topic = rocketmq_broker.new_topic("orders")
    names = (("paid", HOSTILE), ("sent || <b>", "second"), ("paid", "second"))
    async with AsyncExitStack() as stack:
        for tags, name in names:
            await stack.enter_async_context(member(rocketmq_broker, topic, tags, name))
        visitor = await stack.enter_async_context(open_visitor(rocketmq_broker.namesrv))
        wanted = ("different-subscriptions", "duplicate-client-id", "Members</dt><dd>3")
        with trio.fail_after(60):
            page = ""
            while not all(word in page for word in wanted):
                await trio.sleep(0.2)
                page = await visitor.get("group", name="billing")
        assert "<script>alert" not in page
        assert str(escape(f"10.0.0.1@{HOSTILE}")) in page
        assert "sent || &lt;b&gt;" in page
        assert page.count("equal client id") == 2
        assert "give each process an instance name of its own" in page
        assert re.search(r"billing equal client ids 3 ", text_of(await visitor.get("groups")))


@pytest.mark.parametrize(
    ("to", "skipped", "again", "offsets"),
    [
        ({"to": "latest"}, 3, 0, 8),
        ({"to": "earliest"}, 0, 5, 0),
        ({"to": "time", "time": "2001-02-03T04:05"}, 0, 5, 0),
    ],
)
async def test_reset_shows_plan_and_asks_for_name(
    rocketmq_broker: RunningBroker, to: dict[str, str], skipped: int, again: int, offsets: int
) -> None:
    topic = await backlog(rocketmq_broker, done=5, waiting=3)
    form = {"group": "billing", "topic": topic, **to}
    async with open_visitor(rocketmq_broker.namesrv) as visitor, Admin(namesrv=rocketmq_broker.namesrv) as admin:

        async def position() -> int:
            return sum(each.consumer_offset for each in await admin.group_lag("billing", topic))

        for typed in ({}, {"typed_name": "bill"}):
            answer = await visitor.post("group-reset", **form, **typed)
            check_html(answer.text)
            text = text_of(answer.text)
            assert (answer.status_code, await position()) == (200, 5)
            assert f"Skipped {skipped} messages Consumed again {again} messages" in text
            assert "--dry-run" in text
            assert ("is another one" in text) is bool(typed)
        answer = await visitor.post("group-reset", **form, typed_name="billing")
        assert (answer.status_code, answer.headers["location"]) == (303, "group?name=billing")
        assert await position() == offsets
        text = text_of(await visitor.get("group", name="billing"))
        assert "Group billing resumes at " in text
        assert f"Messages behind {8 - offsets} " in text


async def test_wrong_resets_are_refused(rocketmq_broker: RunningBroker) -> None:
    topic = await backlog(rocketmq_broker, done=1, waiting=0)
    right = {"group": "billing", "topic": topic, "to": "latest"}
    wrong: list[tuple[dict[str, str], int, str]] = [
        ({"to": "time", "time": "soon"}, 400, "is no time"),
        ({"to": "time", "time": "2999-01-01T00:00"}, 400, "is in the future"),
        ({"to": "time", "time": ""}, 400, "time is missing"),
        ({"to": HOSTILE}, 400, "is none of earliest"),
        ({"topic": ""}, 400, "topic is missing"),
        ({"topic": "nothing"}, 404, "Not found"),
        ({"group": HOSTILE}, 404, "does not exist"),
        ({"group": "other"}, 404, "does not exist"),
        ({"group": "other", "typed_name": "other"}, 404, "does not exist"),
    ]
    async with open_visitor(rocketmq_broker.namesrv) as visitor:
        for change, status, text in wrong:
            answer = await visitor.post("group-reset", **right | change)
            check_html(answer.text)
            assert (answer.status_code, text in answer.text) == (status, True), answer.text
    async with open_visitor(rocketmq_broker.namesrv, read_only=True) as visitor:
        assert "group-reset" not in await visitor.get("group", name="billing")
        assert (await visitor.post("group-reset", **right, typed_name="billing")).status_code == 403


async def test_many_groups_come_in_pages(rocketmq_broker: RunningBroker) -> None:
    async with Admin(namesrv=rocketmq_broker.namesrv) as admin:
        for number in range(102):
            await admin.create_group(SubscriptionGroupConfig(f"g{number:03}"))
    async with open_visitor(rocketmq_broker.namesrv) as visitor:
        page = await visitor.get("groups", page="2")
        assert re.findall(r'href="group\?name=(\w+)"', page) == ["g100", "g101"]
        assert "No problem found" in await visitor.get("group", name="g100")


async def test_pages_name_a_broker_that_hangs(rocketmq_broker: RunningBroker) -> None:
    register = (Address.parse(rocketmq_broker.namesrv),)
    with open_broker(broker_name="broker-b", register=register) as other:
        async with open_visitor(rocketmq_broker.namesrv, answer_s=1.5) as visitor:
            sampler = visitor.application.own.sampler
            await wait_until(lambda: len(sampler.brokers) == 2)
            other.faults.stall(30)
            await wait_until(lambda: bool(sampler.silent))
            for path, status in (("groups", 504), ("group?name=billing", 504), ("brokers", 200), ("accounts", 200)):
                assert other.address in await visitor.get(path, status)
