"""A topic is deleted and created again: under unmodified Java consumers of our broker, and under ours of Apache's."""

from pathlib import Path

import pytest
import trio

from tests.interop.kit_driver import ApacheBrokers, java_program
from tests.interop.suite_tools import fresh, new_topic
from tests.interop.test_replay_into_java import MEMBER, handled
from tests.processes import Broker
from triomq.client import Admin, Message, MessageExt, Producer, PushConsumer

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

OLD, NEW = 20, 30


async def send(namesrv: str, topic: str, numbers: range) -> list[int]:
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        for number in numbers:
            await producer.send(Message(topic, b"%d" % number))
    return list(numbers)


async def make_again(namesrv: str, topic: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=1)


async def test_java_consumer_begins_recreated_topic_at_first_message(triomq_broker: Broker, tmp_path: Path) -> None:
    """A Java client continues with its old offset after TOPIC_NOT_EXIST."""
    namesrv, group, output = str(triomq_broker.namesrv), fresh("java"), tmp_path / "handled.txt"
    topic = await new_topic(namesrv, queues=1)
    old = await send(namesrv, topic, range(OLD))
    with java_program(MEMBER, namesrv, group, topic, "concurrent", output=output), trio.fail_after(120):
        while sorted(handled(output)) != old:  # noqa: ASYNC110  # about a file
            await trio.sleep(0.1)
        async with Admin(namesrv=namesrv) as admin:
            await admin.delete_topic(topic)
        await make_again(namesrv, topic)
        new = await send(namesrv, topic, range(OLD, OLD + NEW))
        while sorted(handled(output)) != [*old, *new]:  # noqa: ASYNC110
            await trio.sleep(0.1)


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_our_consumer_begins_recreated_topic_at_first_message(
    apache_brokers: ApacheBrokers, version: str
) -> None:
    namesrv, seen = str(apache_brokers.get(version).namesrv), list[int]()

    async def on_message(message: MessageExt) -> None:
        seen.append(int(message.body))

    topic = await new_topic(namesrv, queues=1)
    with trio.fail_after(120):
        async with PushConsumer(
            fresh("group"), namesrv=namesrv, on_message=on_message, subscriptions={topic: "*"}
        ) as consumer:
            await consumer.wait_assigned()
            old = await send(namesrv, topic, range(OLD))
            while sorted(seen) != old:  # noqa: ASYNC110  # about a list
                await trio.sleep(0.1)
            async with Admin(namesrv=namesrv) as admin:
                await admin.delete_topic(topic)
            while not any("not exist" in queue.waiting_for for queue in consumer.statistics().queues.values()):  # noqa: ASYNC110
                await trio.sleep(0.1)  # until the pull that Apache's broker holds ends
            await make_again(namesrv, topic)
            new = await send(namesrv, topic, range(OLD, OLD + NEW))
            while sorted(seen) != [*old, *new]:  # noqa: ASYNC110
                await trio.sleep(0.1)
