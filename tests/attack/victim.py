"""``python -m tests.attack.victim KIND NAMESRV TOPIC``: our client in a separate process.

Its settings are the defaults.  ``push`` and ``poll`` consume and print each short body; ``produce`` sends, and prints a
line for each attempt.  All run until they are ended.
"""

import sys
from typing import Final

import trio

from triomq.client import LitePullConsumer, Message, MessageExt, Producer, PushConsumer, TriomqError

_GROUP: Final = "victims"
_SHORT: Final = 100


def take(message: MessageExt) -> None:
    """Use the body as a handler would."""
    try:
        body = message.body
    except TriomqError:
        return
    if len(body) < _SHORT:
        print(body.decode(), flush=True)


async def push(namesrv: str, topic: str) -> None:
    """Consume with a handler."""

    async def handle(message: MessageExt) -> None:  # handlers may wait
        take(message)

    consumer = PushConsumer(
        _GROUP, namesrv=namesrv, subscriptions={topic: "*"}, start="earliest", on_message=handle
    )  # fmt: skip
    async with consumer:
        await trio.sleep_forever()


async def poll(namesrv: str, topic: str) -> None:
    """Poll and consume, keeping the messages of a poll until the next one."""
    async with LitePullConsumer(_GROUP, namesrv=namesrv, start="earliest") as consumer:
        await consumer.subscribe(topic)
        while True:
            messages = await consumer.poll()
            for message in messages:
                take(message)


async def produce(namesrv: str, topic: str) -> None:
    """Send again and again."""
    async with Producer(_GROUP, namesrv=namesrv) as producer:
        while True:
            try:
                await producer.send(Message(topic, b"x"))
                print("sent", flush=True)
            except TriomqError as exc:
                print(str(exc)[:_SHORT], flush=True)
            await trio.sleep(0.05)


if __name__ == "__main__":
    _, kind, name_server, to = sys.argv
    trio.run({"push": push, "poll": poll, "produce": produce}[kind], name_server, to)
