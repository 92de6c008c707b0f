import errno
import os
import signal
import threading

import pytest
import trio

from tests.unit.client.fragile import Fragile
from triomq.client.facades import Method
from triomq.client.sync import Admin, ClientInstance, Producer, PullConsumer, PushConsumer, _Blocking
from triomq.protocol.errors import ClientClosedError, ClientError, NameServerError, NoRouteError
from triomq.protocol.record.message import Message
from triomq.testing import RunningBroker

pytestmark = pytest.mark.usefixtures("no_thread_is_left_behind")


def interrupt_main_thread() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class BlockingFragile(_Blocking):
    _target: Fragile

    def __init__(self, slow_to: str = "nothing") -> None:
        self._target = Fragile(slow_to, interrupt_main_thread)

    fail = Method(Fragile.fail)
    do = Method(Fragile.do)
    linger = Method(Fragile.linger)


def test_clients_share_one_thread_and_instance(rocketmq_broker: RunningBroker) -> None:
    rocketmq_broker.create_topic("Topic")
    with (
        ClientInstance(rocketmq_broker.namesrv) as shared,
        Producer("one", instance=shared) as one,
        Producer("two", instance=shared) as two,
        PullConsumer("group", instance=shared) as pull,
    ):
        for producer in (one, two):
            producer.send(Message("Topic", b"x"))
        assert len(pull.queues("Topic")) == 4
        with pytest.raises(NoRouteError, match="similar topics: Topic"):
            pull.queues("Topik")
        with pytest.raises(NameServerError), Admin(namesrv="127.0.0.1:1"):
            pass
        assert [thread.name for thread in threading.enumerate()].count("triomq") == 1


def test_thread_start_failure_is_raised_without_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    fragile = BlockingFragile()
    with monkeypatch.context() as patched:
        patched.setattr(trio, "run", refuse)
        with pytest.raises(ClientError, match="Too many open files"), fragile:
            pass
    with fragile:
        fragile.do("")


def test_outside_its_block_a_client_refuses() -> None:
    fragile = BlockingFragile()
    with pytest.raises(ClientClosedError, match="inside its with block"):
        fragile.do("")
    with fragile:
        pass
    with pytest.raises(ClientClosedError):
        fragile.do("")
    with pytest.raises(ClientError, match="once only"), fragile:
        pass


@pytest.mark.parametrize("step", ["open", "do", "close"])
def test_ctrl_c_cancels_blocked_call(step: str) -> None:
    fragile = BlockingFragile(step)
    with pytest.raises(KeyboardInterrupt), fragile:
        fragile.do("do")
    assert fragile._target.cancelled.wait(2)


def test_forked_child_must_make_another_client() -> None:
    with BlockingFragile() as fragile:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                fragile.do("")
            except ClientClosedError as exc:
                fragile.__exit__(None, None, None)
                with BlockingFragile():  # its own thread
                    status = 0 if "forked" in str(exc) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        fragile.do("")


def test_internal_failure_is_raised_by_call_and_exit() -> None:
    def block() -> None:
        with BlockingFragile() as fragile:
            fragile.fail()
            with pytest.raises(ClientClosedError, match="inside") as caught:
                fragile.fail()
            assert isinstance(caught.value.__cause__, KeyError)

    with pytest.raises(KeyError, match="inside"):
        block()


def test_exiting_handler_ends_only_its_client_and_waiter() -> None:
    """As on trio, where it leaves the consumer's block."""

    def wait() -> None:
        with BlockingFragile() as fragile:
            fragile._target.error = SystemExit(3)
            fragile.fail()
            portal, guest = fragile._entered()
            portal.call(guest.wait)

    with BlockingFragile() as other:
        with pytest.raises(SystemExit, match="3"):
            wait()
        other.do("")


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
    for call in (portal.call, portal.call_plain, portal.submit):
        with pytest.raises(ClientClosedError, match="closed"):
            call(guest.leave)


def test_push_consumer_blocks_until_it_is_interrupted(rocketmq_broker: RunningBroker) -> None:
    consumer = PushConsumer(
        "group", namesrv=rocketmq_broker.namesrv, on_message=lambda _message: None, subscriptions={"Missing": "*"}
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
