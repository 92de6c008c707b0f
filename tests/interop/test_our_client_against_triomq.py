"""The client suite against our broker, by all facades, and against two of our brokers."""

import pytest

from tests.facades import FACADES
from tests.interop.our_client import (
    namesrv,
    place,
    test_our_client,
    test_triomq_honours_large_pull_and_apache_caps_it_at_32,
)

__all__ = ["namesrv", "place", "test_our_client", "test_triomq_honours_large_pull_and_apache_caps_it_at_32"]

PLACES = (
    *(pytest.param(("triomq", facade), id=f"triomq-{facade}") for facade in FACADES),
    pytest.param(("two-triomq", "trio"), id="two-triomq"),
)
