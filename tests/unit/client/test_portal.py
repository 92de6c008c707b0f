import inspect
from types import ModuleType

import pytest

import triomq.client
from triomq.client import asyncio, sync

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
