import logging
from functools import partial

import pytest

from triomq.client.consumer.config import ConsumeContext, ConsumeStatus
from triomq.client.consumer.handlers import Handler, is_success
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


def test_none_and_success_are_success() -> None:
    assert is_success(None)
    assert is_success(ConsumeStatus.SUCCESS)
    assert not is_success(ConsumeStatus.RECONSUME_LATER)


def test_any_other_result_is_a_failure_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert not is_success(True)
    assert not is_success(on_message)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_a_forgotten_coroutine_is_closed() -> None:
    assert not is_success(on_message(None))  # type: ignore[arg-type]  # never run; a warning would fail this test
