"""Undecided, committed and rolled-back transactions of one kind of broker, continued by the other on its store."""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.interop.clusters import QUICK_CHECKS
from tests.interop.kit_driver import ApacheBrokers
from tests.interop.store_exchange import APACHE_FIXTURE_SIZES, FIXTURE_SIZES, apache_on, read_all, within
from tests.interop.suite_tools import new_topic, until
from tests.processes import start_triomq
from triomq.client import Message, MessageExt, Transaction, TransactionProducer, TransactionState

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
GROUP: Final = "transactions"
LIMIT_S: Final = 90
QUIET_S: Final = 7.0  # both brokers check transactions older than 2 s every 2 s
EACH: Final = 4


class Checks:
    """Answers checks, and counts them."""

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()
        self.answers: dict[bytes, TransactionState] = {}

    async def check(self, message: MessageExt) -> TransactionState:
        await trio.lowlevel.checkpoint()
        self.counts[message.body] += 1
        return self.answers.get(message.body, UNKNOWN)


def names(kind: str) -> list[bytes]:
    return [f"{kind} {number}".encode() for number in range(EACH)]


async def begin_all(namesrv: str) -> tuple[str, dict[bytes, Transaction]]:
    """Leave transactions undecided of which some were checked; decide others before or after a check."""
    topic, checks, begun = await new_topic(namesrv), Checks(), dict[bytes, Transaction]()
    async with TransactionProducer(GROUP, namesrv=namesrv, check=checks.check, topics=[topic]) as producer:
        for kind in ("committed", "rolled back", "late commit", "checked", "late elsewhere"):
            for body in names(kind):
                begun[body] = await producer.begin(Message(topic, body))
        for body in names("committed"):
            await producer.decide(begun[body], COMMIT)
        for body in names("rolled back"):
            await producer.decide(begun[body], ROLLBACK)

        async def all_checked() -> bool:
            return set(checks.counts) >= {*names("late commit"), *names("checked"), *names("late elsewhere")}

        await until(all_checked)
        for body in names("late commit"):
            await producer.decide(begun[body], COMMIT)
        for body in names("fresh"):
            begun[body] = await producer.begin(Message(topic, body))
    assert not checks.counts.keys() & {*names("committed"), *names("rolled back")}
    return topic, begun


async def decide_all(namesrv: str, topic: str, begun: dict[bytes, Transaction]) -> Checks:
    """Decide the rest: by checks, and by decisions that name the first half messages."""
    checks = Checks()
    async with TransactionProducer(GROUP, namesrv=namesrv, check=checks.check, topics=[topic]) as producer:
        for body in names("late elsewhere"):
            while not begun[body].is_acknowledged:  # its broker may not be known yet
                await producer.decide(begun[body], COMMIT)
        for body in (*names("checked"), *names("fresh"), *names("late elsewhere"), *names("late commit")):
            checks.answers[body] = ROLLBACK if body.endswith(b"0") else COMMIT

        async def all_checked() -> bool:
            return set(checks.counts) >= {*names("checked"), *names("fresh")}

        await until(all_checked)
        await trio.sleep(QUIET_S)
    return checks


async def bodies(namesrv: str, topic: str) -> Counter[bytes]:
    return Counter(row.body for row in await read_all(namesrv, topic))


async def stays_quiet(namesrv: str, topic: str) -> Counter[bytes]:
    """Return the messages of the topic after a time in which nothing may be checked."""
    checks = Checks()
    async with TransactionProducer(GROUP, namesrv=namesrv, check=checks.check, topics=[topic]):
        await trio.sleep(QUIET_S)
    assert not checks.counts
    return await bodies(namesrv, topic)


EXPECTED: Final = {
    *names("committed"), *names("late commit"), *names("late elsewhere"), *names("checked")[1:], *names("fresh")[1:],
}  # fmt: skip


@pytest.mark.parametrize("kill", [False, True])
def test_apache_continues_our_transactions(tmp_path: Path, apache_brokers: ApacheBrokers, *, kill: bool) -> None:
    with start_triomq(tmp_path, *FIXTURE_SIZES, *QUICK_CHECKS) as ours:
        topic, begun = within(LIMIT_S, begin_all, ours.namesrv)
        if kill:
            ours.kill()
    with apache_on(apache_brokers, Path(ours.store)) as apache:
        checks = within(LIMIT_S, decide_all, apache.namesrv, topic, begun)
        found = within(LIMIT_S, bodies, apache.namesrv, topic)
        assert not checks.counts.keys() & {*names("committed"), *names("rolled back"), *names("late commit")}
        assert found.keys() == EXPECTED
        # A late decision settles the first half message only: Apache asks about its copy (behaviour.md A.6).
        twice = {body for body, count in found.items() if count > 1}
        assert twice <= set(names("late elsewhere"))


@pytest.mark.parametrize("kill", [False, True])
def test_we_continue_transactions_of_apache(tmp_path: Path, apache_brokers: ApacheBrokers, *, kill: bool) -> None:
    folder = tmp_path / "apache"
    apache = apache_brokers.start("4.9.7", folder, APACHE_FIXTURE_SIZES)
    try:
        topic, begun = within(LIMIT_S, begin_all, apache.namesrv)
        before = within(LIMIT_S, bodies, apache.namesrv, topic)
        apache_brokers.stop_broker(folder, kill=kill)
        (folder / "store-broker").rename(tmp_path / "store")
    finally:
        apache_brokers.stop(folder)
    with start_triomq(tmp_path, *FIXTURE_SIZES, *QUICK_CHECKS) as ours:
        checks = within(LIMIT_S, decide_all, ours.namesrv, topic, begun)
        found = within(LIMIT_S, bodies, ours.namesrv, topic)
    assert not checks.counts.keys() & {*names("committed"), *names("rolled back")}
    assert found.keys() == EXPECTED
    assert all(count == max(before[body], 1) for body, count in found.items())
    with start_triomq(tmp_path, *FIXTURE_SIZES, *QUICK_CHECKS) as ours:
        assert within(LIMIT_S, stays_quiet, ours.namesrv, topic) == found
