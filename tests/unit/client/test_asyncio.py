"""The asyncio facade: only its differences from the blocking one, and from the clients of trio."""

import asyncio
import contextvars
import time
from collections.abc import Callable

import pytest

from tests.unit.client.fragile import Fragile
from triomq.client import asyncio as facade
from triomq.client import sync
from triomq.client.consumer.config import ConsumeStatus
from triomq.client.facades import Method
from triomq.protocol.errors import ConfigError
from triomq.protocol.record.message import Message, MessageExt
from triomq.testing import RunningBroker

pytestmark = pytest.mark.usefixtures("no_thread_is_left_behind")

GROUP = "G"


@pytest.fixture
def broker(rocketmq_broker: RunningBroker) -> RunningBroker:
    """A broker with the topic "T" of one queue."""
    rocketmq_broker.create_topic("T", 1)
    return rocketmq_broker


def fill(broker: RunningBroker, count: int) -> None:
    with sync.Producer("filler", namesrv=broker.namesrv) as producer:
        producer.send_batch([Message("T", b"x")] * count)


def push(broker: RunningBroker, on_message: Callable[[MessageExt], object], **options: float) -> facade.PushConsumer:
    return facade.PushConsumer(
        GROUP,
        namesrv=broker.namesrv,
        subscriptions={"T": "*"},
        start="earliest",
        on_message=on_message,
        **options,  # type: ignore[arg-type]
    )


class AsyncFragile(facade._Awaiting):
    _target: Fragile

    def __init__(self, slow_to: str) -> None:
        self._target = Fragile(slow_to)

    do = Method(Fragile.do)
    finish_all_the_same = Method(Fragile.finish_all_the_same)


def test_cancelled_call_ends_in_trio_before_caller_resumes() -> None:
    async def main() -> None:
        async with AsyncFragile("work") as fragile:
            target = fragile._target
            task = asyncio.create_task(fragile.do("work"))
            await asyncio.to_thread(target.busy.wait, 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert target.cancelled.is_set()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(fragile.do("work"), 0.01)
            await fragile.do("other")

            target.busy.clear()
            task = asyncio.create_task(fragile.finish_all_the_same())
            await asyncio.to_thread(target.busy.wait, 5)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert target.finished

    asyncio.run(main())


@pytest.mark.parametrize("step", ["open", "close"])
def test_opening_and_closing_can_be_cancelled(step: str) -> None:
    fragile = AsyncFragile(step)

    async def use() -> None:
        async with fragile:
            pass

    async def main() -> None:
        task = asyncio.create_task(use())
        await asyncio.to_thread(fragile._target.busy.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert fragile._target.cancelled.is_set()


def test_coroutine_handlers_run_in_caller_loop_and_context(broker: RunningBroker) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[tuple[int, bool, str]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        variable.set("mine")

        async def on_message(message: MessageExt) -> ConsumeStatus:
            await asyncio.sleep(0)
            seen.append((message.queue_offset, asyncio.get_running_loop() is loop, variable.get()))
            return ConsumeStatus.SUCCESS

        async with push(broker, on_message) as consumer:
            await consumer.wait_assigned()
            await broker.wait_until_consumed(GROUP)
            assert 3 in {queue.next_pull_offset for queue in consumer.statistics().queues.values()}

    fill(broker, 3)
    asyncio.run(main())
    assert sorted(seen) == [(number, True, "mine") for number in range(3)]


def test_failed_or_cancelled_handler_gets_redelivery(broker: RunningBroker) -> None:
    async def main() -> None:
        async def on_message(message: MessageExt) -> None:
            await asyncio.sleep(0)
            if message.queue_offset == 0:
                raise KeyError("bad")
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(10)

        async with push(broker, on_message), asyncio.timeout(10):
            await broker.wait_until_consumed(GROUP)

    fill(broker, 2)
    asyncio.run(main())
    broker.clock.advance(minutes=1)
    assert len(broker.messages(f"%RETRY%{GROUP}")) == 2


def test_handler_exceeding_grace_time_is_cancelled(broker: RunningBroker) -> None:
    ended: list[str] = []

    async def main() -> None:
        began = asyncio.Event()

        async def on_message(_message: MessageExt) -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async with push(broker, on_message, grace_s=0.05):
            await asyncio.wait_for(began.wait(), 10)

    fill(broker, 1)
    start = time.monotonic()
    asyncio.run(main())
    assert ended == ["cancelled"]
    assert time.monotonic() - start < 30
    assert broker.groups[GROUP].behind == {"T": 1}


def test_blocking_handler_is_named_and_delays_no_commit(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("triomq.client.asyncio.BLOCKED_S", 0.2)

    async def main() -> None:
        done = asyncio.Event()
        behind: list[int] = []

        async def on_message(message: MessageExt) -> None:
            if message.queue_offset == 1:
                await asyncio.sleep(0.01)
                time.sleep(0.25)  # noqa: ASYNC251  # this is the point
                limit = time.monotonic() + 10
                while broker.groups[GROUP].behind["T"] > 1 and time.monotonic() < limit:
                    time.sleep(0.01)  # noqa: ASYNC251
                behind.append(broker.groups[GROUP].behind["T"])
                done.set()

        async with push(broker, on_message, max_concurrency=1):
            await asyncio.wait_for(done.wait(), 20)
        assert behind == [1]

    fill(broker, 2)
    asyncio.run(main())
    texts = [record.getMessage() for record in caplog.records]
    text = next(text for text in texts if text.endswith("main.<locals>.on_message"))
    assert text.startswith("handler blocked the event loop: nothing else could run for ")


def test_a_poll_that_is_cancelled_takes_nothing(broker: RunningBroker) -> None:
    async def main() -> None:
        async with facade.LitePullConsumer(GROUP, namesrv=broker.namesrv, start="earliest") as consumer:
            (queue,) = await consumer.queues("T")
            await consumer.assign([queue])
            assert await consumer.poll(0) == []
            assert await consumer.poll(0.01) == []
            task = asyncio.create_task(consumer.poll(60))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(fill, broker, 3)
            assert [message.queue_offset for message in await consumer.poll(10)] == [0, 1, 2]
            with pytest.raises(ConfigError):
                await consumer.poll(-1)
            await consumer.commit()
            assert consumer.position(queue) == 3

    asyncio.run(main())
    assert broker.groups[GROUP].behind == {"T": 0}


def test_waiting_ends_with_the_client(broker: RunningBroker) -> None:
    async def main() -> None:
        async with push(broker, lambda _message: None) as consumer:
            portal, guest = consumer._entered()
            portal.call_plain(guest._scope.cancel)
            await asyncio.wait_for(consumer.wait(), 10)

    asyncio.run(main())
