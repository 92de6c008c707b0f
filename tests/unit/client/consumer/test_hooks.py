import threading
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.benches import QUEUE, Inbox, consumer
from tests.unit.client.consumer.fake_cluster import FakeCluster, make_message, offsets_of
from triomq.client.consumer import handlers
from triomq.client.consumer.config import ConsumeStatus
from triomq.client.consumer.handlers import (
    ConsumeHook,
    ConsumeReturnType,
    Handler,
    HookContext,
    choose,
    is_success,
    orderly_status,
)
from triomq.protocol.errors import ConfigError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt


class Notes(ConsumeHook):
    """Records its calls."""

    def __init__(self) -> None:
        self.before_calls: list[tuple[str, list[int]]] = []
        self.ended: list[ConsumeReturnType | None] = []
        self.last: HookContext | None = None
        self.threads: set[int] = set()

    def before(self, context: HookContext) -> None:
        assert context.return_type is None
        self.before_calls.append((context.group, offsets_of(context.messages)))
        context.note = "mine"
        self.threads.add(threading.get_ident())

    def after(self, context: HookContext) -> None:
        assert context.note == "mine"
        self.ended.append(context.return_type)
        self.last = context


@pytest.mark.parametrize(
    ("result", "orderly", "expected"),
    [
        (None, False, ConsumeReturnType.SUCCESS),
        (ConsumeStatus.SUCCESS, False, ConsumeReturnType.SUCCESS),
        (ConsumeStatus.RECONSUME_LATER, False, ConsumeReturnType.FAILED),
        (ConsumeStatus.COMMIT, False, ConsumeReturnType.SUCCESS),
        (ConsumeStatus.ROLLBACK, False, ConsumeReturnType.FAILED),
        ([], False, ConsumeReturnType.SUCCESS),
        (ConsumeStatus.COMMIT, True, ConsumeReturnType.SUCCESS),
        (ConsumeStatus.ROLLBACK, True, ConsumeReturnType.SUCCESS),
        (ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, True, ConsumeReturnType.FAILED),
        (ConsumeStatus.RECONSUME_LATER, True, ConsumeReturnType.FAILED),
    ],
)
async def test_hooks_receive_outcome_of_handler(result: object, orderly: bool, expected: ConsumeReturnType) -> None:
    notes = Notes()
    plain = Handler(lambda _message: result, False, False, "G").with_hooks([notes], 900, orderly=orderly)
    assert plain.function(make_message(4)) is result

    async def asynchronous(_messages: list[MessageExt], _context: object) -> object:
        await trio.lowlevel.checkpoint()
        return result

    batch = Handler(asynchronous, True, True, "G").with_hooks([notes], 900, orderly=orderly)
    assert await batch.function([make_message(5), make_message(6)], None) is result
    assert notes.before_calls == [("G", [4]), ("G", [5, 6])]
    assert notes.ended == [expected, expected]
    assert notes.last is not None
    assert notes.last.result is result


async def test_handler_error_reaches_consumer_after_hooks() -> None:
    notes = Notes()
    error = ValueError("bad")

    def fail(_message: MessageExt) -> None:
        raise error

    async def fail_later(_message: MessageExt) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    with pytest.raises(ValueError, match="bad"):
        Handler(fail, False, False, "G").with_hooks([notes], 900, orderly=False).function(make_message(0))
    with pytest.raises(ValueError, match="bad"):
        await Handler(fail_later, False, True, "G").with_hooks([notes], 900, orderly=False).function(make_message(0))
    assert notes.ended == [ConsumeReturnType.EXCEPTION] * 2
    assert notes.last is not None
    assert notes.last.error is error


def test_slow_success_is_reported_but_stays_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    times = iter([100.0, 1_000.0])
    monkeypatch.setattr(handlers, "perf_counter", lambda: next(times))
    handler = Handler(lambda _message: None, False, False, "G").with_hooks([notes], 900, orderly=False)
    assert handler.function(make_message(0)) is None
    assert notes.last is not None
    assert (notes.ended, notes.last.took_s) == ([ConsumeReturnType.TIME_OUT], 900)


async def test_a_cancelled_handler_has_no_after(autojump_clock: MockClock) -> None:
    notes = Notes()

    async def sleep(_message: MessageExt) -> None:
        await trio.sleep_forever()

    handler = Handler(sleep, False, True, "G").with_hooks([notes], 900, orderly=False)
    with trio.move_on_after(1):
        await handler.function(make_message(0))
    assert (len(notes.before_calls), notes.ended) == (1, [])


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_hook_that_raises_changes_no_outcome(
    autojump_clock: MockClock, cluster: FakeCluster, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    class Broken(ConsumeHook):
        def before(self, context: HookContext) -> None:
            raise ValueError("before")

        def after(self, context: HookContext) -> None:
            raise ValueError("after")

    notes, inbox = Notes(), Inbox()
    cluster.send(QUEUE, b"0", b"1")
    async with consumer(inbox, cluster.instance, orderly=orderly, hooks=[Broken(), notes]):
        await trio.sleep(1)
    assert (inbox.ended, notes.ended) == ([0, 1], [ConsumeReturnType.SUCCESS] * 2)
    assert cluster.committed["G", QUEUE] == 2
    assert caplog.text.count("consume hook failed") == 4


def test_filters_run_in_order_and_only_remove() -> None:
    messages = [make_message(queue_offset) for queue_offset in range(6)]

    def even(queue: MessageQueue, found: list[MessageExt]) -> list[MessageExt]:
        assert queue == QUEUE
        return [message for message in reversed(found) if message.queue_offset % 2 == 0]

    def not_the_first(_queue: MessageQueue, found: list[MessageExt]) -> list[MessageExt]:
        return [*found[1:], make_message(99)]

    assert offsets_of(choose([even, not_the_first], QUEUE, messages)) == [2, 4]
    assert choose([], QUEUE, messages) is messages


async def test_filtered_message_is_skipped_and_counts_as_consumed(
    autojump_clock: MockClock, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_queue: MessageQueue, _messages: list[MessageExt]) -> list[MessageExt]:
        raise ValueError("no")

    def last_only(_queue: MessageQueue, messages: list[MessageExt]) -> list[MessageExt]:
        return messages[-1:]

    inbox = Inbox()
    cluster.send(QUEUE, b"0", b"1", b"2")
    async with consumer(inbox, cluster.instance, filters=[broken, last_only]) as push:
        await trio.sleep(1)
        assert push.statistics().filtered == 2
    assert inbox.ended == [2]
    assert cluster.committed["G", QUEUE] == 3
    assert "filter hook failed" in caplog.text


async def on_message(_message: MessageExt) -> None: ...


class Shop:
    async def __call__(self, _message: MessageExt) -> None: ...

    async def method(self, _message: MessageExt) -> None: ...


@pytest.mark.parametrize("handler", [on_message, partial(on_message), Shop(), Shop().method, print, partial(print)])
def test_coroutine_functions_are_recognised(handler: Any) -> None:
    assert Handler.of(handler, None).is_async == ("print" not in repr(handler))


def test_exactly_one_handler_must_be_given() -> None:
    with pytest.raises(ConfigError, match="either"):
        Handler.of(None, None)
    with pytest.raises(ConfigError, match="either"):
        Handler.of(on_message, print)
    with pytest.raises(ConfigError, match="cannot be called"):
        Handler.of(5, None)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("result", [None, True, False, 0, "ok", {"ok": True}, [], object()])
def test_any_value_but_a_status_is_success(result: object) -> None:
    assert is_success(result)
    assert orderly_status(result) is ConsumeStatus.SUCCESS


def test_statuses_mean_what_is_documented() -> None:
    assert [status for status in ConsumeStatus if is_success(status)] == [ConsumeStatus.SUCCESS, ConsumeStatus.COMMIT]
    assert orderly_status(ConsumeStatus.RECONSUME_LATER) is ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


@pytest.mark.parametrize("judge", [is_success, orderly_status])
def test_forgotten_coroutine_is_closed_and_raises(judge: Any) -> None:
    with pytest.raises(TypeError, match="await it in an async def handler"):
        judge(on_message(None))  # type: ignore[arg-type]  # never run; a warning would fail this test
