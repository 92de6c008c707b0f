import errno
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio

from tests.unit.client.broker_thread import BrokerThread
from triomq.client import sync
from triomq.client.facades import Method
from triomq.client.nursery import OpenOnce, open_service_nursery
from triomq.client.producer.config import ProducerConfig
from triomq.client.sync import Admin, ClientInstance, Producer, PullConsumer, PushConsumer
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ClientClosedError, ClientError, NameServerError, NoRouteError
from triomq.protocol.record.message import Message

pytestmark = pytest.mark.usefixtures("no_thread_is_left_behind")


def test_errors_are_those_of_the_trio_client(remote: BrokerThread) -> None:
    with Producer("group", namesrv=remote.broker.address) as producer:
        with pytest.raises(NoRouteError, match="similar topics: Topic"):
            producer.send(Message("Topik", b"x"))
        with pytest.raises(NameServerError), Admin(namesrv="127.0.0.1:1"):
            pass


def test_clients_share_one_thread_and_instance(remote: BrokerThread) -> None:
    with ExitStack() as stack:
        shared = stack.enter_context(ClientInstance(remote.broker.address))
        producers = [stack.enter_context(Producer(name, instance=shared)) for name in ("one", "two")]
        pull = stack.enter_context(PullConsumer("group", instance=shared))
        for producer in producers:
            producer.send(Message("Topic", b"x"))
        assert len(pull.queues("Topic")) == 4
        assert [thread.name for thread in threading.enumerate()].count("triomq") == 1
    assert remote.broker.connected == 1


def test_thread_start_failure_is_raised_without_blocking(remote: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    producer = Producer("group", namesrv=remote.broker.address)
    with monkeypatch.context() as patched:
        patched.setattr(trio, "run", refuse)
        with pytest.raises(ClientError, match="Too many open files"), producer:
            pass
    with producer:
        assert producer.send(Message("Topic", b"x")).queue_offset == 0


def test_outside_its_block_a_client_refuses(remote: BrokerThread) -> None:
    producer = Producer("group", namesrv=remote.broker.address)
    with pytest.raises(ClientClosedError, match="inside its with block"):
        producer.send(Message("Topic", b"x"))
    with producer:
        pass
    with pytest.raises(ClientClosedError):
        producer.send(Message("Topic", b"x"))
    with pytest.raises(ClientError, match="once only"), producer:
        pass


def test_ctrl_c_cancels_a_blocked_call(remote: BrokerThread) -> None:
    remote.broker.on(RequestCode.SEND_MESSAGE_V2, lambda _command: interrupt_main_thread())
    with Producer("group", namesrv=remote.broker.address, settings=ProducerConfig(send_timeout_s=60)) as producer:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            producer.send(Message("Topic", b"x"))
        assert time.monotonic() - start < 30
    assert time.monotonic() - start < 30


def test_forked_child_must_make_another_client(remote: BrokerThread) -> None:
    with Producer("group", namesrv=remote.broker.address) as producer:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                producer.send(Message("Topic", b"x"))
            except ClientClosedError as exc:
                producer.__exit__(None, None, None)
                with BlockingFragile():  # its own thread
                    status = 0 if "forked" in str(exc) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert producer.send(Message("Topic", b"x")).queue_offset == 0


class Fragile(OpenOnce):
    """Fails in the background on request."""

    def __init__(self) -> None:
        self.told = trio.Event()
        self.error: BaseException = KeyError("inside")

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with open_service_nursery() as nursery:
            nursery.start_soon(self._fail)
            yield

    async def _fail(self) -> None:
        await self.told.wait()
        raise self.error

    async def fail(self) -> None:
        self.told.set()
        await trio.testing.wait_all_tasks_blocked()

    async def linger(self) -> None:
        await trio.sleep_forever()


class BlockingFragile(sync._Blocking):
    def __init__(self) -> None:
        self._target = Fragile()

    fail = Method(Fragile.fail)
    linger = Method(Fragile.linger)


def test_internal_failure_is_raised_by_call_and_exit() -> None:
    def block() -> None:
        with BlockingFragile() as fragile:
            fragile.fail()
            with pytest.raises(ClientClosedError, match="inside") as caught:
                fragile.fail()
            assert isinstance(caught.value.__cause__, KeyError)

    with pytest.raises(KeyError, match="inside"):
        block()


def test_exiting_handler_ends_only_its_client_and_waiter(remote: BrokerThread) -> None:
    """As on trio, where it leaves the consumer's block."""

    def wait() -> None:
        with BlockingFragile() as fragile:
            fragile._target.error = SystemExit(3)
            fragile.fail()
            portal, guest = fragile._entered()
            portal.call(guest.wait)

    with Producer("group", namesrv=remote.broker.address) as producer:
        with pytest.raises(SystemExit, match="3"):
            wait()
        assert producer.send(Message("Topic", b"x")).queue_offset == 0


def test_call_running_when_last_client_closes_raises() -> None:
    errors: list[BaseException] = []

    def wait(fragile: BlockingFragile) -> None:
        try:
            fragile.linger()
        except BaseException as exc:  # noqa: BLE001  # the test looks at it
            errors.append(exc)

    with BlockingFragile() as fragile:
        thread = threading.Thread(target=wait, args=(fragile,))
        thread.start()
        fragile._entered()[0].call(trio.testing.wait_all_tasks_blocked)
    thread.join()
    assert [type(error) for error in errors] == [ClientClosedError]


def test_call_just_after_last_client_closes_raises() -> None:
    with BlockingFragile() as fragile:
        portal, guest = fragile._entered()
    for call in (portal.call, portal.call_plain):
        with pytest.raises(ClientClosedError, match="closed"):
            call(guest.leave)
    with pytest.raises(ClientClosedError, match="closed"):
        portal.submit(guest.leave)


def interrupt_main_thread() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class Slow(OpenOnce):
    """Takes for ever to open, or to close, and interrupts its caller then."""

    def __init__(self, *, to_open: bool) -> None:
        self._to_open = to_open
        self.cancelled = threading.Event()

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        try:
            if self._to_open:
                await self._interrupt_and_sleep()
            yield
            await self._interrupt_and_sleep()
        finally:
            self.cancelled.set()

    async def _interrupt_and_sleep(self) -> None:
        interrupt_main_thread()
        await trio.sleep_forever()


class BlockingSlow(sync._Blocking):
    def __init__(self, *, to_open: bool) -> None:
        self._target = Slow(to_open=to_open)


def test_waiting_ends_with_the_client(remote: BrokerThread) -> None:
    with BlockingFragile() as fragile:
        held, guest = fragile._entered()
        held.call_plain(guest._scope.cancel)
        held.call(guest.wait)


@pytest.mark.parametrize("to_open", [True, False])
def test_ctrl_c_ends_opening_and_closing_too(to_open: bool) -> None:
    slow = BlockingSlow(to_open=to_open)
    with pytest.raises(KeyboardInterrupt), slow:
        pass
    assert slow._target.cancelled.wait(2)


def test_a_push_consumer_blocks_until_it_is_interrupted(remote: BrokerThread) -> None:
    def on_message(_message: object) -> None:
        pass

    consumer = PushConsumer(
        "group", namesrv=remote.broker.address, on_message=on_message, subscriptions={"Missing": "*"}
    )

    def block() -> None:
        with consumer:
            consumer.wait_assigned()
            consumer.subscribe("Other", "A || B")
            consumer.suspend()
            assert consumer.statistics().is_suspended
            consumer.resume()
            consumer.resize(3)
            consumer.unsubscribe("Other")
            assert not consumer.statistics().is_suspended
            threading.Timer(0.01, interrupt_main_thread).start()
            consumer.wait()

    with pytest.raises(KeyboardInterrupt):
        block()
