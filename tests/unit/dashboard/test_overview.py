"""The overview and the list of topics, against a real broker."""

import re

import pytest
import trio

from tests.visitor import consume, open_visitor, text_of
from triomq.client import Message, Producer
from triomq.testing import RunningBroker


async def test_overview_shows_broker_and_no_problem(rocketmq_broker: RunningBroker) -> None:
    async with open_visitor(rocketmq_broker.namesrv) as visitor:
        text = text_of(await visitor.get(""))
        assert "No problem found" in text
        assert "1 broker and 0 consumer groups examined" in text
        assert rocketmq_broker.address in text
        assert "triomq doctor" in text
        assert "No problem found" in text_of(await visitor.fragment(""))


async def test_topics_have_messages_and_lag_of_groups(rocketmq_broker: RunningBroker) -> None:
    topic, other = rocketmq_broker.new_topic("orders"), rocketmq_broker.new_topic("payments")
    async with Producer("p", namesrv=rocketmq_broker.namesrv) as producer:
        for _ in range(7):
            await producer.send(Message(topic, b"x"))
        await trio.to_thread.run_sync(consume, rocketmq_broker.namesrv, topic, 7)
        for _ in range(3):
            await producer.send(Message(topic, b"x"))
    async with open_visitor(rocketmq_broker.namesrv) as visitor:
        text = text_of(await visitor.get("topics"))
        assert re.search(rf"{topic} – 10 4 \S+ \S+ UTC billing 3 ", text)
        assert f"{other} – 0 4" in text
        found = text_of(await visitor.get("topics", q="ORD"))
        assert topic in found
        assert other not in found
        assert "1 of 2 topics" in found
        assert "%RETRY%" in text_of(await visitor.get("topics", all="1"))


async def test_many_topics_come_in_pages(rocketmq_broker: RunningBroker) -> None:
    for number in range(205):
        rocketmq_broker.create_topic(f"t{number:03}")
    async with open_visitor(rocketmq_broker.namesrv) as visitor:
        for page, first, last, count in (
            ("1", 0, 99, 100),
            ("2", 100, 199, 100),
            ("3", 200, 204, 5),
            ("9", 200, 204, 5),
        ):
            text = await visitor.get("topics", page=page)
            names = re.findall(r">t(\d+)</bdi>", text)
            assert (len(names), names[0], names[-1]) == (count, f"{first:03}", f"{last:03}")
        assert 'href="topics?page=2"' in await visitor.get("topics")


@pytest.mark.parametrize("path", ["", "topics"])
async def test_no_name_server_has_a_page(path: str) -> None:
    async with open_visitor("127.0.0.1:1") as visitor:
        text = text_of(await visitor.get(path, 503))
        assert "No name server answers" in text
        assert "127.0.0.1:1" in text
