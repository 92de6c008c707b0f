"""A broker in a test: ``open_broker``, ``BrokerProcess``, and the fixtures of pytest.

pytest loads ``triomq.testing.pytest_plugin`` in every run, so importing this package loads no broker.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triomq.testing.host import SENDS, Group
    from triomq.testing.running import BrokerProcess, RunningBroker, open_broker

__all__ = ["SENDS", "BrokerProcess", "Group", "RunningBroker", "open_broker"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from triomq.testing import host, running

    return getattr(running, name, None) or getattr(host, name)
