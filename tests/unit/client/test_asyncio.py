"""The asyncio facade; what it shares with the blocking one is tested there, and what clients do in their own tests."""

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from tests.unit.client.broker_thread import BrokerThread
from tests.unit.client.consumer.scripted_queues import CONFIG, GROUP, Queues
from triomq.client import asyncio as facade
from triomq.client import sync
from triomq.client.consumer.config import ConsumeStatus
from triomq.client.nursery import OpenOnce
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ClientClosedError, ClientError, ConfigError, NoRouteError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message, MessageExt

pytestmark = pytest.mark.usefixtures("no_thread_is_left_behind")

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def queues(remote: BrokerThread) -> Queues:
    async def make() -> Queues:
        await trio.lowlevel.checkpoint()
        return Queues(remote.broker)

    made: Queues = remote.run(make)
    return made


class Exiting(OpenOnce):
    """Exits while it is left."""

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        yield
        raise SystemExit(3)


class AsyncExiting(facade._Awaiting[Exiting]):
    def __init__(self) -> None:
        self._target = Exiting()


class Slow(OpenOnce):
    """Takes for ever in what it is told to, and notes how it ends."""

    def __init__(self, *, slow_to: str = "") -> None:
        self.slow_to = slow_to
        self.busy = threading.Event()
        self.ended = ""

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        await self.do("open")
        yield
        await self.do("close")

    async def do(self, what: str) -> str:
        if what != self.slow_to:
            return what
        self.busy.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.ended = f"{what} was cancelled"
            raise

    async def finish_all_the_same(self) -> str:
        self.busy.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(0.05)
        self.ended = "finished"
        return self.ended


class AsyncSlow(facade._Awaiting[Slow]):
    def __init__(self, *, slow_to: str = "") -> None:
        self._target = Slow(slow_to=slow_to)

    do = facade._awaiting(Slow.do)
    finish_all_the_same = facade._awaiting(Slow.finish_all_the_same)


def test_a_coroutine_sends_and_asks(remote: BrokerThread) -> None:
    async def main() -> None:
        async with facade.Producer("group", namesrv=remote.broker.address) as producer:
            results = await asyncio.gather(*(producer.send(Message("Topic", b"x")) for _ in range(20)))
            assert len({result.message_id for result in results}) == 20
            with pytest.raises(NoRouteError, match="similar topics: Topic"):
                await producer.send(Message("Topik", b"x"))
        with pytest.raises(ClientClosedError):
            await producer.send(Message("Topic", b"x"))
        with pytest.raises(ClientError, match="once only"):
            async with producer:
                pass
        async with facade.ClientInstance(remote.broker.address) as shared:
            async with (
                facade.Producer("one", instance=shared) as one,
                facade.PullConsumer("two", instance=shared) as two,
            ):
                await one.send(Message("Topic", b"x"))
                assert len(await two.queues("Topic")) == 4
        async with facade.Admin(namesrv=remote.broker.address) as admin:
            assert await admin.topics() == ["Topic"]

    asyncio.run(main())
    assert len(remote.broker.of(RequestCode.UNREGISTER_CLIENT)) == 2


def test_cancelled_call_ends_in_trio_before_caller_resumes() -> None:
    async def main() -> None:
        async with AsyncSlow(slow_to="work") as slow:
            task = asyncio.create_task(slow.do("work"))
            await asyncio.to_thread(slow._target.busy.wait, 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert slow._target.ended == "work was cancelled"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(slow.do("work"), 0.01)
            assert await slow.do("other") == "other"

    asyncio.run(main())


def test_call_ignoring_cancellation_is_awaited() -> None:
    async def main() -> None:
        async with AsyncSlow() as slow:
            task = asyncio.create_task(slow.finish_all_the_same())
            await asyncio.to_thread(slow._target.busy.wait, 5)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert slow._target.ended == "finished"

    asyncio.run(main())


def test_exiting_handler_ends_program_but_not_other_clients(remote: BrokerThread) -> None:
    async def main() -> None:
        async with AsyncExiting():
            pass

    with sync.Producer("group", namesrv=remote.broker.address) as producer:
        with pytest.raises(SystemExit, match="3"):
            asyncio.run(main())
        assert producer.send(Message("Topic", b"x")).queue_offset == 0


@pytest.mark.parametrize("what", ["open", "close"])
def test_opening_and_closing_can_be_cancelled(what: str) -> None:
    slow = AsyncSlow(slow_to=what)

    async def use() -> None:
        async with slow:
            pass

    async def main() -> None:
        task = asyncio.create_task(use())
        await asyncio.to_thread(slow._target.busy.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert slow._target.ended == f"{what} was cancelled"


def test_coroutine_handlers_run_in_caller_loop_and_context(queues: Queues) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[tuple[int, bool, str]] = []

    async def main() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        variable.set("mine")

        async def on_message(message: MessageExt) -> ConsumeStatus:
            await asyncio.sleep(0)
            seen.append((message.queue_offset, asyncio.get_running_loop() is loop, variable.get()))
            if len(seen) == 3:
                done.set()
            return ConsumeStatus.SUCCESS

        async with push(queues, on_message) as consumer:
            await consumer.wait_assigned()
            await asyncio.wait_for(done.wait(), 10)
            assert consumer.statistics().queues[QUEUE].next_pull_offset == 3

    queues.send(3)
    asyncio.run(main())
    assert sorted(seen) == [(number, True, "mine") for number in range(3)]
    assert queues.committed["T", 0] == 3


def test_failed_or_cancelled_handler_gets_redelivery(queues: Queues) -> None:
    sent_back: list[int] = []

    async def main() -> None:
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        async def on_message(message: MessageExt) -> None:
            await asyncio.sleep(0)
            if message.queue_offset == 0:
                raise KeyError("bad")
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(10)

        def note_send_back(command: object) -> object:
            sent_back.append(1)
            if len(sent_back) == 2:
                loop.call_soon_threadsafe(done.set)
            return command.reply()  # type: ignore[attr-defined]  # a RemotingCommand

        queues.broker.on(RequestCode.CONSUMER_SEND_MSG_BACK, note_send_back)  # type: ignore[arg-type]  # see above
        async with push(queues, on_message):
            await asyncio.wait_for(done.wait(), 10)

    queues.send(2)
    asyncio.run(main())


def test_handler_exceeding_grace_time_is_cancelled(queues: Queues) -> None:
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

        async with push(queues, on_message, grace_s=0.05):
            await asyncio.wait_for(began.wait(), 10)

    queues.send(1)
    start = time.monotonic()
    asyncio.run(main())
    assert ended == ["cancelled"]
    assert time.monotonic() - start < 30
    assert queues.committed.get(("T", 0), 0) == 0


def test_a_handler_that_keeps_the_loop_busy_is_named_and_delays_no_commit(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("triomq.client.asyncio.BLOCKED_S", 0.2)

    async def main() -> None:
        done = asyncio.Event()
        committed: list[int] = []

        async def on_message(message: MessageExt) -> None:
            if message.queue_offset == 1:
                await asyncio.sleep(0.01)
                time.sleep(0.25)  # noqa: ASYNC251  # this is the point
                limit = time.monotonic() + 10
                while queues.committed.get(("T", 0), 0) < 1 and time.monotonic() < limit:
                    time.sleep(0.01)  # noqa: ASYNC251
                committed.append(queues.committed.get(("T", 0), 0))
                done.set()

        async with push(queues, on_message, max_concurrency=1):
            await asyncio.wait_for(done.wait(), 20)
        assert committed == [1]

    queues.send(2)
    asyncio.run(main())
    (record,) = caplog.records
    assert record.getMessage().startswith("handler blocked the event loop: nothing else could run for 0.")
    assert record.getMessage().endswith("main.<locals>.on_message")


def test_a_poll_that_is_cancelled_takes_nothing(queues: Queues, remote: BrokerThread) -> None:
    async def main() -> None:
        async with facade.LitePullConsumer(
            GROUP, namesrv=queues.broker.address, config=CONFIG, start="earliest"
        ) as consumer:
            await consumer.assign([QUEUE])
            assert await consumer.poll(0) == []
            assert await consumer.poll(0.01) == []
            task = asyncio.create_task(consumer.poll(60))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            remote.token.run_sync_soon(queues.send, 3)
            assert [message.queue_offset for message in await consumer.poll(10)] == [0, 1, 2]
            with pytest.raises(ConfigError):
                await consumer.poll(-1)
            await consumer.commit()
            assert consumer.position(QUEUE) == 3

    asyncio.run(main())
    assert queues.committed["T", 0] == 3


def test_waiting_ends_with_the_client(queues: Queues) -> None:
    async def main() -> None:
        async with push(queues, lambda _message: None) as consumer:
            portal, guest = consumer._entered()
            portal.call_plain(guest._scope.cancel)
            await asyncio.wait_for(consumer.wait(), 10)

    asyncio.run(main())


def push(queues: Queues, on_message: Callable[[MessageExt], object], **options: float) -> facade.PushConsumer:
    return facade.PushConsumer(
        GROUP,
        namesrv=queues.broker.address,
        config=CONFIG,
        subscriptions={"T": "*"},
        start="earliest",
        on_message=on_message,
        **options,  # type: ignore[arg-type]
    )
