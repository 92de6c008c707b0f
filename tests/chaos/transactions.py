"""Transactions of a run: the lives of their producer, and what the groups have shown.

A message is not delivered before its transaction is committed, and so never if it is rolled back or stays undecided.
Each committed message is delivered, and is in its topic once: a decision that is repeated changes nothing.  A half
that the broker has confirmed is decided, or asked about.
"""

import signal
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.judge import Identity
from tests.chaos.member import Attempt
from tests.chaos.plan import KEYS
from tests.chaos.process import Process
from tests.chaos.transactor import Record, Step

#: More transactions than one producer begins.
_NUMBERS: Final = 10**9
_ENDS: Final = {Step.COMMIT, Step.ROLLBACK, Step.UNKNOWN}


class Transactor:
    """Runs one producer after another: each continues where the previous one was killed.

    Attributes:
        records: their output.
        committed: messages of transactions that they committed.
        deaths: how often one was killed.
        is_done: whether all are sent; the producer that is there answers checks.
    """

    is_done: bool

    def __init__(self, folder: Path, seed: int, seconds: float, transactions: int) -> None:
        """Take settings; nothing is started yet."""
        self.records: list[Record] = []
        self.committed: set[Identity] = set()
        self.deaths = 0
        self._folder, self._seed, self._seconds, self._transactions = folder, seed, seconds, transactions

    def start(self, namesrv: str) -> None:
        """Start the first one, or the next."""
        if not self.deaths:
            self._begun, self._namesrv = time.monotonic(), namesrv
        left_s = max(self._seconds - (time.monotonic() - self._begun), 0.0)
        left = round(self._transactions * left_s / self._seconds)
        words = (self._namesrv, str(self._seed), str(self.deaths * _NUMBERS), str(left), str(left_s))
        self._process = Process(f"transactor-{self.deaths}", self._folder, "tests.chaos.transactor", *words)
        self.is_done = False

    def look(self) -> str | None:
        """Read the producer's output, and start the next one if it is dead; return the faults found."""
        code = self._process.process.poll()  # first: its output before its end is complete then
        for record in map(Record.parse, self._process.lines.new()):
            self.is_done |= record.step is Step.DONE
            if record.step is Step.COMMIT:
                self.committed.add((KEYS + record.number, 0))
            self.records.append(record)
        if code is None:
            return None
        self.close()
        self.deaths += 1
        name = self._process.name
        self.start(self._namesrv)
        return None if code == -signal.SIGKILL else f"{name} ended with {code}, see its log"

    def close(self) -> None:
        """End the producer."""
        self._process.close()


class TransactionVerdict(NamedTuple):
    """What a group has shown of transactions, by their numbers.

    Attributes:
        delivered: in all.
        uncommitted: delivered before they were committed, or never committed.
        lost: committed, but neither handled successfully nor dead letters.
        repeated: more than once in the topic.
        forgotten: confirmed halves that were neither decided nor asked about.
    """

    delivered: int
    uncommitted: list[int]
    lost: list[int]
    repeated: list[int]
    forgotten: list[int]

    @property
    def is_good(self) -> bool:
        """Whether all that must hold held."""
        return not (self.uncommitted or self.lost or self.repeated or self.forgotten)


def judge_transactions(
    records: Iterable[Record], attempts: Iterable[Attempt], dead: Collection[Identity]
) -> TransactionVerdict:
    """Judge what a group had of transactions.

    Args:
        records: what their producers wrote.
        attempts: of all members of the group, also those with other messages.
        dead: its dead letters, likewise.
    """
    known: defaultdict[int, dict[Step, int]] = defaultdict(dict)
    for record in records:
        known[record.number].setdefault(record.step, record.at_ns)
    committed = {number: steps[Step.COMMIT] for number, steps in known.items() if Step.COMMIT in steps}
    ended = {key - KEYS for key, _ in dead if key >= KEYS}
    delivered = dict.fromkeys(ended, inf)
    places: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for attempt in attempts:
        if (number := attempt.key - KEYS) >= 0:
            delivered[number] = min(delivered.get(number, inf), attempt.begun_ns)
            if attempt.succeeded:
                ended.add(number)
            if not attempt.failures:  # otherwise its place may be in the retry topic
                places[number].add((attempt.queue_id, attempt.queue_offset))
    return TransactionVerdict(
        len(delivered),
        sorted(number for number, at_ns in delivered.items() if number not in committed or at_ns < committed[number]),
        sorted(committed.keys() - ended),
        sorted(number for number, own in places.items() if len(own) > 1),
        sorted(number for number, steps in known.items() if Step.STORED in steps and not steps.keys() & _ENDS),
    )


def figures(records: Iterable[Record]) -> str:
    """Return the number of transactions by step."""
    counts = Counter(step for _, step in {(record.number, record.step) for record in records})
    return ", ".join(f"{step} {counts[step]}" for step in Step if step is not Step.DONE)
