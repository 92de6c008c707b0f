"""Services that end at a signal, in all APIs: a process that runs a consumer, against our broker."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triomq.client import Message
from triomq.client.sync import Producer
from triomq.testing import RunningBroker

MESSAGES = 500
SERVICE = """
import asyncio, sys, time
import trio
from triomq.client import PushConsumer as TrioConsumer, asyncio as of_asyncio, sync

api, namesrv, topic, path = sys.argv[1:]
handled = open(path, "a", buffering=1)

def on_message(message):
    time.sleep(0.005)
    handled.write(message.message_id + "\\n")

async def on_message_trio(message):
    await trio.sleep(0.005)
    handled.write(message.message_id + "\\n")

async def on_message_asyncio(message):
    await asyncio.sleep(0.005)
    handled.write(message.message_id + "\\n")

kind, handler = {
    "trio": (TrioConsumer, on_message_trio),
    "sync": (sync.PushConsumer, on_message),
    "asyncio": (of_asyncio.PushConsumer, on_message_asyncio),
}[api]
subscriptions = {topic: "*"}
consumer = kind(topic, namesrv=namesrv, on_message=handler, subscriptions=subscriptions, start="earliest")
if api == "trio":
    trio.run(consumer.run)
elif api == "sync":
    consumer.run()
else:
    asyncio.run(consumer.run())
print("left in order")
"""


def handled(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("api", ["trio", "sync", "asyncio"])
def test_service_leaves_in_order(rocketmq: RunningBroker, tmp_path: Path, api: str, number: signal.Signals) -> None:
    topic, path = rocketmq.new_topic(), tmp_path / "handled"
    with Producer("P", namesrv=rocketmq.namesrv) as producer:
        producer.send_batch([Message(topic, b"x")] * MESSAGES)
    command = [sys.executable, "-c", SERVICE, api, rocketmq.namesrv, topic, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        try:
            ends = time.monotonic() + 60
            while len(handled(path)) < 20 and service.poll() is None and time.monotonic() < ends:
                time.sleep(0.01)
            service.send_signal(number)
            out, err = service.communicate(timeout=60)
        finally:
            service.kill()
    assert (service.returncode, out, err) == (0, "left in order\n", "")
    ids = handled(path)
    assert 20 <= len(ids) == len(set(ids))
    assert rocketmq.groups[topic].behind[topic] == MESSAGES - len(ids)
    assert not rocketmq.groups[topic].members
