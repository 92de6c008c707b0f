"""The topic of a job that writes, asked of a fake name server."""

import signal
from collections.abc import Iterator

import pytest

from tests.unit.client.broker_thread import BrokerThread
from triomq.protocol.bodies.route import BrokerData, ClusterInfo
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import NoRouteError, RequestTimeoutError
from triomq.spark import connections
from triomq.spark.jobs.shared.stopping import Stopper
from triomq.spark.jobs.shared.target import find_target
from triomq.spark.options.options import Options, Use, parse_options


@pytest.fixture
def remote() -> Iterator[BrokerThread]:
    with BrokerThread.running() as running:
        table = {"broker-a": BrokerData("DefaultCluster", "broker-a", {0: running.broker.address})}
        body = ClusterInfo(table).encode()
        running.broker.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.reply(body=body))
        yield running


def options(address: str, topic: str = "Topic", patience_ms: int = 3_600_000) -> Options:
    return parse_options({"nameServer": address, "topic": topic, "planTimeoutMs": str(patience_ms)}, Use.WRITE)


def test_a_topic_that_is_there_is_found_and_no_client_kept(remote: BrokerThread) -> None:
    find_target(options(remote.broker.address), Stopper())
    assert not connections._entries


def test_a_topic_that_nobody_makes_is_told_at_once(remote: BrokerThread) -> None:
    with pytest.raises(NoRouteError, match="similar topics: Topic"):
        find_target(options(remote.broker.address, "Tpoic"), Stopper())


def test_a_name_server_that_is_not_there_is_told_with_topic_and_option() -> None:
    with pytest.raises(
        RequestTimeoutError, match=r"topic Topic at 127\.0\.0\.1:1 \(option 'planTimeoutMs'\): given up"
    ):
        find_target(options("127.0.0.1:1", patience_ms=50), Stopper())


def test_a_signal_ends_the_wait() -> None:
    stopper = Stopper()
    stopper.note(signal.SIGTERM)
    find_target(options("127.0.0.1:1"), stopper)
