"""Runs a plan: brokers, two senders and the members of one or two groups, each in a separate process.

All processes are ended by their ids when the block is left, however that happens.
"""

import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

import trio

from tests.chaos.brokers import Brokers
from tests.chaos.judge import Happening, Identity, Verdict, is_settled, judge
from tests.chaos.member import Attempt
from tests.chaos.plan import FIRST_MEMBERS, QUEUES, TOPIC, Action, Event, Mode, plan_events
from tests.chaos.process import Process
from tests.chaos.transactions import TransactionVerdict, Transactor, figures, judge_transactions
from triomq.client import Admin

_LOOK_S: Final = 0.1
_REPORT_S: Final = 5.0
#: If no message arrives for this long, the missing ones are lost.
_STALL_S: Final = 40.0
_LEAVE_S: Final = 30.0
_START_S: Final = 30.0
#: Members end by themselves after the run's time and this.
_LIFE_S: Final = 300
#: Exit codes of members after SIGTERM, which may arrive before one handles it.
_ENDS: Final = (0, -signal.SIGKILL, -signal.SIGTERM)


class Settings(NamedTuple):
    """What a run is to be.

    Attributes:
        seed: decides what happens when.
        seconds: how long things happen.
        messages, transactions: spread over that time.
        brokers: of which each has the topic.
        modes: of the groups.
    """

    seed: int
    seconds: float
    messages: int
    transactions: int = 0
    brokers: int = 1
    modes: Sequence[Mode] = (*Mode,)


class Outcome(NamedTuple):
    """What a run gave.

    Attributes:
        acknowledged: messages that were sent.
        resent: those of them that were sent more than once.
        happenings: how often each action took place.
        transactions: how many took which step.
        verdicts: of each group.
        transaction_verdicts: likewise.
        complaints: what went wrong beside the messages.
    """

    acknowledged: int
    resent: int
    happenings: dict[Action, int]
    transactions: str
    verdicts: dict[Mode, Verdict]
    transaction_verdicts: dict[Mode, TransactionVerdict]
    complaints: list[str]

    @property
    def is_good(self) -> bool:
        """Whether all that must hold held."""
        return (
            not self.complaints
            and all(verdict.is_good for verdict in self.verdicts.values())
            and all(verdict.is_good for verdict in self.transaction_verdicts.values())
        )


class _Member(Process):
    """A member and its planned end."""

    def __init__(self, mode: Mode, number: int, folder: Path, *words: str) -> None:
        super().__init__(f"{mode}-{number}", folder, "tests.chaos.member", *words)
        self.mode = mode
        self.joining: Happening | None = None
        self.ending: Happening | None = None


class Chaos:
    """One run; use it as a context manager."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Take settings; nothing is started before the block is entered."""
        self._folder, self._settings = folder, settings
        seed, seconds, modes = settings.seed, settings.seconds, settings.modes
        self._brokers = Brokers(folder, settings.brokers)
        self._members: dict[str, _Member] = {}
        self._transactor = Transactor(folder, seed, seconds, settings.transactions)
        self._tries: dict[Identity, int] = {}
        self._attempts: dict[Mode, list[Attempt]] = {mode: [] for mode in modes}
        self._settled: dict[Mode, set[Identity]] = {mode: set() for mode in modes}
        self._happenings: list[tuple[Mode | None, Happening]] = []
        self._complaints: list[str] = []
        self._begun = time.monotonic()
        self._next_report = _REPORT_S

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._stack = stack
            stack.callback(self._brokers.kill)
            self._brokers.start()
            trio.run(self._make_topic)
            for mode in self._settings.modes:
                for number in range(FIRST_MEMBERS):
                    self._happen(Event(0.0, Action.JOIN, mode, number))
            words = (self._brokers.namesrv, str(self._settings.messages), str(self._settings.seconds))
            self._sender = Process("sender", self._folder, "tests.chaos.sender", *words)
            stack.callback(self._sender.close)
            self._transactor.start(self._brokers.namesrv)
            stack.callback(self._transactor.close)
            self._wait_first()
            self._stack = stack.pop_all()
            return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self) -> Outcome:
        """Let everything happen, wait until all messages are settled, and judge."""
        settings = self._settings
        for event in plan_events(settings.seed, settings.seconds, settings.modes, settings.brokers):
            self._look_until(event.at_s)
            self._report(f"{event.action} {'' if event.action.is_of_broker else event.mode} {event.number}")
            self._happen(event)
        self._look_until(settings.seconds)
        self._settle()
        for member in self._members.values():
            self._leave(member)
        self._wait_left()
        if uncommitted := trio.run(self._uncommitted):
            self._complaints.append(f"{uncommitted} messages or transactions were not committed in the end")
        dead = trio.run(self._dead_letters)
        try:
            self._brokers.stop()
        except AssertionError as exc:
            self._complaints.append(str(exc))
        return self._judge(dead)

    async def _make_topic(self) -> None:
        async with Admin(namesrv=self._brokers.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)

    def _start_member(self, mode: Mode, number: int) -> _Member:
        life = str(int(self._settings.seconds) + _LIFE_S)
        words = (self._brokers.namesrv, mode.value, str(number), str(self._settings.seed), life)
        member = _Member(mode, number, self._folder, *words)
        self._stack.callback(member.close)
        self._members[member.name] = member
        return member

    def _wait_first(self) -> None:
        """Begin the time with the first message: on a busy machine a process needs seconds to start."""
        deadline = time.monotonic() + _START_S
        while not self._tries and time.monotonic() < deadline:
            time.sleep(_LOOK_S)  # about what another process writes
            self._look()
        self._begun = time.monotonic()
        self._next_report = _REPORT_S

    def _happen(self, event: Event) -> None:
        name = f"{event.mode}-{event.number}"
        happening = Happening(event.action, "" if event.action.is_of_broker else name, time.monotonic_ns())
        self._happenings.append((None if event.action.is_of_broker else event.mode, happening))
        if event.action.is_of_broker:
            self._brokers.restart(event.number, is_crash=event.action is Action.CRASH)
            happening.ended_ns = time.monotonic_ns()
        elif event.action is Action.JOIN:
            self._start_member(event.mode, event.number).joining = happening
        elif (member := self._members.get(name)) is None:
            happening.ended_ns = happening.begun_ns  # it has ended by itself, which is complained about already
        elif event.action is Action.LEAVE:
            self._leave(member, happening)
        else:
            member.ending = happening
            member.process.kill()

    def _leave(self, member: _Member, happening: Happening | None = None) -> None:
        if member.ending is None:
            member.ending = happening or Happening(Action.LEAVE, member.name, time.monotonic_ns())
            member.process.send_signal(signal.SIGTERM)

    def _look_until(self, at_s: float) -> None:
        self._look()  # also when it is late: a producer that is dead has to be followed by the next
        while (left_s := self._begun + at_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))  # the seed decides the moments; they depend on no condition
            self._look()

    def _look(self) -> None:
        """Read the processes' output, and note the ones that have ended."""
        for line in self._sender.lines.new():
            key, number, tries = map(int, line.split())
            self._tries[key, number] = tries
        if (complaint := self._transactor.look()) is not None:
            self._complaints.append(complaint)
        for name, member in [*self._members.items()]:
            code = member.process.poll()  # first: its output before its end is complete then
            attempts = [Attempt.parse(name, line) for line in member.lines.new()]
            self._attempts[member.mode] += attempts
            if attempts and member.joining is not None:
                member.joining.ended_ns = min(attempts[0].begun_ns, member.joining.ended_ns)
            self._settled[member.mode].update((one.key, one.number) for one in attempts if is_settled(one))
            if code is not None:
                self._bury(member, code)
        if time.monotonic() - self._begun > self._next_report:
            self._next_report += _REPORT_S
            self._report("")

    def _bury(self, member: _Member, code: int) -> None:
        del self._members[member.name]
        member.close()
        if member.ending is not None:
            member.ending.ended_ns = time.monotonic_ns()
        if code not in _ENDS or member.ending is None:
            self._complaints.append(f"{member.name} ended with {code}, see its log:\n{self._tail(member.name)}")

    def _tail(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]

    def _report(self, what: str) -> None:
        settled = ", ".join(f"{mode} {len(settled)}" for mode, settled in self._settled.items())
        at_s = time.monotonic() - self._begun
        sent = f"{len(self._tries)} and {len(self._transactor.committed)} committed"
        print(f"{at_s:6.1f} s  sent {sent}, settled {settled}  {what}".rstrip(), flush=True)

    def _settle(self) -> None:
        """Wait until the senders have ended and all they sent is settled and committed, or nothing is any more."""
        progress, changed_at = -1, time.monotonic()
        while time.monotonic() - changed_at < _STALL_S:
            is_sent = self._sender.process.poll() is not None and self._transactor.is_done
            self._look()
            sent = self._tries.keys() | self._transactor.committed
            if is_sent and not any(sent - settled for settled in self._settled.values()):
                if not (uncommitted := trio.run(self._uncommitted)):
                    break
            else:
                uncommitted = 0
            now = len(sent) + sum(map(len, self._settled.values())) - uncommitted
            if now != progress:
                progress, changed_at = now, time.monotonic()
            time.sleep(_LOOK_S)  # about what other processes write
        if self._sender.process.poll() != 0:
            self._complaints.append(f"the sender did not come to its end\n{self._tail('sender')}")

    async def _uncommitted(self) -> int:
        """Return the number of undecided transactions or, if that is 0, of messages not committed."""
        async with Admin(namesrv=self._brokers.namesrv) as admin:
            if len((await admin.cluster()).broker_addr_table) < self._settings.brokers:
                return 1  # the name server has restarted, and they register in a moment
            if undecided := len(await admin.transactions()):
                return undecided
            return sum([row.lag for mode in self._settings.modes for row in await admin.group_lag(mode.group, TOPIC)])

    def _wait_left(self) -> None:
        deadline = time.monotonic() + _LEAVE_S
        while self._members and time.monotonic() < deadline:
            self._look()
            time.sleep(_LOOK_S)  # about what other processes do
        self._complaints += [f"{name} did not end in time\n{self._tail(name)}" for name in self._members]

    async def _dead_letters(self) -> dict[Mode, set[Identity]]:
        """Return the dead letters of each group."""
        dead: dict[Mode, set[Identity]] = {}
        async with Admin(namesrv=self._brokers.namesrv) as admin:
            for mode in self._settings.modes:
                letters = await admin.dead_letters(mode.group, 10**6)
                dead[mode] = {(int(key), int(number)) for key, number in (one.message.body.split() for one in letters)}
        return dead

    def _judge(self, dead: dict[Mode, set[Identity]]) -> Outcome:
        counts: defaultdict[Action, int] = defaultdict(int)
        for _, happening in self._happenings:
            counts[happening.action] += 1
        verdicts, transaction_verdicts = {}, {}
        records = self._transactor.records
        for mode in self._settings.modes:
            happenings = [happening for whose, happening in self._happenings if whose in (None, mode)]
            verdicts[mode] = judge(mode, self._tries, self._attempts[mode], dead[mode], happenings)
            transaction_verdicts[mode] = judge_transactions(records, self._attempts[mode], dead[mode])
        resent = sum(tries > 1 for tries in self._tries.values())
        transactions = f"{figures(records)}; their producer killed {self._transactor.deaths} times"
        return Outcome(
            len(self._tries), resent, dict(counts), transactions, verdicts, transaction_verdicts, self._complaints
        )


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the block ends the processes it started."""

    def leave(signal_number: int, _frame: object) -> None:
        raise SystemExit(128 + signal_number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
