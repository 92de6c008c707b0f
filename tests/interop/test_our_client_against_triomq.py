"""The client suite against our broker, by all facades, and against two of our brokers."""

import pytest

from tests.facades import FACADES
from tests.interop.our_client import namesrv, place, test_only_apache_caps_large_pulls_at_32, test_our_client

__all__ = ["namesrv", "place", "test_only_apache_caps_large_pulls_at_32", "test_our_client"]

PLACES = (
    *(pytest.param(("triomq", facade), id=f"triomq-{facade}") for facade in FACADES),
    pytest.param(("two-triomq", "trio"), id="two-triomq"),
)
