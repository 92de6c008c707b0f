"""``python -m tests.chaos.sender NAMESRV MESSAGES SECONDS``: send numbered messages of all keys, spread over the time.

A message of a key is sent again until it is acknowledged, and only then the next one.  Writes ``KEY NUMBER TRIES`` for
each that is.
"""

import os
import sys

import trio

from tests.chaos.plan import KEYS, TOPIC
from triomq.client import ClientConfig, Message, Producer, select_by_hash
from triomq.protocol.errors import TriomqError

_PAUSE_S = 0.1


async def main(namesrv: str, messages: int, seconds: float) -> None:
    """Send the messages of all keys side by side."""
    of_each = messages // KEYS
    begin = trio.current_time()

    async def send_all(producer: Producer, key: int) -> None:
        for number in range(of_each):
            await trio.sleep_until(begin + seconds * number / of_each)
            tries = 1
            while not await _is_sent(producer, key, number):
                tries += 1
                await trio.sleep(_PAUSE_S)
            os.write(1, b"%d %d %d\n" % (key, number, tries))

    config = ClientConfig(connect=False)  # the broker may be away
    async with (
        Producer("chaos-sender", namesrv=namesrv, config=config) as producer,
        trio.open_nursery() as nursery,
    ):
        for key in range(KEYS):
            nursery.start_soon(send_all, producer, key)


async def _is_sent(producer: Producer, key: int, number: int) -> bool:
    try:
        await producer.send(Message(TOPIC, b"%d %d" % (key, number)), selector=select_by_hash, key=key)
    except TriomqError as exc:
        print(f"{key} {number}: {type(exc).__name__}: {exc}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
