"""The dashboard's pages about groups, brokers and accounts against Apache's brokers."""

import re

import pytest

from tests.interop.kit_driver import ApacheBrokers
from tests.visitor import open_visitor, text_of, until_shown
from triomq.client import Admin, ClientConfig, Message, MessageExt, Producer, PullConsumer, PushConsumer
from triomq.protocol.bodies.route import SubscriptionGroupConfig

pytestmark = pytest.mark.jvm


async def ignore(_message: MessageExt) -> None:
    """Consume a message."""


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_groups_brokers_and_accounts_of_apache(apache_brokers: ApacheBrokers, version: str) -> None:
    namesrv, topic, group = apache_brokers.get(version).namesrv, "DashboardOrders", "DashboardBilling"
    async with Admin(namesrv=namesrv) as admin, open_visitor(namesrv, answer_s=5.0) as visitor:
        await admin.create_topic(topic, queues=1)
        await admin.create_group(SubscriptionGroupConfig(group))
        async with Producer("DashboardProducer", namesrv=namesrv) as producer:
            for _ in range(5):
                await producer.send(Message(topic, b"x"))
        async with PullConsumer(group, namesrv=namesrv) as consumer:
            (queue,) = await consumer.queues(topic)
            await consumer.commit(queue, 2)
        page = await until_shown(visitor, f"groups?q={group}", '<td class="n some">3</td>')
        assert re.search(rf"{group} 0 3 \d+ s 0 0 ", text_of(page)), text_of(page)
        text = text_of(await visitor.get("group", name=group))
        assert "Messages behind 3" in text
        assert "no member of the group is online" in await until_shown(visitor, f"group?name={group}", "wait in")

        form = {"group": group, "topic": topic, "to": "earliest"}
        plan = text_of((await visitor.post("group-reset", **form)).text)
        assert "Skipped 0 messages Consumed again 2 messages" in plan
        assert (await visitor.post("group-reset", **form, typed_name=group)).status_code == 303
        assert [each.consumer_offset for each in await admin.group_lag(group, topic)] == [0]

        config, subscriptions = ClientConfig(instance_name="dashboard-member"), {topic: "*"}
        async with PushConsumer(group, namesrv=namesrv, config=config, subscriptions=subscriptions, on_message=ignore):
            page = await until_shown(visitor, f"group?name={group}", "<dt>Members</dt><dd>1")
            assert "@dashboard-member" in page
            await until_shown(visitor, f"groups?q={group}", '<td class="n">1</td>')

        text = text_of(await until_shown(visitor, "brokers", f"RocketMQ {version}"))
        assert f"RocketMQ {version} async-master" in text
        assert f"{namesrv} 1 answers" in text
        (name, _), *_ = visitor.application.own.sampler.brokers
        assert "flushDiskType ASYNC_FLUSH" in text_of(await visitor.get("broker", name=name))
        assert "lists no accounts" in text_of(await visitor.get("accounts"))
