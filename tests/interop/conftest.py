"""Brokers for the interop tests: ours, and unmodified Apache brokers started by the kit."""

import signal
from collections.abc import Iterator

import pytest

from tests.interop.clusters import QUICK_CHECKS
from tests.interop.kit_driver import KIT, ApacheBrokers
from tests.processes import Broker, start_triomq

for path in (*KIT.parent.glob("suite_*.py"), KIT.parent / "our_client.py"):
    pytest.register_assert_rewrite(f"tests.interop.{path.stem}")  # so that a failed assert there shows its values

TIMEOUT_S = 1800  # the first run also downloads and builds the kit; each step has its own limit


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set a time limit that allows for building the kit."""
    for item in items:
        if item.path.is_relative_to(KIT.parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the client suite at each place that a module lists."""
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", metafunc.module.PLACES, indirect=True, scope="module")


@pytest.fixture(scope="session")
def apache_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBrokers]:
    """Apache brokers by version, each started at first use and stopped with the session."""
    brokers = ApacheBrokers(tmp_path_factory.mktemp("apache"))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: fixtures stop their processes
    yield brokers
    brokers.stop_all()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def triomq_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Our broker, one per test file; at the end it must exit with code 0 within 30 s of SIGTERM."""
    with start_triomq(tmp_path_factory.mktemp("triomq"), *QUICK_CHECKS) as broker:
        yield broker


@pytest.fixture(params=["triomq", "4.9.7"])
def either_namesrv(request: pytest.FixtureRequest) -> str:
    """The name server of our broker, then of Apache's."""
    if request.param == "triomq":
        return str(request.getfixturevalue("triomq_broker").namesrv)
    return str(request.getfixturevalue("apache_brokers").get(request.param).namesrv)
