from functools import partial
from typing import Any

import pytest

from triomq.client.consumer.config import ConsumeContext, ConsumeStatus
from triomq.client.consumer.handlers import Handler, is_success, orderly_status
from triomq.protocol.errors import ConfigError
from triomq.protocol.record.message import MessageExt


async def on_message(_message: MessageExt) -> None: ...


def plain(_message: MessageExt) -> None: ...


async def on_messages(_messages: list[MessageExt], _context: ConsumeContext) -> None: ...


class Callable:
    async def __call__(self, _message: MessageExt) -> None: ...

    async def method(self, _message: MessageExt) -> None: ...


def test_coroutine_functions_are_told_from_plain_ones() -> None:
    assert Handler.of(on_message, None).is_async
    assert Handler.of(partial(on_message), None).is_async
    assert Handler.of(Callable(), None).is_async
    assert Handler.of(Callable().method, None).is_async
    assert not Handler.of(plain, None).is_async
    assert not Handler.of(partial(plain), None).is_async


def test_the_argument_says_whether_it_takes_batches() -> None:
    assert Handler.of(None, on_messages).takes_batch
    assert not Handler.of(on_message, None).takes_batch


def test_exactly_one_handler_must_be_given() -> None:
    with pytest.raises(ConfigError, match="either"):
        Handler.of(None, None)
    with pytest.raises(ConfigError, match="either"):
        Handler.of(on_message, on_messages)
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
