"""``python -m tests.kills.sender NAMESRV TOPIC PREFIX``: send without end, print acknowledged messages.

Only those with ``SEND_OK`` count: they are where the broker promises them to be.  No message is sent twice.
"""

import os
import sys
from itertools import count

import trio

from triomq.client import Message, Producer, ProducerConfig, SendStatus
from triomq.protocol.errors import TriomqError

_TASKS = 8
_PAUSE_S = 0.01  # for a test of many kills rather than many messages
#: No attempt is repeated, and each may last longer than a sync-master waits for its slave.
_SETTINGS = ProducerConfig(retries=0, send_timeout_s=15.0)


async def main(namesrv: str, topic: str, prefix: str) -> None:
    """Send with several tasks until the broker is gone; each line goes out in one write, so none is torn."""
    numbers = count()

    async def send(producer: Producer) -> None:
        while True:
            body = f"{prefix}-{next(numbers)}"
            result = await producer.send(Message(topic, body.encode() + b" " * 200))
            if result.status is SendStatus.SEND_OK:
                os.write(1, f"{body}\n".encode())
            await trio.sleep(_PAUSE_S)

    try:
        async with (
            Producer(f"sender-{prefix}", namesrv=namesrv, settings=_SETTINGS) as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(_TASKS):
                nursery.start_soon(send, producer)
    except* TriomqError as group:
        print(f"the broker is gone: {group.exceptions[0]}", file=sys.stderr)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
