"""``python -m tests.chaos.member NAMESRV MODE NUMBER SEED SECONDS``: a member of a group, until SIGTERM.

Members take turns in the kind of handler they have: a coroutine function, a plain one, one for batches.  Writes a line
for each message that was handled, or was not: the fields of :class:`Attempt` behind ``member``, in one write, so that a
kill leaves no half of it.
"""

import logging
import os
import signal
import sys
import time
from typing import Any, NamedTuple, Self

import trio

from tests.chaos.plan import MAX_FAILURES, QUEUES, TOPIC, Fate, Mode, Order, order_for
from triomq.client import (
    ClientConfig,
    ConsumeContext,
    ConsumerConfig,
    ConsumeStatus,
    MessageExt,
    OrderlyContext,
    PushConsumer,
)
from triomq.protocol.errors import TriomqError

_SETTINGS = ConsumerConfig(
    max_reconsume_times=MAX_FAILURES,
    orderly_max_reconsume_times=MAX_FAILURES,
    suspend_queue_s=0.02,
    resubmit_delay_s=0.5,
)
#: A broker that has stopped is not in the routes; its messages wait until they are polled again.
_CONFIG = ClientConfig(poll_namesrv_interval_s=2.0)
_JOIN_AGAIN_S = 0.2


class Attempt(NamedTuple):
    """A handler had a message.

    Times are of the machine's monotonic clock, in nanoseconds.  Queue ids continue from one broker to the next.
    """

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

    def kind(self, number: int) -> dict[str, Any]:
        """Return the handler of a member, as arguments of its consumer."""
        kinds = ({"on_message": self._asynchronous}, {"on_message": self._plain}, {"on_messages": self._batch})
        return dict(kinds[number % len(kinds)])

    async def _asynchronous(self, message: MessageExt) -> ConsumeStatus:
        begun_ns = time.monotonic_ns()
        fate, slow_s = self._order(message)
        if slow_s:
            await trio.sleep(slow_s)
        else:
            await trio.lowlevel.checkpoint()
        _write(_line(message, begun_ns, time.monotonic_ns(), succeeded=fate is Fate.WELL))
        return _status(fate)

    def _plain(self, message: MessageExt) -> ConsumeStatus:
        begun_ns = time.monotonic_ns()
        fate, slow_s = self._order(message)
        if slow_s:
            time.sleep(slow_s)
        _write(_line(message, begun_ns, time.monotonic_ns(), succeeded=fate is Fate.WELL))
        return _status(fate)

    async def _batch(self, messages: list[MessageExt], context: ConsumeContext | OrderlyContext) -> ConsumeStatus:
        """Handle a batch: up to the first message that fails, or not at all if it raises or the mode is orderly.

        So neighbours of a message that fails always may become dead letters with it.
        """
        times, worst, done = [], Fate.WELL, len(messages)
        for index, message in enumerate(messages):
            begun_ns = time.monotonic_ns()
            fate, slow_s = self._order(message)
            await trio.sleep(slow_s)
            times.append((begun_ns, time.monotonic_ns()))
            if worst is Fate.WELL is not fate:
                worst, done = fate, index
        if worst is Fate.LATER and isinstance(context, ConsumeContext):
            context.ack_index, worst = done - 1, Fate.WELL
        elif worst is not Fate.WELL:
            done = 0
        _write(*(_line(one, *times[at], succeeded=at < done) for at, one in enumerate(messages)))
        return _status(worst)

    def _order(self, message: MessageExt) -> Order:
        return order_for(self._seed, *_numbers(message), message.reconsume_times)


def _numbers(message: MessageExt) -> tuple[int, int]:
    key, number = message.body.split()
    return int(key), int(number)


def _line(message: MessageExt, begun_ns: int, ended_ns: int, *, succeeded: bool) -> str:
    key, number = _numbers(message)
    broker = int(message.broker_name.rpartition("-")[2])
    place = (
        f"{broker * QUEUES + message.queue_id} {message.queue_offset} {message.reconsume_times} {message.message_id}"
    )
    return f"{key} {number} {succeeded:d} {place} {begun_ns} {ended_ns}\n"


def _write(*lines: str) -> None:
    os.write(1, "".join(lines).encode())


def _status(fate: Fate) -> ConsumeStatus:
    if fate is Fate.RAISE:
        raise ValueError("as the seed says")
    return ConsumeStatus.SUCCESS if fate is Fate.WELL else ConsumeStatus.RECONSUME_LATER


async def main(namesrv: str, mode: Mode, number: int, seed: int) -> None:
    """Be a member until SIGTERM; while no name server answers, try again."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stay, namesrv, mode, _Handler(seed).kind(number))
            await anext(signals)
            nursery.cancel_scope.cancel()  # the consumer ends in order


async def _stay(namesrv: str, mode: Mode, handler: dict[str, Any]) -> None:
    while True:
        try:
            async with PushConsumer(
                mode.group,
                namesrv=namesrv,
                **handler,
                subscriptions={TOPIC: "*"},
                start="earliest",
                orderly=mode is Mode.ORDERLY,
                config=_CONFIG,
                settings=_SETTINGS,
            ):
                await trio.sleep_forever()
        except TriomqError as exc:
            print(f"not joined: {exc}", file=sys.stderr)
            await trio.sleep(_JOIN_AGAIN_S)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("triomq.client.consumer.handler").setLevel(logging.CRITICAL)  # failures by the thousand
    signal.alarm(int(sys.argv[5]))  # even if the parent process dies
    trio.run(main, sys.argv[1], Mode(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
