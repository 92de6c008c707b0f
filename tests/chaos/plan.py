"""What a seed decides: when members come, go and die, when the broker does, what handlers do with each message.

And what becomes of each transaction.
"""

from collections.abc import Sequence
from enum import Enum, StrEnum
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

from triomq.client import TransactionState

TOPIC: Final = "chaos"
QUEUES: Final = 8
KEYS: Final = 64
FIRST_MEMBERS: Final = 2
#: A message that failed so often becomes a dead letter.
MAX_FAILURES: Final = 3

_MOST_MEMBERS: Final = 5
_LONGEST_INTERVAL_S: Final = 2.0
_EVENTS_AT_LEAST: Final = 8
_OUT_OF: Final = 100_000
_POISONED: Final = 20
_RAISING: Final = 500
_REFUSED: Final = 500
_SLOW: Final = 200
_SLOW_S: Final = (0.02, 0.05, 0.3)
_COURSES: Final = (
    (45_000, TransactionState.COMMIT, TransactionState.COMMIT),
    (65_000, TransactionState.ROLLBACK, TransactionState.ROLLBACK),
    (80_000, TransactionState.UNKNOWN, TransactionState.COMMIT),
    (92_000, TransactionState.UNKNOWN, TransactionState.ROLLBACK),
    (_OUT_OF, TransactionState.UNKNOWN, TransactionState.UNKNOWN),
)
_MOST_PATIENCE: Final = 3
_DEADLY: Final = 250
_SLOW_TRANSACTIONS: Final = 1_000
#: A check comes meanwhile.
_SLOW_TRANSACTION_S: Final = 1.2


class Mode(StrEnum):
    """How a group consumes."""

    CONCURRENT = "concurrent"
    ORDERLY = "orderly"

    @property
    def group(self) -> str:
        """The name of the group that consumes so."""
        return f"chaos-{self}"


class Action(StrEnum):
    """What happens to a member, or to the broker."""

    JOIN = "member joins"
    LEAVE = "member leaves"
    KILL = "member killed"
    RESTART = "broker or name server restarted"
    CRASH = "broker or name server killed"

    @property
    def is_of_broker(self) -> bool:
        """Whether it happens to the broker."""
        return self in (Action.RESTART, Action.CRASH)


class Event(NamedTuple):
    """One action; ``mode`` and ``number`` name the member, or ``number`` alone the broker or name server."""

    at_s: float
    action: Action
    mode: Mode
    number: int


_WEIGHTS: Final = {Action.JOIN: 4, Action.LEAVE: 3, Action.KILL: 3, Action.RESTART: 1, Action.CRASH: 1}


def plan_events(seed: int, seconds: float, modes: Sequence[Mode], brokers: int = 1) -> list[Event]:
    """Return the events of a run; each group has a member at any time."""
    random = Random(seed)
    members = {mode: list(range(FIRST_MEMBERS)) for mode in modes}
    joined = dict.fromkeys(modes, FIRST_MEMBERS)
    interval_s = min(_LONGEST_INTERVAL_S, seconds / _EVENTS_AT_LEAST)
    events: list[Event] = []
    at_s = interval_s
    while at_s < seconds:
        mode = random.choice(modes)
        own = members[mode]
        possible = [action for action in Action if action.is_of_broker or _is_possible(action, len(own))]
        (action,) = random.choices(possible, [_WEIGHTS[one] for one in possible])
        number = 0
        if action is Action.JOIN:
            number, joined[mode] = joined[mode], joined[mode] + 1
            own.append(number)
        elif not action.is_of_broker:
            number = own.pop(random.randrange(len(own)))
        elif brokers > 1:
            number = random.randrange(brokers + 1)  # the last one is the name server
        events.append(Event(at_s, action, mode, number))
        at_s += interval_s * random.uniform(0.4, 1.6)
    return events


def _is_possible(action: Action, members: int) -> bool:
    return members < _MOST_MEMBERS if action is Action.JOIN else members > 1


class Fate(Enum):
    """What a handler does with a message."""

    WELL = 0
    RAISE = 1
    LATER = 2


class Order(NamedTuple):
    """What a handler does with a message, and how long it takes before."""

    fate: Fate
    slow_s: float


def order_for(seed: int, key: int, number: int, failures: int) -> Order:
    """Decide the outcome of a message after this many failures; few fail always."""
    if _draw(seed, key, number, -1) < _POISONED:
        return Order(Fate.RAISE if failures % 2 else Fate.LATER, 0.0)
    drawn = _draw(seed, key, number, failures)
    slow_s = _SLOW_S[drawn % len(_SLOW_S)] if _OUT_OF - drawn <= _SLOW else 0.0
    if drawn < _RAISING:
        return Order(Fate.RAISE, slow_s)
    return Order(Fate.LATER if drawn < _RAISING + _REFUSED else Fate.WELL, slow_s)


class Course(NamedTuple):
    """What a producer does with a transaction.

    Attributes:
        first: the producer's first decision.
        last: its answer to a check; the same, or the first decision.
        patience: how often it has to be asked before it knows.
        slow_s: how long it takes before it decides by itself.
        is_deadly: whether it is killed instead.
    """

    first: TransactionState
    last: TransactionState
    patience: int
    slow_s: float
    is_deadly: bool


def course_for(seed: int, number: int) -> Course:
    """Decide the outcome of a transaction."""
    drawn, other = _draw(seed, number), _draw(seed, number, 1)
    first, last = next(states for bound, *states in _COURSES if drawn < bound)
    slow_s = _SLOW_TRANSACTION_S if other < _SLOW_TRANSACTIONS else 0.0
    return Course(first, last, other % _MOST_PATIENCE, slow_s, _draw(seed, number, 2) < _DEADLY)


def _draw(*numbers: int) -> int:
    return crc32(repr(numbers).encode()) % _OUT_OF
