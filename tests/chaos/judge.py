"""Judges a run from the records of senders and members, and from the events done to them.

Nothing may be lost: each acknowledged message was handled successfully or is a dead letter.  In orderly mode a message
was not handled successfully before the one in front of it, of its key and of its queue, was settled: handled
successfully for the first time, or given up.  What was handled successfully twice needs a cause that the mode allows:
orderly queues change hands without repetition.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple, TypeAlias

from tests.chaos.member import Attempt
from tests.chaos.plan import MAX_FAILURES, Action, Mode

Identity: TypeAlias = tuple[int, int]
"""Key and number of a message."""


@dataclass
class Happening:
    """An event that took place; ``member`` is empty for those of the broker, and all times are as in ``Attempt``.

    Attributes:
        ended_ns: when it was over: the process is gone, or answers.
    """

    action: Action
    member: str
    begun_ns: int
    ended_ns: float = inf


class Cause(StrEnum):
    """Why a message was handled successfully once more."""

    RESENT = "sent again, its answer was lost"
    KILLED = "its member was killed"
    CRASHED = "the broker was killed"
    RESTARTED = "the broker was restarted"
    RETRIED = "it came again beside its own retry"
    LEFT = "its member left"
    MOVED = "its queue changed hands"
    UNEXPLAINED = "unexplained"


#: How long the consequences of an event may last: clients reconnect within 1 s and commit offsets every 0.5 s.
_AFTERMATH_NS: Final = 3 * 10**9
#: An event takes place a little after its time was read.
_SLACK_NS: Final = 10**8


class Verdict(NamedTuple):
    """What a group has shown.

    Attributes:
        handled: different messages handled successfully.
        dead: messages that became dead letters.
        lost: acknowledged messages that are neither.
        out_of_order: pairs of messages of which the second came too early.
        duplicates: how often a message was handled successfully once more, by cause.
        examples: of repetitions that nothing explains.
    """

    handled: int
    failures: int
    dead: int
    lost: list[Identity]
    out_of_order: list[tuple[Attempt, Attempt]]
    duplicates: Counter[Cause]
    examples: list[tuple[Attempt, Attempt]]

    @property
    def is_good(self) -> bool:
        """Whether all that must hold held."""
        return not (self.lost or self.out_of_order or self.duplicates[Cause.UNEXPLAINED])


def judge(
    mode: Mode,
    tries: Mapping[Identity, int],
    attempts: Iterable[Attempt],
    dead: Collection[Identity],
    happenings: Sequence[Happening],
) -> Verdict:
    """Judge a group.

    Args:
        mode: how it consumes.
        tries: how often each acknowledged message was sent.
        attempts: of all its members.
        dead: its dead letters.
        happenings: what happened to its members and to the broker.
    """
    all_of: defaultdict[Identity, list[Attempt]] = defaultdict(list)
    for attempt in sorted(attempts, key=lambda one: one.begun_ns):
        all_of[attempt.key, attempt.number].append(attempt)
    handled = {identity for identity, own in all_of.items() if any(attempt.succeeded for attempt in own)}
    duplicates: Counter[Cause] = Counter()
    examples = []
    for identity, own in all_of.items():
        for before, again in pairwise(attempt for attempt in own if attempt.succeeded):
            cause = _cause(mode, before, again, own, tries.get(identity, 2), happenings)
            duplicates[cause] += 1
            if cause is Cause.UNEXPLAINED:
                examples.append((before, again))
    return Verdict(
        len(handled),
        sum(not attempt.succeeded for own in all_of.values() for attempt in own),
        len(dead),
        sorted(tries.keys() - handled - set(dead)),
        _out_of_order(all_of.values()) if mode is Mode.ORDERLY else [],
        duplicates,
        examples,
    )


def is_settled(attempt: Attempt) -> bool:
    """Whether no other message has to wait for this one after the attempt."""
    return attempt.succeeded or attempt.failures >= MAX_FAILURES


def _out_of_order(messages: Iterable[list[Attempt]]) -> list[tuple[Attempt, Attempt]]:
    """Return neighbours, of a key or a queue, of which the second was begun before the first was settled.

    A key moves to another queue while a broker is down; order holds only within a queue.
    """
    by_key: defaultdict[tuple[int, int], dict[int, Attempt]] = defaultdict(dict)
    by_queue: defaultdict[int, dict[int, Attempt]] = defaultdict(dict)
    for own in messages:
        for attempt in filter(is_settled, own):  # by time: the first counts
            by_key[attempt.key, attempt.queue_id].setdefault(attempt.number, attempt)
            by_queue[attempt.queue_id].setdefault(attempt.queue_offset, attempt)
    lines = [[line[place] for place in sorted(line)] for line in (*by_key.values(), *by_queue.values())]
    return [(one, other) for line in lines for one, other in pairwise(line) if other.begun_ns < one.ended_ns]


def _cause(
    mode: Mode, before: Attempt, again: Attempt, own: Sequence[Attempt], tries: int, happenings: Sequence[Happening]
) -> Cause:
    if before.message_id != again.message_id:  # two copies
        return Cause.RESENT if tries > 1 else Cause.UNEXPLAINED
    near = [one for one in happenings if _is_near(one, before, again)]
    if any(one.action is Action.KILL and one.member == before.member for one in near):
        return Cause.KILLED
    if any(one.action is Action.CRASH for one in near):  # it forgets the offsets of its last 5 s
        return Cause.CRASHED
    if any(one.action is Action.RESTART for one in near):
        return Cause.RESTARTED
    if mode is Mode.ORDERLY:
        return Cause.UNEXPLAINED
    failed = [attempt for attempt in own if not attempt.succeeded]
    if again.failures and failed:  # stored for another try twice, or replayed meanwhile
        was_away = any(one.action.is_of_broker and _is_near(one, failed[0], again) for one in happenings)
        if len(failed) > 1 or near or was_away:
            return Cause.RETRIED
    if any(one.action is Action.LEAVE and one.member == before.member for one in near):
        return Cause.LEFT
    return Cause.MOVED if before.member != again.member and near else Cause.UNEXPLAINED


def _is_near(happening: Happening, before: Attempt, again: Attempt) -> bool:
    return happening.begun_ns - _SLACK_NS <= again.begun_ns and before.ended_ns <= happening.ended_ns + _AFTERMATH_NS


def table(verdicts: Mapping[Mode, Verdict]) -> str:
    """Return the verdicts as rows, one column for each group."""
    rows: list[tuple[str, list[int]]] = [
        ("messages handled", [verdict.handled for verdict in verdicts.values()]),
        ("failed attempts", [verdict.failures for verdict in verdicts.values()]),
        ("dead letters", [verdict.dead for verdict in verdicts.values()]),
        ("lost", [len(verdict.lost) for verdict in verdicts.values()]),
        ("out of order", [len(verdict.out_of_order) for verdict in verdicts.values()]),
        ("handled again", [verdict.duplicates.total() for verdict in verdicts.values()]),
    ]
    rows += [(f"  {cause}", [verdict.duplicates[cause] for verdict in verdicts.values()]) for cause in Cause]
    width = max(len(name) for name, _ in rows)
    lines = [" " * width + "".join(f"{mode:>12}" for mode in verdicts)]
    lines += [f"{name:<{width}}" + "".join(f"{figure:>12}" for figure in figures) for name, figures in rows]
    return "\n".join(lines)
