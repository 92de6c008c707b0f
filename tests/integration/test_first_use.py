"""Mistakes of a first use, in all APIs, against our broker."""

from typing import Any

import pytest
import trio

from tests.facades import FACADES, Producer, PushConsumer, use_facade
from tests.process_handlers import succeed
from triomq.client import ConsumerConfig, Message
from triomq.testing import RunningBroker


async def succeed_async(*_arguments: object) -> object:
    await trio.lowlevel.checkpoint()
    return {"ok": True}


# --- what handlers return ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["on_message", "on_messages"])
@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    ("facade", "handler", "executor"),
    [
        *((facade, succeed_async, "thread") for facade in FACADES),
        ("trio", succeed, "thread"),
        ("trio", succeed, "process"),
    ],
)
async def test_any_returned_value_consumes(
    rocketmq: RunningBroker, facade: str, handler: Any, executor: Any, orderly: bool, argument: str
) -> None:
    topic = rocketmq.new_topic()
    settings = ConsumerConfig(executor=executor, max_concurrency=2, suspend_queue_s=0.01)
    subscriptions = {topic: "*"}
    with use_facade(facade):
        async with Producer("P", namesrv=rocketmq.namesrv) as producer:
            await producer.send_batch([Message(topic, b"x")] * 10)
        async with PushConsumer(
            topic,
            namesrv=rocketmq.namesrv,
            subscriptions=subscriptions,
            start="earliest",
            settings=settings,
            orderly=orderly,
            **{argument: handler},
        ) as consumer:
            await rocketmq.wait_until_consumed(topic, timeout=60)
            statistics = consumer.statistics()
    assert (statistics.succeeded, statistics.failed, statistics.sent_back) == (10, 0, 0)
