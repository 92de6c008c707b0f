"""Sending, following, dead letters, delayed messages and transactions, against a real broker."""

import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import trio

from tests.visitor import Visitor, open_visitor, text_of, wait_until
from triomq.broker import Address
from triomq.client import Message, MessageExt, Producer, PullConsumer, TransactionProducer, TransactionState
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.errors import RequestTimeoutError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import TIMER_TOPIC, dead_letter_topic
from triomq.testing import RunningBroker, open_broker

HOSTILE = "<img src=x onerror=alert(1)>"


async def follow(visitor: Visitor, location: str) -> str:
    """Return the page to which a change leads."""
    parts = urlsplit(location)
    return await visitor.get(parts.path, 200, **dict(parse_qsl(parts.query)))


async def newest_of(visitor: Visitor, topic: str) -> str:
    """Return the page of the newest message of a topic."""
    found = re.search(r'href="(message\?[^"]+)"', await visitor.get("messages", name=topic))
    assert found is not None
    return await follow(visitor, found[1].replace("&amp;", "&"))


async def test_sent_message_is_shown(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("sent")
    async with open_visitor(rocketmq.namesrv) as visitor:
        assert f"triomq produce {topic}" in await visitor.get("send", name=topic)
        answer = await visitor.post(
            "message-send", name=topic, body=HOSTILE, tags="A", keys="k1 k2", properties="region=eu\n\nsize = 3"
        )
        assert answer.status_code == 303
        page = await follow(visitor, answer.headers["location"])
        text = text_of(page)
        assert "&lt;img src=x onerror=alert(1)&gt;" in text
        assert "TAGS A" in text
        assert "region eu" in text
        assert "size 3" in text
        (message,) = rocketmq.messages(topic)
        assert (message.body, message.keys) == (HOSTILE.encode(), ("k1", "k2"))


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"body": ""}, 400),
        ({"delay": "soon"}, 400),
        ({"properties": "no value"}, 400),
        ({"properties": "TAGS=x"}, 400),
        ({"tags": "a || b"}, 400),
        ({"name": "nothing"}, 404),
        ({"name": "<b>"}, 404),
    ],
)
async def test_impossible_message_is_not_sent(rocketmq: RunningBroker, form: dict[str, str], status: int) -> None:
    topic = rocketmq.new_topic("unsent")
    async with open_visitor(rocketmq.namesrv) as visitor:
        answer = await visitor.post("message-send", **{"name": topic, "body": "x", **form})
        assert answer.status_code == status, answer.text
        assert rocketmq.messages(topic) == []


async def test_read_only_dashboard_changes_nothing(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("kept")
    async with open_visitor(rocketmq.namesrv, read_only=True) as visitor:
        for path in ("message-send", "redrive", "message-recall", "transaction-decide"):
            assert (await visitor.post(path, name=topic, body="x")).status_code == 403
        for path in ("send", "dead-letters", "delayed", "transactions"):
            assert "<form" not in (await visitor.get(path, name=topic)).partition("<main")[2]


async def test_tail_shows_what_arrives(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("followed")
    async with open_visitor(rocketmq.namesrv) as visitor, Producer("p", namesrv=rocketmq.namesrv) as producer:
        await producer.send(Message(topic, b"before", tags="A"))
        queries: list[dict[str, str]] = [{}, {"tags": "A"}, {"sql": "size > 2"}]
        for query in queries:
            assert "Nothing has arrived" in await visitor.get("tail", 200, name=topic, **query)
        for number in range(3):
            tags = "A" if number else "B"
            await producer.send(
                Message(topic, f"m{number}{HOSTILE}".encode(), tags=tags, properties={"size": str(number + 1)})
            )
        for query, wanted in zip(queries, (["m2", "m1", "m0"], ["m2", "m1"], ["m2"]), strict=True):
            for _ in range(2):  # the second look finds nothing new and keeps the others
                page = await visitor.fragment("tail", name=topic, **query)
                assert re.findall(r"m\d(?=&lt;)", page) == wanted
                assert "<img" not in page
        async with PullConsumer(TOOLS_GROUP, namesrv=rocketmq.namesrv) as pull:
            assert [await pull.committed(queue) for queue in await pull.queues(topic)] == [None] * 4
        for query, status in (({"tags": "A", "sql": "a > 1"}, 400), ({"sql": "a >"}, 400)):
            await visitor.get("tail", status, name=topic, **query)
        await visitor.get("tail", 404, name="nothing")


async def test_failed_look_loses_no_message(rocketmq: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = rocketmq.new_topic("followed", queues=2)
    async with open_visitor(rocketmq.namesrv) as visitor, Producer("p", namesrv=rocketmq.namesrv) as producer:
        await visitor.get("tail", name=topic)
        for body in (b"before", b"one", b"two"):
            queues = sorted(await producer.publish_queues(topic))
            await producer.send(Message(topic, body), queue=queues[body == b"two"])
            if body == b"before":
                assert ">before<" in await visitor.fragment("tail", name=topic)
        pull, other_is_read = PullConsumer.pull, trio.Event()

        async def refuse(self: PullConsumer, queue: MessageQueue, *arguments: Any) -> Any:
            if queue.queue_id:
                await other_is_read.wait()
                raise RequestTimeoutError("the broker is silent")
            found = await pull(self, queue, *arguments)
            other_is_read.set()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(PullConsumer, "pull", refuse)
            assert (await visitor.http.get("/tail", params={"name": topic})).status_code == 504
        page = await visitor.fragment("tail", name=topic)
        assert re.findall(">(before|one|two)<", page) == ["two", "one", "before"]


async def test_flood_is_passed_by(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("flood", queues=1)
    async with open_visitor(rocketmq.namesrv) as visitor, Producer("p", namesrv=rocketmq.namesrv) as producer:
        await visitor.get("tail", name=topic)
        for begin in range(0, 11_000, 1000):
            await producer.send_batch([Message(topic, b"n%d" % number) for number in range(begin, begin + 1000)])
        page = await visitor.fragment("tail", name=topic)
        assert re.findall(r">n(\d+)<", page) == [str(number) for number in range(10_999, 10_967, -1)]
        assert "10\u202f968 messages were passed by" in page


async def make_dead(broker: RunningBroker, topic: str, group: str, bodies: list[bytes]) -> None:
    """Have a group of the broker give up messages."""
    async with Producer("p", namesrv=broker.namesrv) as producer, PullConsumer(group, namesrv=broker.namesrv) as pull:
        for body in bodies:
            result = await producer.send(Message(topic, body, keys="k"))
            (message,) = (await pull.pull(result.queue, result.queue_offset)).messages
            await pull.send_back(message, delay_level=-1)


async def test_chosen_dead_letter_is_sent_back(rocketmq_broker: RunningBroker) -> None:
    broker, topic = rocketmq_broker, rocketmq_broker.new_topic("orders")
    async with open_visitor(broker.namesrv) as visitor:
        assert "No group has dead letters." in await visitor.get("dead-letters")
        assert "This group has no dead letters." in await visitor.get("dead-letters", name="billing")
        await visitor.application.own.admin.create_group(SubscriptionGroupConfig("billing"))
        await make_dead(broker, topic, "billing", [b"one", HOSTILE.encode()])
        assert "billing 2 0" in text_of(await visitor.get("dead-letters"))
        page = await visitor.get("dead-letters", name="billing")
        assert "<img" not in page
        assert topic in text_of(page)
        chosen = re.findall(r'name="(chosen:[^"]+)"', page)
        assert len(chosen) == 2
        message = re.search(r'href="(message\?[^"]+DLQ[^"]+)"', page)
        assert message is not None
        text = text_of(await follow(visitor, message[1].replace("&amp;", "&")))
        assert "Group billing failed to consume it" in text
        form = {"name": "billing", "which": "chosen", chosen[0]: "1"}
        text = text_of((await visitor.post("redrive", **form)).text)
        assert "1 chosen dead letter would be sent" in text
        place = chosen[0].removeprefix("chosen:").replace("@", ":")
        assert f"triomq dlq redrive billing --at {place}" in text
        assert len(broker.messages(topic)) == 2
        assert (await visitor.post("redrive", **form, typed_name="billing")).status_code == 303
        assert len(broker.messages(topic)) == 3
        for wrong in ({}, {"chosen:x": "1"}, {"chosen:b:0@x": "1"}):
            assert (await visitor.post("redrive", **{"name": "billing", "which": "chosen", **wrong})).status_code == 400


async def test_all_dead_letters_are_sent_back(rocketmq_broker: RunningBroker) -> None:
    broker, topic = rocketmq_broker, rocketmq_broker.new_topic("orders")
    async with open_visitor(broker.namesrv) as visitor:
        await visitor.application.own.admin.create_group(SubscriptionGroupConfig("billing"))
        await make_dead(broker, topic, "billing", [b"one", b"two"])
        form = {"name": "billing", "which": "all"}
        text = text_of((await visitor.post("redrive", **form)).text)
        assert "2 dead letters would be sent" in text
        assert "triomq dlq redrive billing --dry-run" in text
        assert "another one" in text_of((await visitor.post("redrive", **form, typed_name="other")).text)
        assert len(broker.messages(topic)) == 2
        answer = await visitor.post("redrive", **form, typed_name="billing")
        assert answer.headers["location"] == "dead-letters?name=billing"
        text = text_of(await visitor.get("dead-letters", name="billing"))
        assert "Sent back: 2 dead letters of billing." in text
        assert "Dead letters 2 Sent back 2" in text
        assert len(broker.messages(topic)) == 4
        assert len(broker.messages(dead_letter_topic("billing"))) == 2


async def test_delayed_message_is_taken_back(rocketmq_broker: RunningBroker) -> None:
    topic = rocketmq_broker.new_topic("later")
    async with open_visitor(rocketmq_broker.namesrv) as visitor:
        answer = await visitor.post("message-send", name=topic, body="x", delay="60")
        page = await follow(visitor, answer.headers["location"])
        assert f"belongs to topic {topic}" in text_of(await newest_of(visitor, TIMER_TOPIC))
        found = re.search(r'name="handle" value="([^"]+)"', page)
        assert found is not None
        assert f"triomq message recall {found[1]}" in text_of(page)
        assert "To confirm, type the name" in (await visitor.post("message-recall", topic=topic, handle="x")).text
        for wrong in ({"handle": "x"}, {"topic": "other"}):
            form = {"topic": topic, "handle": found[1], **wrong}
            assert (await visitor.post("message-recall", **form, typed_name=form["topic"])).status_code == 400
        form = {"topic": topic, "handle": found[1]}
        assert page.count(f'value="{found[1]}"') == 2  # the button in the list has it too
        assert f"triomq message recall {found[1]}" in text_of((await visitor.post("message-recall", **form)).text)
        assert (await visitor.post("message-recall", **form, typed_name=topic)).status_code == 303
        listed = text_of(await visitor.get("delayed"))
        assert "taken back" in listed
        assert "Take back" not in listed
        rocketmq_broker.clock.advance(minutes=2)
        assert rocketmq_broker.messages(topic) == []


async def test_transactions_are_decided(rocketmq_broker: RunningBroker) -> None:
    broker, topic = rocketmq_broker, rocketmq_broker.new_topic("paid")
    async with open_visitor(broker.namesrv) as visitor:
        assert "No transaction is undecided." in await visitor.get("transactions")
        async with TransactionProducer("payers", namesrv=broker.namesrv, check=unknown) as producer:
            for body in (b"kept", b"dropped"):
                await producer.begin(Message(topic, body))
        page = await visitor.get("transactions")
        kept, dropped = re.findall(r'name="id" value="([^"]+)"', page)
        assert "payers" in text_of(page)
        text = text_of((await visitor.post("transaction-decide", id=kept, topic=topic, decision="commit")).text)
        assert f"The message is delivered to topic {topic}" in text
        assert f"triomq transaction commit {kept}" in text
        assert broker.messages(topic) == []
        for transaction, decision in ((kept, "commit"), (dropped, "rollback")):
            form = {"id": transaction, "topic": topic, "decision": decision}
            assert (await visitor.post("transaction-decide", **form, typed_name=topic)).status_code == 303
        assert "No transaction is undecided." in await visitor.get("transactions")
        assert [message.body for message in broker.messages(topic)] == [b"kept"]
        form = {"id": kept, "topic": topic, "decision": "forget"}
        assert (await visitor.post("transaction-decide", **form, typed_name=topic)).status_code == 400


async def unknown(_message: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN


async def test_pages_of_a_hanging_broker_name_it(rocketmq_broker: RunningBroker) -> None:
    register = (Address.parse(rocketmq_broker.namesrv),)
    with open_broker(broker_name="broker-b", register=register) as other:
        async with open_visitor(rocketmq_broker.namesrv, answer_s=1.5) as visitor:
            sampler = visitor.application.own.sampler
            await wait_until(lambda: len(sampler.brokers) == 2)
            topic = other.new_topic("hung")
            with trio.fail_after(30):
                while "Queues" not in (await visitor.http.get("/topic", params={"name": topic})).text:  # noqa: ASYNC110  # another broker registers it
                    await trio.sleep(0.05)
            other.faults.stall(30)
            await wait_until(lambda: bool(sampler.silent))
            for path in ("topic", "messages", "tail"):
                text = text_of(await visitor.get(path, 504, name=topic))
                assert f"broker-b at {other.address}" in text
