"""Push consumers in broadcasting."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE, Inbox, Machine
from tests.unit.client.consumer.fake_cluster import FakeCluster
from triomq.client.consumer.config import ConsumeStatus
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

pytestmark = pytest.mark.usefixtures("files_take_no_time")


async def test_failed_message_is_logged_and_not_redelivered(
    autojump_clock: MockClock, cluster: FakeCluster, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """C.2 scenario 50."""
    seen: list[int] = []

    async def refuse(message: MessageExt) -> ConsumeStatus:
        seen.append(message.queue_offset)
        if message.queue_offset == 1:
            raise ValueError("bad")
        return ConsumeStatus.RECONSUME_LATER

    cluster.send(QUEUE, *[b"x"] * 3)
    async with machine.push(Inbox(), on_message=refuse) as push:
        await trio.sleep(60)
        figures = push.statistics()
    assert sorted(seen) == [0, 1, 2]
    assert (figures.failed, figures.sent_back) == (3, 0)
    assert caplog.text.count("will not be redelivered in broadcasting") == 3
    assert not cluster.of(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert not cluster.of(RequestCode.SEND_MESSAGE_V2)
    assert machine.offsets() == {QUEUE: 3}


async def test_orderly_failure_is_redelivered_up_to_the_limit(
    autojump_clock: MockClock, cluster: FakeCluster, machine: Machine
) -> None:
    seen: list[int] = []

    async def refuse_first(message: MessageExt) -> ConsumeStatus:
        seen.append(message.queue_offset)
        is_first = message.queue_offset == 0
        return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if is_first else ConsumeStatus.SUCCESS

    cluster.send(QUEUE, b"x", b"y")
    async with machine.push(Inbox(), on_message=refuse_first, orderly=True):
        await trio.sleep(10)
    assert seen == [0, 0, 0, 1]
    assert not cluster.of(RequestCode.SEND_MESSAGE_V2)
    assert machine.offsets() == {QUEUE: 2}


async def test_a_reset_moves_the_offset_in_the_file(
    autojump_clock: MockClock, cluster: FakeCluster, machine: Machine
) -> None:
    inbox = Inbox()
    cluster.send(QUEUE, *[b"x"] * 4)
    async with machine.push(inbox):
        await trio.sleep(1)
        cluster.instances[0].consumers["G"].reset_offsets("T", {QUEUE: 2})
        await trio.sleep(1)
    assert inbox.ended == [0, 1, 2, 3, 2, 3]
    assert machine.offsets() == {QUEUE: 4}


async def test_later_queue_is_read_from_its_first_message(
    autojump_clock: MockClock, cluster: FakeCluster, machine: Machine
) -> None:
    inbox = Inbox()
    cluster.send(QUEUE, b"old")
    async with machine.push(inbox, start="latest") as push:
        await push.wait_assigned()
        cluster.send(MessageQueue("T", QUEUE.broker_name, 1), b"first")
        cluster.add_topic("T", 2)
        await wait_all_tasks_blocked()
        await trio.sleep(1)
    assert inbox.ended == [0]
