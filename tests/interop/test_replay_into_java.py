"""Messages are replayed into a group of an unmodified Java client, which consumes in order."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.interop.kit_driver import java_classpath
from tests.interop.suite_tools import fresh, new_topic
from triomq.client import Admin, Message, MessageQueue, Producer

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

MEMBER: Final = Path(__file__).parent / "GroupMember.java"
COUNT: Final = 40


@pytest.fixture(params=["triomq", "4.9.7"])
def namesrv(request: pytest.FixtureRequest) -> str:
    if request.param == "triomq":
        return str(request.getfixturevalue("triomq_broker").namesrv)
    return str(request.getfixturevalue("apache_brokers").get(request.param).namesrv)


@contextmanager
def java_member(output: Path, *arguments: str) -> Iterator[None]:
    command: tuple[str | Path, ...] = ("java", "-Xmx256m", "-cp", java_classpath("4.9.7"), MEMBER, *arguments)
    with output.open("wb") as stdout, output.with_suffix(".log").open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def handled(output: Path) -> list[int]:
    """The numbers that the member has handled so far."""
    lines = [line.split() for line in output.read_text().splitlines()]
    return [int(line[1]) for line in lines if len(line) == 4]


async def test_orderly_java_consumer_gets_replay_in_order(namesrv: str, tmp_path: Path) -> None:
    topic, group, output = await new_topic(namesrv, queues=2), fresh("java"), tmp_path / "handled.txt"
    began = datetime.now(UTC)
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        for number in range(COUNT):
            await producer.send(Message(topic, b"%d" % number), queue=MessageQueue(topic, "broker-a", number % 2))
            await trio.sleep(0.002)  # each in a different millisecond
    with java_member(output, namesrv, group, topic, "orderly"), trio.fail_after(90):
        while len(handled(output)) < COUNT:  # noqa: ASYNC110  # about a file
            await trio.sleep(0.1)
        assert sorted(handled(output)) == list(range(COUNT))
        async with Admin(namesrv=namesrv) as admin:
            second = timedelta(seconds=1)
            plan = await admin.plan_replay(group, group, began - second, datetime.now(UTC) + second)
            assert (plan.is_online, await admin.replay(plan, speed=None)) == (True, COUNT)
        while len(handled(output)) < 2 * COUNT:  # noqa: ASYNC110  # about a file
            await trio.sleep(0.1)
        assert handled(output)[COUNT:] == list(range(COUNT))
