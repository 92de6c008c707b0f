"""``python -m tests.kills.sender NAMESRV TOPIC PREFIX``: send without end, print acknowledged messages."""

import os
import sys
from itertools import count

import trio

from triomq.client import Message, Producer
from triomq.protocol.errors import TriomqError

_TASKS = 8


async def main(namesrv: str, topic: str, prefix: str) -> None:
    """Send with several tasks until the broker is gone; each line goes out in one write, so none is torn."""
    numbers = count()

    async def send(producer: Producer) -> None:
        while True:
            body = f"{prefix}-{next(numbers)}"
            await producer.send(Message(topic, body.encode() + b" " * 200))
            os.write(1, f"{body}{' ' * 200}\n".encode())

    try:
        async with Producer(f"sender-{prefix}", namesrv=namesrv) as producer, trio.open_nursery() as nursery:
            for _ in range(_TASKS):
                nursery.start_soon(send, producer)
    except* TriomqError as group:
        print(f"the broker is gone: {group.exceptions[0]}", file=sys.stderr)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
