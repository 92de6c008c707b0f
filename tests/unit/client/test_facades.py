import inspect
from types import ModuleType
from typing import TYPE_CHECKING, assert_type

import pytest

import triomq.client
from triomq.client import Message, SendResult, asyncio, sync

CLIENTS = ("Admin", "LitePullConsumer", "Producer", "PullConsumer", "PushConsumer")


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("facade", [sync, asyncio])
def test_each_facade_has_every_method_with_its_signature(facade: ModuleType, name: str) -> None:
    on_trio, here = getattr(triomq.client, name), getattr(facade, name)
    for method in dir(on_trio):
        if not method.startswith("_"):
            assert hasattr(here, method), method
            wanted, is_async = inspect.signature(getattr(on_trio, method)), inspect.iscoroutinefunction
            assert inspect.signature(getattr(here, method)) == wanted, method
            if facade is asyncio:
                assert is_async(getattr(here, method)) == is_async(getattr(on_trio, method)), method
    assert inspect.signature(here).parameters.keys() == inspect.signature(on_trio).parameters.keys()


if TYPE_CHECKING:

    async def calls_as_mypy_sees_them(blocking: sync.Producer, awaiting: asyncio.Producer) -> None:
        assert_type(blocking.send(Message("Topic", b"x"), key=1), SendResult)
        assert_type(await awaiting.send(Message("Topic", b"x")), SendResult)
        blocking.send("text")  # type: ignore[arg-type]
        await awaiting.send(Message("Topic", b"x"), colour=1)  # type: ignore[call-arg]
        asyncio.Producer()  # type: ignore[call-arg]
