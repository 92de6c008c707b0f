import signal

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance
from tests.unit.client.consumer.push_bench import QUEUE, Inbox, consumer
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.push import PushConsumer
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import (
    ClientClosedError,
    ClientError,
)
from triomq.protocol.message_queue import MessageQueue


async def test_leave_finishes_running_handlers_and_drops_the_rest(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox(busy_s=3)
    cluster.send(topic, *[b"x"] * 30)
    async with consumer(inbox, instance, max_concurrency=4):
        await trio.sleep(1)
    assert sorted(inbox.begun) == sorted(inbox.ended) == [0, 1, 2, 3]
    assert trio.current_time() == pytest.approx(3, abs=0.2)
    assert cluster.committed["G", topic] == 4
    told = [command.code for command in cluster.requests if command.code != RequestCode.QUERY_CONSUMER_OFFSET]
    assert told[-1] == RequestCode.UPDATE_CONSUMER_OFFSET


async def test_handlers_that_exceed_the_grace_time_are_cancelled(
    autojump_clock: MockClock,
    cluster: FakeCluster,
    instance: ClientInstance,
    topic: MessageQueue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Inbox(busy_s=100)
    cluster.send(topic, b"x", b"y")
    async with consumer(inbox, instance):
        await trio.sleep(1)
    assert sorted(inbox.cancelled) == [0, 1]
    assert trio.current_time() == pytest.approx(11)
    assert cluster.committed["G", topic] == 0
    assert "handlers cancelled" in caplog.text


async def test_leaving_by_cancellation_is_as_orderly(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox(busy_s=3)
    cluster.send(topic, b"x", b"y")
    with trio.move_on_after(1) as scope:
        async with consumer(inbox, instance):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert sorted(inbox.ended) == [0, 1]
    assert cluster.committed["G", topic] == 2
    assert not cluster.members("G")


async def test_a_cancellation_while_leaving_cancels_the_handlers(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox(busy_s=100)
    cluster.send(topic, b"x", b"y")
    with trio.move_on_after(3):
        async with consumer(inbox, instance):
            await trio.sleep(1)
    assert trio.current_time() == pytest.approx(3)
    assert sorted(inbox.cancelled) == [0, 1]
    assert cluster.committed["G", topic] == 0


async def test_leave_on_error_is_orderly_and_reraises_bare_error(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox(busy_s=3)
    cluster.send(topic, b"x")
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012  # the block is what is tested
        async with consumer(inbox, instance):
            await trio.sleep(1)
            raise KeyError("mine")
    assert inbox.ended == [0]
    assert cluster.committed["G", topic] == 1


def test_ctrl_c_twice_cancels_the_handlers() -> None:
    cluster = FakeCluster()
    cluster.add_topic("T")
    cluster.send(QUEUE, b"x")
    inbox = Inbox(busy_s=100)

    async def main() -> None:
        async with consumer(inbox, as_instance(FakeInstance(cluster))):
            await wait_all_tasks_blocked()
            trio.lowlevel.spawn_system_task(press_again)
            raise KeyboardInterrupt  # the first one, as it reaches the block

    async def press_again() -> None:
        await wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert inbox.cancelled == [0]
    assert cluster.committed["G", QUEUE] == 0


async def test_a_dead_broker_does_not_hold_up_leaving(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    cluster.send(topic, b"x")
    async with consumer(Inbox(), instance):
        await trio.sleep(1)

        async def never(_command: object) -> None:
            await trio.sleep_forever()

        cluster.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = never  # type: ignore[assignment]
    assert trio.current_time() <= 5


async def test_a_consumer_is_used_inside_its_block_only(
    autojump_clock: MockClock, instance: ClientInstance, topic: MessageQueue
) -> None:
    push = consumer(Inbox(), instance)
    with pytest.raises(ClientClosedError):
        await push.wait_assigned()
    with pytest.raises(ClientClosedError):
        push.statistics()
    async with push:
        pass
    with pytest.raises(ClientClosedError):
        await push.wait_assigned()
    with pytest.raises(ClientError, match="once"):
        async with push:
            pass


async def test_a_start_cancelled_at_any_moment_leaves_nothing_behind(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    entered = 0
    for pauses in range(60):
        scope = trio.CancelScope()

        async def cancel_after(pauses: int = pauses, scope: trio.CancelScope = scope) -> None:
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_after)
            with scope:
                async with consumer(Inbox(), instance):
                    entered += 1
                    await trio.sleep_forever()
        assert scope.cancelled_caught
        assert not cluster.members("G")
    assert 0 < entered < 60
    assert trio.current_time() == 0


async def test_leave_raises_for_callers_waiting_for_assignment(
    cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue, autojump_clock: MockClock
) -> None:
    cluster.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(1, remark="busy")

    async def wait(waiting: PushConsumer) -> None:
        with pytest.raises(ClientClosedError):
            await waiting.wait_assigned()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, consumer(Inbox(), instance) as waiting:
            nursery.start_soon(wait, waiting)
            await trio.sleep(5)
