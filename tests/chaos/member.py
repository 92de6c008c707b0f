"""``python -m tests.chaos.member NAMESRV MODE NUMBER SEED SECONDS``: a member of a group, until SIGTERM.

Every other member has a plain function as handler.  Writes a line for each message that was handled, or was not: the
fields of :class:`Attempt` behind ``member``, in one write, so that a kill leaves no half of it.
"""

import logging
import os
import signal
import sys
import time
from typing import NamedTuple, Self

import trio

from tests.chaos.plan import MAX_FAILURES, TOPIC, Fate, Mode, order_for
from triomq.client import ConsumerConfig, ConsumeStatus, MessageExt, PushConsumer
from triomq.protocol.errors import TriomqError

_SETTINGS = ConsumerConfig(
    max_reconsume_times=MAX_FAILURES,
    orderly_max_reconsume_times=MAX_FAILURES,
    suspend_queue_s=0.02,
    resubmit_delay_s=0.5,
)
_JOIN_AGAIN_S = 0.2


class Attempt(NamedTuple):
    """A handler had a message; times are of the machine's monotonic clock, in nanoseconds."""

    member: str
    key: int
    number: int
    succeeded: bool
    queue_id: int
    queue_offset: int
    failures: int
    message_id: str
    begun_ns: int
    ended_ns: int

    @classmethod
    def parse(cls, member: str, line: str) -> Self:
        """Read a line that a member wrote."""
        key, number, succeeded, queue_id, queue_offset, failures, message_id, begun_ns, ended_ns = line.split()
        return cls(
            member,
            int(key),
            int(number),
            succeeded == "1",
            int(queue_id),
            int(queue_offset),
            int(failures),
            message_id,
            int(begun_ns),
            int(ended_ns),
        )


class _Handler:
    """Does with each message what the seed says."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def asynchronous(self, message: MessageExt) -> ConsumeStatus:
        """Handle a message as a coroutine function."""
        begun_ns = time.monotonic_ns()
        fate, slow_s = order_for(self._seed, *_numbers(message), message.reconsume_times)
        if slow_s:
            await trio.sleep(slow_s)
        else:
            await trio.lowlevel.checkpoint()
        return _end(message, begun_ns, fate)

    def plain(self, message: MessageExt) -> ConsumeStatus:
        """Handle a message as a plain function, in a thread."""
        begun_ns = time.monotonic_ns()
        fate, slow_s = order_for(self._seed, *_numbers(message), message.reconsume_times)
        if slow_s:
            time.sleep(slow_s)
        return _end(message, begun_ns, fate)


def _numbers(message: MessageExt) -> tuple[int, int]:
    key, number = message.body.split()
    return int(key), int(number)


def _end(message: MessageExt, begun_ns: int, fate: Fate) -> ConsumeStatus:
    fields = (
        *_numbers(message),
        int(fate is Fate.WELL),
        message.queue_id,
        message.queue_offset,
        message.reconsume_times,
        message.message_id,
        begun_ns,
        time.monotonic_ns(),
    )
    os.write(1, (" ".join(map(str, fields)) + "\n").encode())
    if fate is Fate.RAISE:
        raise ValueError("as the seed says")
    return ConsumeStatus.SUCCESS if fate is Fate.WELL else ConsumeStatus.RECONSUME_LATER


async def main(namesrv: str, mode: Mode, number: int, seed: int) -> None:
    """Be a member until SIGTERM; while no name server answers, try again."""
    handler = _Handler(seed)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stay, namesrv, mode, handler.plain if number % 2 else handler.asynchronous)
            await anext(signals)
            nursery.cancel_scope.cancel()  # the consumer ends in order


async def _stay(namesrv: str, mode: Mode, on_message: object) -> None:
    while True:
        try:
            async with PushConsumer(
                mode.group,
                namesrv=namesrv,
                on_message=on_message,  # type: ignore[arg-type]  # one of the two kinds
                subscriptions={TOPIC: "*"},
                start="earliest",
                orderly=mode is Mode.ORDERLY,
                settings=_SETTINGS,
            ):
                await trio.sleep_forever()
        except TriomqError as exc:
            print(f"not joined: {exc}", file=sys.stderr)
            await trio.sleep(_JOIN_AGAIN_S)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("triomq.client.consumer.handler").setLevel(logging.CRITICAL)  # failures by the thousand
    signal.alarm(int(sys.argv[5]))  # whatever becomes of who started it
    trio.run(main, sys.argv[1], Mode(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
