"""Which queues there are, asked of a fake name server."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.unit.client.broker_thread import BrokerThread
from triomq.client.sync import ClientInstance, PullConsumer
from triomq.protocol.bodies.route import BrokerData, ClusterInfo
from triomq.protocol.bodies.statistics import TopicOffset, TopicStatsTable
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, NoRouteError, RequestTimeoutError, SystemBusyError
from triomq.protocol.message_queue import MessageQueue
from triomq.spark import connections
from triomq.spark.options.options import Use, parse_options
from triomq.spark.reading import discovery
from triomq.spark.reading.discovery import Discovery, QueueBounds, find_topics
from triomq.spark.reading.driver import MicroBatchReader
from triomq.spark.source import BatchReader

Q = [MessageQueue("Topic", "broker-a", number) for number in range(4)]


@pytest.fixture
def remote() -> Iterator[BrokerThread]:
    with BrokerThread.running() as running:
        know_brokers(running, "broker-a")
        yield running


def know_brokers(remote: BrokerThread, *names: str) -> None:
    table = {name: BrokerData("DefaultCluster", name, {0: remote.broker.address}) for name in names}
    body = ClusterInfo(table).encode()
    remote.broker.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.reply(body=body))


@contextmanager
def discovering(remote: BrokerThread, **more: str) -> Iterator[Discovery]:
    options = parse_options({"nameServer": remote.broker.address, "planTimeoutMs": "50", **more}, Use.BATCH_READ)
    with ExitStack() as stack:
        instance = stack.enter_context(ClientInstance(remote.broker.address))
        consumer = stack.enter_context(PullConsumer("TEST", instance=instance))
        yield Discovery(options, instance, consumer)


def test_queues_are_those_of_the_topics_asked_for(remote: BrokerThread) -> None:
    remote.broker.add_topic("Other", 1)
    remote.broker.add_topic("%DLQ%G", 1)
    for pattern, topics in ((".*", {"Topic", "Other"}), ("%.*", {"%DLQ%G"})):
        with discovering(remote, subscribePattern=pattern) as discovery:
            assert {queue.topic for queue in discovery.queues(discovery.retry())} == topics
    with discovering(remote, subscribe="Topic") as discovery:
        assert list(discovery.queues(discovery.retry())) == Q
    with discovering(remote, subscribePattern="T.*") as discovery:
        assert list(discovery.queues(discovery.retry())) == Q
    with discovering(remote, assign='{"Topic": {"broker-a": [2, 1]}}') as discovery:
        assert list(discovery.queues(discovery.retry())) == Q[1:3]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("To*", "as a shell pattern it matches Topic: write .* instead of *; the topics are: Topic"),
        ("x", "no topic; the"),
    ],
)
def test_pattern_without_match_is_explained(
    remote: BrokerThread, pattern: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch would read nothing; a stream waits for topics."""
    options = {"nameServer": remote.broker.address, "subscribePattern": pattern}
    with pytest.raises(ConfigError) as caught:
        BatchReader(parse_options(options, Use.BATCH_READ), ()).partitions()
    assert hint in str(caught.value)
    driver = MicroBatchReader(parse_options(options, Use.STREAM_READ), ())
    assert driver.initialOffset()["q"] == {}
    driver.stop()
    assert f"no topic to read yet: {caught.value}" in caplog.text


def test_deleted_topic_hides_no_other(remote: BrokerThread) -> None:
    remote.broker.add_topic("Other", 1)
    other = MessageQueue("Other", "broker-a", 0)
    assigned = '{"Topic": {"broker-a": [1, 3]}, "Other": {"broker-a": [0]}}'
    with discovering(remote, subscribe="Other,Topic") as by_name, discovering(remote, assign=assigned) as by_queue:
        assert list(by_name.queues(by_name.retry())) == [other, *Q]
        del remote.broker.routes["Other"]
        remote.broker.add_topic("Topic", 2)
        with pytest.raises(NoRouteError, match="Other"):
            by_name.queues(by_name.retry())
        assert list(by_name.queues(by_name.retry(), may_be_gone=True)) == Q[:2]
        assert list(by_queue.queues(by_queue.retry(), may_be_gone=True)) == [Q[1]]
        del remote.broker.routes["Topic"]
        remote.broker.add_topic("Third")
        for discovery in (by_name, by_queue):
            assert not discovery.queues(discovery.retry(), may_be_gone=True)
            assert discovery.missing.keys() == {"Topic", "Other"}


def test_queue_of_broker_off_route_is_error(remote: BrokerThread) -> None:
    """A batch would read nothing of it, a stream that begins at the end would read all of it later."""
    table = TopicStatsTable(dict.fromkeys(Q, TopicOffset(5, 9, 0)))
    remote.broker.on(RequestCode.GET_TOPIC_STATS_INFO, lambda command: command.reply(body=table.encode()))
    away = MessageQueue("Topic", "broker-b", 0)
    with discovering(remote, subscribe="Topic") as discovery:
        assert discovery.bounds(Q, discovery.retry(), complete=True).queues == dict.fromkeys(Q, QueueBounds(5, 9))
        with pytest.raises(RequestTimeoutError, match="Topic@broker-b:0: its broker has left the route"):
            discovery.bounds([*Q, away], discovery.retry(), complete=True)


def test_busy_broker_is_asked_again_for_time(remote: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [SystemBusyError(int(ResponseCode.SYSTEM_BUSY), "flow control", "h:1")]

    def offset_for_timestamp(*_: object) -> int:
        if errors:
            raise errors.pop()
        return 7

    with discovering(remote, subscribe="Topic", planTimeoutMs="5000") as discovery:
        monkeypatch.setattr(discovery.consumer, "offset_for_timestamp", offset_for_timestamp)
        assert discovery.first_at(Q[0], QueueBounds(0, 9), 1) == 7
    assert not errors


@pytest.mark.parametrize("wanted", [{"subscribe": "Topic"}, {"subscribePattern": "T.*"}])
def test_topics_are_unknown_while_no_broker_is_registered(remote: BrokerThread, wanted: dict[str, str]) -> None:
    """Scenario 44 with Apache's name server, which forgets the topics of a broker that is away."""
    remote.broker.routes.clear()
    know_brokers(remote)
    with discovering(remote, **wanted) as discovery:
        with pytest.raises(RequestTimeoutError, match=r"given up after .* no broker is registered") as caught:
            discovery.queues(discovery.retry())
        assert remote.broker.address in str(caught.value)
        remote.broker.add_topic("Topic")
        know_brokers(remote, "broker-a")
        assert list(discovery.queues(discovery.retry(0.0))) == Q


def find(address: str, topic: str, use: Use, *, may_be_gone: bool = False, **more: str) -> None:
    name = "topic" if use is Use.WRITE else "subscribe"
    find_topics({use: {"nameServer": address, name: topic, **more}}, may_be_gone=may_be_gone)


@pytest.mark.parametrize("use", Use)
def test_topics_are_looked_up_without_leaving_client(remote: BrokerThread, use: Use) -> None:
    find(remote.broker.address, "Topic", use)
    assert not connections._entries
    with pytest.raises(NoRouteError, match="similar topics: Topic"):
        find(remote.broker.address, "Tpoic", use)
    find(remote.broker.address, "Tpoic", Use.STREAM_READ, may_be_gone=True)


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize("more", [{"planTimeoutMs": "50"}, {}], ids=["chosen limit", "first contact"])
def test_wrong_address_names_topic_and_option(monkeypatch: pytest.MonkeyPatch, use: Use, more: dict[str, str]) -> None:
    assert discovery.FIRST_CONTACT_S <= 5
    monkeypatch.setattr(discovery, "FIRST_CONTACT_S", 0.05 if not more else 3600.0)
    with pytest.raises(RequestTimeoutError, match=r" Topic at 127\.0\.0\.1:1 \(option 'planTimeoutMs'\): given up"):
        find("127.0.0.1:1", "Topic", use, may_be_gone=False, **more)
