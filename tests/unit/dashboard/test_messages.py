"""A topic, its messages, and one message, against a real broker."""

import json
import os
import re
import shlex
from html import unescape

import msgpack
import pytest
import trio

from tests.visitor import Visitor, consume, open_visitor, text_of
from triomq.cli.arguments.admin_options import MessageFindOptions
from triomq.cli.arguments.arguments import parse
from triomq.client import Message, MessageExt, Producer, PushConsumer
from triomq.client.admin import browsing
from triomq.client.admin.browsing import Before
from triomq.testing import RunningBroker

HOSTILE = "<script>alert(1)</script>\u202e\x01\x7f&\"'"


def body_of(page: str) -> str:
    """Return the body that a page of a message shows."""
    found = re.search(r'<pre class="body"[^>]*>(.*?)</pre>', page, re.DOTALL)
    assert found is not None
    return found[1]


async def send(broker: RunningBroker, topic: str, *messages: Message) -> None:
    async with Producer("p", namesrv=broker.namesrv) as producer:
        for message in messages:
            await producer.send(message)


async def place_of(visitor: Visitor, topic: str) -> dict[str, str]:
    """Return the query of the page of the newest message."""
    page = await visitor.get("messages", name=topic)
    found = re.search(r'href="message\?topic=[^&]+&amp;queue=([^&]+)&amp;offset=(\d+)"', page)
    assert found is not None
    return {"topic": topic, "queue": found[1].replace("%3A", ":"), "offset": found[2]}


async def test_topic_has_queues_permission_and_lag(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("orders", queues=2)
    await send(rocketmq, topic, *[Message(topic, b"x")] * 5)
    await trio.to_thread.run_sync(consume, rocketmq.namesrv, topic, 5)
    await send(rocketmq, topic, Message(topic, b"x"))
    async with open_visitor(rocketmq.namesrv) as visitor:
        text = text_of(await visitor.get("topic", name=topic))
        assert "Messages 6" in text
        assert re.search(r"Queues on \S+ 2 Permission on \S+ read and write", text)
        assert "billing 1" in text
        assert f"triomq topic show {topic}" in text
        assert re.search(r":0 0 (\d) \1 \S+ \S+ UTC", text)
        assert "Messages 6" in text_of(await visitor.fragment("topic", name=topic))
        assert "Not found" in await visitor.get("topic", 404, name="nothing")
        await visitor.get("topic", 400)


async def test_older_messages_follow_without_gap(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("many")
    async with Producer("p", namesrv=rocketmq.namesrv) as producer:
        for number in range(0, 90, 9):
            await producer.send_batch(
                [Message(topic, f"body-{each:02}".encode()) for each in range(number, number + 9)]
            )
    async with open_visitor(rocketmq.namesrv) as visitor:
        found, page = list[str](), await visitor.get("messages", name=topic)
        while True:
            found += re.findall(r"body-\d\d", page)
            older = re.search(r'rel="next" href="([^"]+)"', page)
            if older is None:
                break
            page = (await visitor.http.get("/" + older[1].replace("&amp;", "&"))).text
        assert sorted(found) == [f"body-{each:02}" for each in range(90)]
        times = {message.body.decode(): message.store_timestamp for message in rocketmq.messages(topic)}
        assert found == sorted(found, key=lambda body: -times[body])


async def test_large_messages_are_read_one_by_one(rocketmq: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = rocketmq.new_topic("large", queues=1)
    bodies = [os.urandom(700_000) for _ in range(4)]
    monkeypatch.setattr(browsing, "_LIST_BYTES", 1)
    monkeypatch.setattr(browsing, "_QUEUE_BYTES", 1)
    async with Producer("p", namesrv=rocketmq.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))
    async with open_visitor(rocketmq.namesrv) as visitor:
        admin, before, found = visitor.application.own.admin, None, list[bytes]()
        for _ in range(4):
            page = await admin.newest_messages(topic, before=before)
            assert len(page.messages) == 1
            found += [message.body for message in page.messages]
            before = page.older
            if before is None:
                break
        assert found == bodies[::-1]


async def test_messages_are_found_by_time_key_id_offset(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("found", queues=1)
    await send(rocketmq, topic, Message(topic, b"first", keys="k1"), Message(topic, b"second", keys="k2"))
    async with open_visitor(rocketmq.namesrv) as visitor:
        first = (await visitor.application.own.admin.find_messages(topic, "k1"))[0]
        second = (await visitor.application.own.admin.find_messages(topic, "k2"))[0]
        for query, has_first, has_second in (
            ({}, True, True),
            ({"key": "k1"}, True, False),
            ({"key": "k3"}, False, False),
            ({"id": second.message_id}, False, True),
            ({"id": first.offset_message_id}, True, False),
            ({"id": "nothing"}, False, False),
            ({"id": "7F000001000000010000000000000000"}, False, False),  # an address that is no broker
            ({"queue": f"{first.broker_name}:0", "offset": "1"}, False, True),
            ({"until": "-1h"}, False, False),
            ({"until": "2999-01-01T00:00"}, True, True),
            ({"until": "2000-01-01"}, False, False),
        ):
            page = await visitor.get("messages", 200, name=topic, **query)
            assert ("first<" in page, "second<" in page) == (has_first, has_second), query
        for query in (
            {"until": "soon"},
            {"queue": "0", "offset": "0"},
            {"queue": "b:0", "offset": "-1"},
            {"key": "a b"},
        ):
            await visitor.get("messages", 400, name=topic, **query)
        await visitor.get("messages", 404, name=topic, queue="nothing:7", offset="0")
        await visitor.get("messages", 404, name="nothing")


async def test_each_list_has_a_command_that_works(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("commanded", queues=1)
    async with open_visitor(rocketmq.namesrv) as visitor, Producer("p", namesrv=rocketmq.namesrv) as producer:
        assert f">triomq message find --topic {topic}<" in await visitor.get("messages", name=topic)
        result = await producer.send(Message(topic, b"x", keys="k"))
        queue = f"{result.queue.broker_name}:{result.queue.queue_id}"
        words: list[dict[str, str]] = [{}, {"until": "2099-01-01"}, {"key": "k"}, {"queue": queue, "offset": "0"}]
        for query in words:
            page = await visitor.get("messages", 200, name=topic, **query)
            (command,) = re.findall("<code>triomq (.+)</code>", page)
            options = parse(shlex.split(unescape(command)))
            assert isinstance(options, MessageFindOptions)
            assert (options.topic, options.key) == (topic, query.get("key"))


async def test_message_page_shows_properties_and_groups(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("shown", queues=1)
    await send(rocketmq, topic, *[Message(topic, b"x", keys="a", properties={"region": "eu"})] * 5)
    await trio.to_thread.run_sync(consume, rocketmq.namesrv, topic, 5)
    await send(rocketmq, topic, *[Message(topic, b"y")] * 2)
    async with open_visitor(rocketmq.namesrv) as visitor:
        place = await place_of(visitor, topic)
        text = text_of(await visitor.get("message", 200, **place))
        assert "billing has not consumed it yet; 1 message of the queue first 5" in text
        assert "triomq message show" in text
        assert "It has no trace" in text
        text = text_of(await visitor.get("message", 200, **place | {"offset": "0"}))
        assert "region eu" in text
        assert "billing moved past it" in text
        await visitor.get("message", 404, **place | {"offset": "7"})
        await visitor.get("message", 404, id="7F000001000000010000000000000000")
        await visitor.get("message", 400)


async def test_failed_message_names_its_copies(rocketmq_broker: RunningBroker) -> None:
    topic, namesrv = rocketmq_broker.new_topic("failing"), rocketmq_broker.namesrv
    failed = trio.Event()

    async def fail(_message: MessageExt) -> None:
        failed.set()
        raise ValueError("clumsy")

    async with PushConsumer("clumsy", namesrv=namesrv, subscriptions={topic: "*"}, on_message=fail, trace=True):
        async with Producer("p", namesrv=namesrv, trace=True) as producer:
            await producer.send(Message(topic, b"x"))
        await failed.wait()
    async with open_visitor(namesrv) as visitor:
        place = await place_of(visitor, topic)
        with trio.fail_after(60):
            while "clumsy failed 1 time" not in (text := text_of(page := await visitor.get("message", 200, **place))):
                rocketmq_broker.clock.advance(seconds=15)
                await trio.sleep(0.05)
        assert "it waits for the next try: newest copy" in text
        assert "consumed" in text.partition("Trace")[2]
        copy = re.search(r'href="(message\?[^"]*RETRY[^"]*)"', page)
        assert copy is not None
        answer = await visitor.http.get("/" + copy[1].replace("&amp;", "&"))
        text = text_of(answer.text)
        assert "Group clumsy failed to consume it 1 time, so this copy is delivered to the group again." in text
        assert f"It was sent to topic {topic}. original" in text
        original = re.search(r'href="(message\?topic=[^"]*&amp;id=[^"]*)">original', answer.text)
        assert original is not None
        assert (await visitor.http.get("/" + original[1].replace("&amp;", "&"))).status_code == 200


async def test_hostile_message_is_escaped(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("hostile", queues=1)
    key, text = "</bdi><b>", HOSTILE.replace("\x01", "")
    await send(rocketmq, topic, Message(topic, HOSTILE.encode(), tags=text, keys=key, properties={text: text}))
    async with open_visitor(rocketmq.namesrv) as visitor:
        place = await place_of(visitor, topic)
        pages = [await visitor.get("messages", name=topic), await visitor.get("messages", name=topic, key=key)]
        pages += [
            await visitor.get("message", 200, **place, **{"as": kind})
            for kind in ("", "text", "json", "msgpack", "hex")
        ]
        for page in pages:
            assert "<script>alert" not in page
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body_of(pages[2])
        assert "It cannot be shown as json." in pages[4]


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        (b'{"a": [1, "\\ud800"]}', "json", '{\n &#34;a&#34;: [\n  1,\n  &#34;\ufffd&#34;\n ]\n}'),
        (msgpack.packb({"a": b"\xff", 1: None}), "msgpack", "{\n &#34;a&#34;: &#34;0xff&#34;,\n &#34;1&#34;: null\n}"),
        (b"plain", "text", "plain"),
        (b"17", "text", "17"),
        (b"\xff\xfe\0", "hex", f"00000000  {'ff fe 00':<47}  ..."),
        (b"[" * 100_000, "text", "[" * 65_536),
        (b"\x91" * 100_000, "hex", None),
        (b"9" * 10_000, "text", "9" * 10_000),
        (json.dumps([[["x"] * 1000] * 100]).encode(), "json", None),
    ],
    ids=["json", "msgpack", "text", "number", "binary", "deep", "deep-msgpack", "digits", "long"],
)  # fmt: skip
async def test_body_is_shown_as_what_it_is(rocketmq: RunningBroker, body: bytes, kind: str, shown: str | None) -> None:
    topic = rocketmq.new_topic("body", queues=1)
    await send(rocketmq, topic, Message(topic, body))
    async with open_visitor(rocketmq.namesrv) as visitor:
        page = await visitor.get("message", topic=topic, queue=(await place_of(visitor, topic))["queue"], offset="0")
        assert f'aria-label="Body as {kind}"' in page
        assert shown is None or body_of(page) == shown


async def test_body_of_4_mib_comes_in_parts(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("long", queues=1)
    body = "".join(f"{number:07}\n" for number in range(4 * 1024 * 1024 // 8 - 100)).encode()
    await send(rocketmq, topic, Message(topic, body))
    async with open_visitor(rocketmq.namesrv) as visitor:
        place = await place_of(visitor, topic)
        for kind in ("text", "hex"):
            page = await visitor.get("message", 200, **place, **{"as": kind, "part": "2"})
            assert len(body_of(page)) <= 70_000
            assert "Next part" in page
            assert "Previous part" in page
        assert body_of(await visitor.get("message", 200, **place, part="2"))[:8] == "0008192\n"
        last = await visitor.get("message", 200, **place, part="64")
        assert body_of(last).strip().endswith(f"{4 * 1024 * 1024 // 8 - 101:07}")
        assert "Next part" not in last
        assert body_of(await visitor.get("message", 200, **place, part="1000")) == ""


@pytest.mark.parametrize(
    ("body", "start"),
    [
        (b"a\tb\nc\x1b", "a b\u23cec\u241b"),
        ("\u00e9".encode() * 500, "\u00e9" * 120 + "\u2026"),
        (b"x" + "\u20ac".encode() * 500, "x" + "\u20ac" * 119 + "\u2026"),
        (bytes(range(256)) * 10, None),
        (b"a\0b", None),
        (b"text\xc3", None),
    ],
)
async def test_list_shows_the_start_of_text(rocketmq: RunningBroker, body: bytes, start: str | None) -> None:
    topic = rocketmq.new_topic("start")
    await send(rocketmq, topic, Message(topic, body))
    async with open_visitor(rocketmq.namesrv) as visitor:
        page = await visitor.get("messages", name=topic)
        assert (f">{start}</bdi>" if start is not None else ">binary<") in page


async def test_skip_of_newest_messages_is_bounded(rocketmq: RunningBroker) -> None:
    topic = rocketmq.new_topic("skipped")
    async with open_visitor(rocketmq.namesrv) as visitor:
        await visitor.get("messages", 400, name=topic, until="2026-01-01", skip="99999999")
        assert await visitor.application.own.admin.newest_messages(topic, before=Before(0)) == ([], None)
