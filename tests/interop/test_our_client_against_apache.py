"""The client suite against Apache's brokers; the facades differ inside the client only, so one is enough."""

import pytest

from tests.interop.our_client import (
    namesrv,
    place,
    test_our_client,
    test_triomq_honours_large_pull_and_apache_caps_it_at_32,
)

__all__ = ["namesrv", "place", "test_our_client", "test_triomq_honours_large_pull_and_apache_caps_it_at_32"]

pytestmark = pytest.mark.jvm

PLACES = tuple(pytest.param((kind, "trio"), id=kind) for kind in ("apache-4.9.7", "apache-5.5.0"))
