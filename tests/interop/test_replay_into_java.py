"""Messages are replayed into a group of an unmodified Java client, which consumes in order."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.interop.kit_driver import java_program
from tests.interop.suite_tools import fresh, new_topic
from triomq.client import Admin, Message, MessageQueue, Producer

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

MEMBER: Final = "GroupMember.java"
COUNT: Final = 40


def handled(output: Path) -> list[int]:
    """The numbers that the member has handled so far."""
    lines = [line.split() for line in output.read_text().splitlines()]
    return [int(line[1]) for line in lines if len(line) == 4]


async def test_orderly_java_consumer_gets_replay_in_order(either_namesrv: str, tmp_path: Path) -> None:
    namesrv = either_namesrv
    topic, group, output = await new_topic(namesrv, queues=2), fresh("java"), tmp_path / "handled.txt"
    began = datetime.now(UTC)
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        for number in range(COUNT):
            await producer.send(Message(topic, b"%d" % number), queue=MessageQueue(topic, "broker-a", number % 2))
            await trio.sleep(0.002)  # each in a different millisecond
    with java_program(MEMBER, namesrv, group, topic, "orderly", output=output), trio.fail_after(90):
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
