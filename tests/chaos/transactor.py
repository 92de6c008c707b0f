"""``python -m tests.chaos.transactor NAMESRV SEED FIRST TRANSACTIONS SECONDS``: send messages in transactions.

They are spread over the time, and each has a unique key.  Writes a line for each :class:`Record`, in one write, so
that a kill leaves no half of it.  What becomes of a transaction is decided by the seed, also when it is asked about
one that was sent by a process before it, or that it could not send: then its half may be stored all the same.
Kills itself where the seed says so; otherwise it stays after the last one, to be asked.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple, Self

import trio

from tests.chaos.plan import KEYS, TOPIC, Course, course_for
from triomq.client import (
    ClientConfig,
    Message,
    MessageExt,
    ProducerConfig,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from triomq.protocol.errors import TriomqError

_TASKS: Final = 16
_PAUSE_S: Final = 0.5
#: A half message sent a second time is another transaction, and may be committed beside the first.
_SETTINGS: Final = ProducerConfig(retries=0)
#: A producer that does not send finds a broker that was restarted with its next heartbeat or route.
_CONFIG: Final = ClientConfig(connect=False, heartbeat_interval_s=1.0, poll_namesrv_interval_s=1.0)
_CHECKS: Final = "TRANSACTION_CHECK_TIMES"


class Step(StrEnum):
    """What is known of a transaction."""

    SENT = "sent"
    STORED = "stored"  # the broker has confirmed its half
    COMMIT = "commit"  # so it was decided; sent to the broker next
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"  # the broker has asked, and will never learn it
    ANSWERED = "answered"  # the broker has confirmed the decision
    DONE = "done"  # of no transaction: all are sent


class Record(NamedTuple):
    """A step of a transaction; the time is as in ``Attempt``."""

    number: int
    step: Step
    at_ns: int

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read a line that a producer wrote."""
        number, step, at_ns = line.split()
        return cls(int(number), Step(step), int(at_ns))


def _write(number: int, step: Step) -> None:
    os.write(1, b"%d %s %d\n" % (number, step.encode(), time.monotonic_ns()))


async def main(namesrv: str, seed: int, first: int, transactions: int, seconds: float) -> None:
    """Run the transactions, some side by side, and answer checks."""
    begin = trio.current_time()
    waiting = iter(range(transactions))

    async def check(message: MessageExt) -> TransactionState:
        number = int(message.body.split()[0]) - KEYS
        course = course_for(seed, number)
        await trio.lowlevel.checkpoint()
        if int(message.properties.get(_CHECKS, "0")) <= course.patience:
            return TransactionState.UNKNOWN
        _write(number, Step[course.last.name])
        return course.last

    async def run_some(producer: TransactionProducer, waiting: Iterator[int]) -> None:
        for index in waiting:
            await trio.sleep_until(begin + seconds * index / transactions)
            await _run_one(producer, first + index, course_for(seed, first + index))

    async with TransactionProducer(
        "chaos-transactor", namesrv=namesrv, check=check, topics=(TOPIC,), config=_CONFIG, settings=_SETTINGS
    ) as producer:
        async with trio.open_nursery() as nursery:
            for _ in range(_TASKS):
                nursery.start_soon(run_some, producer, waiting)
        _write(first, Step.DONE)
        await trio.sleep_forever()


async def _run_one(producer: TransactionProducer, number: int, course: Course) -> None:
    _write(number, Step.SENT)
    try:
        transaction: Transaction = await producer.begin(Message(TOPIC, b"%d 0" % (KEYS + number)))
    except TriomqError as exc:
        print(f"{number}: {type(exc).__name__}: {exc}", file=sys.stderr)
        await trio.sleep(_PAUSE_S)
        return
    _write(number, Step.STORED)
    if course.is_deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    await trio.sleep(course.slow_s)
    if course.first is not TransactionState.UNKNOWN:
        _write(number, Step[course.first.name])
    await producer.decide(transaction, course.first)
    if transaction.is_acknowledged:
        _write(number, Step.ANSWERED)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    trio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
