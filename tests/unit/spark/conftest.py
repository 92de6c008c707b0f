from types import SimpleNamespace

import pytest

from triomq.spark import connections
from triomq.spark.writing import writer


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only in pauses, which are collected here."""
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 100 + sum(slept), sleep=slept.append, time_ns=lambda: 0)
    for module in (connections, writer):
        monkeypatch.setattr(module, "time", clock)
    return slept
