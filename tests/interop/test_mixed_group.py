"""One group of an unmodified Java client and two of ours: they share the queues through joins, leaves and kills."""

import itertools
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

import pytest
import trio

from tests.interop.kit_driver import java_classpath
from tests.processes import Broker
from triomq.broker.groups.queue_locks import LOST_LIFE_MS
from triomq.client import Admin, Message, MessageQueue, Producer

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

HERE: Final = Path(__file__).parent
QUEUES: Final = 8
SETTLE_S: Final = 30.0  # half of the 60 s of a lock, a quarter of the 120 s of a silent member
SEND_INTERVAL_S: Final = 0.01


class Handled(NamedTuple):
    """One message in one member's handler; times in nanoseconds."""

    began: int
    ended: int
    queue_id: int
    number: int
    member: str


class Member:
    """A consumer process that writes its messages to a file."""

    def __init__(self, name: str, command: Sequence[str | Path], folder: Path) -> None:
        self.name = name
        self._written = folder / f"{name}.txt"
        with self._written.open("wb") as stdout, (folder / f"{name}.log").open("wb") as stderr:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)

    def handled(self) -> list[Handled]:
        lines = [line.split() for line in self._written.read_text().splitlines()]
        return [
            Handled(int(began), int(ended), int(queue_id), int(number), self.name)
            for queue_id, number, began, ended in (line for line in lines if len(line) == 4)
        ]

    async def leave(self) -> None:
        self.process.terminate()
        await trio.to_thread.run_sync(self.process.wait, 20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Group:
    """Starts members of one group and watches who owns what."""

    def __init__(self, namesrv: str, mode: str, folder: Path, classpath: str) -> None:
        self.name, self.topic = f"mixed-{mode}-{token_hex(3)}", f"mixed-{mode}-{token_hex(3)}"
        self.members: list[Member] = []
        self.namesrv = namesrv
        self._arguments = (namesrv, self.name, self.topic, mode)
        self._folder = folder
        self._classpath = classpath

    def join_java(self) -> Member:
        java = ("java", "-Xmx256m", "-cp", self._classpath, HERE / "GroupMember.java", *self._arguments)
        return self._join("java", java)

    def join_python(self) -> Member:
        return self._join("python", (sys.executable, HERE / "group_member.py", *self._arguments))

    def _join(self, kind: str, command: Sequence[str | Path]) -> Member:
        member = Member(f"{kind}-{len(self.members)}", command, self._folder)
        self.members.append(member)
        return member

    def handled(self) -> list[Handled]:
        return sorted(itertools.chain.from_iterable(member.handled() for member in self.members))

    def close(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.kill()


async def shared(admin: Admin, group: Group, *shares: int, within_s: float = SETTLE_S) -> None:
    """Wait until every queue has exactly one owner, and the owners have so many each."""
    with trio.move_on_after(within_s):
        owners: list[tuple[str, ...]] = []
        while True:
            owners = [queue.owners for queue in (await admin.group_state(group.name, group.topic)).queues]
            counts = Counter(itertools.chain.from_iterable(owners))
            if [len(each) for each in owners] == [1] * QUEUES and sorted(counts.values()) == sorted(shares):
                return
            await trio.sleep(0.1)
    pytest.fail(f"within {within_s} s the queues were not shared as {shares} but {owners}")


async def send_until(done: trio.Event, group: Group, sent: list[int]) -> None:
    """Number n goes to queue n modulo 8.  Not ended by cancelling: the last message would be sent, but not noted."""
    async with Producer("P", namesrv=group.namesrv) as producer:
        for number in itertools.count():
            if done.is_set():
                return
            queue = MessageQueue(group.topic, "broker-a", number % QUEUES)
            await producer.send(Message(group.topic, b"%d" % number), queue=queue)
            sent.append(number)
            await trio.sleep(SEND_INTERVAL_S)


@pytest.fixture(params=["concurrent", "orderly"])
def group(request: pytest.FixtureRequest, triomq_broker: Broker, tmp_path: Path) -> Iterator[Group]:
    with ExitStack() as stack:
        made = Group(triomq_broker.namesrv, request.param, tmp_path, java_classpath("4.9.7"))
        stack.callback(made.close)
        yield made


async def test_java_and_python_members_share_queues_through_churn(group: Group) -> None:
    """C.2 scenarios 32, 33 and 55: the locks of a killed member are freed, those of a Java member when they end."""
    sent: list[int] = []
    done = trio.Event()
    async with Admin(namesrv=group.namesrv) as admin:
        await admin.create_topic(group.topic, QUEUES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_until, done, group, sent)
            java, first, second = group.join_java(), group.join_python(), group.join_python()
            await shared(admin, group, 3, 3, 2, within_s=40)
            await second.leave()
            await shared(admin, group, 4, 4)
            first.kill()
            await shared(admin, group, 8)
            group.join_python()
            await shared(admin, group, 4, 4)
            third = group.join_python()
            await shared(admin, group, 3, 3, 2)
            java.kill()
            await shared(admin, group, 4, 4, within_s=LOST_LIFE_MS / 1000 + SETTLE_S)
            await third.leave()
            await shared(admin, group, 8)
            done.set()
        with trio.move_on_after(SETTLE_S):
            while {each.number for each in group.handled()} != set(sent):  # noqa: ASYNC110  # about files
                await trio.sleep(0.1)
    handled = group.handled()
    assert {each.number for each in handled} == set(sent)
    assert {each.member for each in handled} == {member.name for member in group.members}
    if "orderly" in group.name:
        check_order(handled)


def check_order(handled: list[Handled]) -> None:
    """No queue is in two hands at once, and numbers come first in the order in which they were sent."""
    by_queue: defaultdict[int, list[Handled]] = defaultdict(list)
    for each in handled:
        by_queue[each.queue_id].append(each)
    for messages in by_queue.values():
        for one, other in itertools.pairwise(messages):
            assert one.member == other.member or one.ended <= other.began, f"{one} overlaps {other}"
        firsts = list(dict.fromkeys(each.number for each in messages))
        assert firsts == sorted(firsts)
