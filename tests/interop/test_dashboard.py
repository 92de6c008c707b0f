"""The dashboard against Apache's brokers: rates, contents, lag and findings come from their answers."""

import re

import pytest
import trio

from tests.interop.kit_driver import ApacheBrokers
from tests.visitor import open_visitor, text_of, until_shown, wait_until
from triomq.client import Admin, Message, Producer, PullConsumer
from triomq.protocol.bodies.route import SubscriptionGroupConfig

pytestmark = pytest.mark.jvm


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_overview_and_topics_of_apache(apache_brokers: ApacheBrokers, version: str) -> None:
    namesrv, topic, group = apache_brokers.get(version).namesrv, "DashboardTopic", "DashboardGroup"
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=2)
        await admin.create_group(SubscriptionGroupConfig(group))  # Apache's backlog knows groups with settings only
        while not all(each.runtime for each in await admin.brokers()):  # noqa: ASYNC110  # not in its first seconds
            await trio.sleep(0.1)
    async with open_visitor(namesrv) as visitor:
        sampler = visitor.application.own.sampler
        async with Producer("DashboardProducer", namesrv=namesrv) as producer:
            for _ in range(5):
                await producer.send(Message(topic, b"x"))
        async with PullConsumer(group, namesrv=namesrv) as consumer:
            for queue in await consumer.queues(topic):
                await consumer.commit(queue, 1)
        await wait_until(lambda: any(point.put for point in sampler.rates()))
        await until_shown(visitor, f"topics?q={topic}", ">3</span>")
        text = text_of(await visitor.get(""))
        assert f"RocketMQ {version}" in text
        assert "1 broker and " in text
        (broker,) = sampler.brokers.values()
        assert broker.durability == "async"
        assert broker.counters.put is not None
        assert broker.counters.disk is not None
        text = text_of(await visitor.get("topics", q=topic))
        assert re.search(rf"{topic} \S+ 5 2 \S+ \S+ UTC {group} 3 ", text), text
