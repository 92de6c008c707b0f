"""The client suite against Apache's brokers; the facades differ inside the client only, so one is enough."""

import pytest

from tests.interop.our_client import namesrv, place, test_only_apache_caps_large_pulls_at_32, test_our_client

__all__ = ["namesrv", "place", "test_only_apache_caps_large_pulls_at_32", "test_our_client"]

pytestmark = pytest.mark.jvm

PLACES = tuple(pytest.param((kind, "trio"), id=kind) for kind in ("apache-4.9.7", "apache-5.5.0"))
