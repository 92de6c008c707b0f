"""The client suite against clusters of two brokers with Apache's among them."""

from pathlib import Path

import pytest

from tests.integration.cli_tools import complaint
from tests.interop.clusters import CLUSTERS, NAMES
from tests.interop.our_client import namesrv, place, test_only_apache_caps_large_pulls_at_32, test_our_client

__all__ = ["namesrv", "place", "test_only_apache_caps_large_pulls_at_32", "test_our_client"]

pytestmark = pytest.mark.jvm

PLACES = tuple(pytest.param((kind, "trio"), id=kind) for kind in CLUSTERS if kind != "two-triomq")


def test_no_broker_starts_under_the_name_of_another(namesrv: str, tmp_path: Path) -> None:
    for name in NAMES:
        words = ("broker", "--listen", "127.0.0.1:0", "--broker-name", name, "--store", str(tmp_path / "store"))
        line = complaint(2, *words, "--register", namesrv, "--metrics", "off", "--log-level", "error")
        assert f"broker name {name} is in use: name server {namesrv} " in line
