"""A job's topics, looked up at a fake name server."""

import signal
from collections.abc import Iterator

import pytest

from tests.unit.client.broker_thread import BrokerThread
from triomq.protocol.bodies.route import BrokerData, ClusterInfo
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import NoRouteError, RequestTimeoutError
from triomq.spark import connections
from triomq.spark.jobs.shared.program import find_topics
from triomq.spark.jobs.shared.stopping import Stopper
from triomq.spark.options.options import Use
from triomq.spark.reading import discovery


@pytest.fixture
def remote() -> Iterator[BrokerThread]:
    with BrokerThread.running() as running:
        table = {"broker-a": BrokerData("DefaultCluster", "broker-a", {0: running.broker.address})}
        body = ClusterInfo(table).encode()
        running.broker.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.reply(body=body))
        yield running


def find(address: str, topic: str = "Topic", use: Use = Use.WRITE, stopper: Stopper | None = None, **more: str) -> None:
    name = "topic" if use is Use.WRITE else "subscribe"
    find_topics({use: {"nameServer": address, name: topic, **more}}, stopper or Stopper())


@pytest.mark.parametrize("use", Use)
def test_an_existing_topic_is_found_and_no_client_kept(remote: BrokerThread, use: Use) -> None:
    find(remote.broker.address, use=use)
    assert not connections._entries


@pytest.mark.parametrize("use", Use)
def test_a_missing_topic_is_reported_at_once(remote: BrokerThread, use: Use) -> None:
    with pytest.raises(NoRouteError, match="similar topics: Topic"):
        find(remote.broker.address, "Tpoic", use)


def test_a_continued_stream_may_lack_its_topic(remote: BrokerThread) -> None:
    """The stream knows whether the topic was deleted, and reports it as loss."""
    options = {Use.STREAM_READ: {"nameServer": remote.broker.address, "subscribe": "Tpoic"}}
    find_topics(options, Stopper(), has_checkpoint=True)


@pytest.mark.parametrize("use", Use)
def test_a_wrong_address_is_reported_with_topic_and_option(use: Use) -> None:
    with pytest.raises(RequestTimeoutError, match=r" Topic at 127\.0\.0\.1:1 \(option 'planTimeoutMs'\): given up"):
        find("127.0.0.1:1", use=use, planTimeoutMs="50")


def test_a_wrong_address_is_reported_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert discovery.FIRST_CONTACT_S <= 5
    monkeypatch.setattr(discovery, "FIRST_CONTACT_S", 0.05)
    with pytest.raises(RequestTimeoutError, match=r"127\.0\.0\.1:1"):
        find("127.0.0.1:1", use=Use.STREAM_READ)


def test_a_signal_ends_the_wait() -> None:
    stopper = Stopper()
    stopper.note(signal.SIGTERM)
    find("127.0.0.1:1", stopper=stopper, planTimeoutMs="3600000")
