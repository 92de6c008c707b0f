"""A member of a group as a process, twin of GroupMember.java: NAMESRV GROUP TOPIC orderly|concurrent.

Writes a line for each message: queue, body, and when it was begun and ended, in nanoseconds since 1970.
"""

import signal
import sys
import time

import trio

from triomq.client import MessageExt, PushConsumer


async def main() -> None:
    """Consume until SIGTERM."""
    namesrv, group, topic, mode = sys.argv[1:]

    async def on_message(message: MessageExt) -> None:
        began = time.time_ns()
        await trio.sleep(0.003)
        sys.stdout.write(f"{message.queue_id} {message.body.decode()} {began} {time.time_ns()}\n")
        sys.stdout.flush()

    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with PushConsumer(
            group,
            namesrv=namesrv,
            on_message=on_message,
            subscriptions={topic: "*"},
            start="earliest",
            orderly=mode == "orderly",
        ):
            async for _ in signals:
                return


if __name__ == "__main__":
    trio.run(main)
