"""The client suite against clusters of two brokers with Apache's among them."""

import pytest

from tests.interop.clusters import CLUSTERS
from tests.interop.our_client import (
    namesrv,
    place,
    test_our_client,
    test_triomq_honours_large_pull_and_apache_caps_it_at_32,
)

__all__ = ["namesrv", "place", "test_our_client", "test_triomq_honours_large_pull_and_apache_caps_it_at_32"]

pytestmark = pytest.mark.jvm

PLACES = tuple(pytest.param((kind, "trio"), id=kind) for kind in CLUSTERS if kind != "two-triomq")
