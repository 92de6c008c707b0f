"""Scenarios 10, 20, 34 and 49: two and three brokers, behind relays that count the requests."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.processes import Broker, start_triomq
from tests.spark.checkpoints import logged
from tests.spark.harness import Topics, batches, bodies, make_topic, numbered, read, read_stream, start, wait_until
from tests.spark.tap import SENDS, OneNameServer, Tap
from tests.spark.test_write import source, write
from triomq.client.sync import Admin
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.wire.command import RemotingCommand

NAMES = ("broker-a", "broker-b", "broker-c")
TWO = NAMES[:2]
QUEUES = 8


class Brokers:
    """Running brokers.

    Attributes:
        names: of the brokers.
        taps: the relay of each.
        topics: what looks at all of them.
    """

    def __init__(self, stack: ExitStack, folder: Path, names: Sequence[str]) -> None:
        """Start them; ``stack`` ends them."""
        self.names = tuple(names)
        self._folder = folder
        self.taps = {name: stack.enter_context(Tap()) for name in names}
        self._running: dict[str, Broker] = {}
        stack.callback(self._stop)
        for name, tap in self.taps.items():
            (folder / name).mkdir()
            self._start(name)
            tap.target = self._running[name].broker
        self._name_servers = {name: broker.namesrv for name, broker in self._running.items()}
        name_server = stack.enter_context(OneNameServer(list(self._name_servers.values())))
        self.topics = stack.enter_context(Topics(name_server.address))

    def make(self, name: str, queues: int, brokers: Sequence[str]) -> str:
        """Make a topic on some brokers, or give it more queues there."""
        for broker in brokers:
            with Admin(namesrv=self._name_servers[broker]) as admin:
                make_topic(admin, name, queues)
        return name

    def requests(self) -> "Counter[int]":
        return sum((tap.requests for tap in self.taps.values()), Counter())

    def kill(self, name: str) -> None:
        """End a broker as a crash would."""
        self._running[name].kill()

    def restart(self, name: str) -> None:
        """Start a broker that was killed: the same addresses, the same store."""
        killed = self._running[name]
        self._start(name, "--listen", killed.broker, "--namesrv-listen", killed.namesrv)

    def _start(self, name: str, *options: str) -> None:
        relay = ("--broker-name", name, "--advertise", self.taps[name].address)
        self._running[name] = start_triomq(self._folder / name, *relay, *options)

    def _stop(self) -> None:
        for broker in self._running.values():
            broker.stop()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack, tmp_path_factory.mktemp("three"), NAMES)


def test_topics_and_pattern_cover_both_brokers(spark: SparkSession, three: Brokers) -> None:
    """Scenario 10."""
    topics = three.topics
    wanted: Counter[MessageQueue] = Counter()
    for name in ("pattern-1", "pattern-2"):
        three.make(name, 4, TWO)
        topics.send(name, numbered(80))
        wanted.update({MessageQueue(name, broker, number): 10 for broker in TWO for number in range(4)})
    other = three.make("other-pattern-1", 1, TWO)
    topics.send(other, numbered(2))

    def found(**options: str) -> "Counter[MessageQueue]":
        rows = read(spark, topics, schema="topic string, broker string, queueId int", **options).collect()
        return Counter(MessageQueue(row.topic, row.broker, row.queueId) for row in rows)

    assert found(subscribe="pattern-1,pattern-2") == wanted
    assert found(subscribePattern="pattern-.") == wanted
    assert {queue.topic for queue in found(subscribePattern=".*")} == {"pattern-1", "pattern-2", other}


def test_stream_reads_new_queues_from_first_message(
    spark: SparkSession, three: Brokers, checkpoint: Callable[[str], str]
) -> None:
    """Scenarios 20 and 49 while the query runs: 4 queues on two brokers become 8 on three.

    The query begins at the ends, but new queues have messages before their discovery.
    """
    topics = three.topics
    topic = three.make("streamed", 4, TWO)
    topics.send(topic, numbered(80))
    frame = read_stream(spark, topics, subscribe=topic, discoveryIntervalMs=1000)
    query = start(frame, checkpoint("log"), checkpoint("sink"))
    try:
        wait_until(lambda: query.lastProgress is not None)
        topics.send(topic, numbered(80, 1000))
        wait_until(lambda: sum(batches(query)) >= 80)
        three.make(topic, 8, NAMES)
        topics.send(topic, numbered(240, 2000))
        wait_until(lambda: sum(batches(query)) >= 320)
        topics.send(topic, numbered(24, 3000))
        wait_until(lambda: sum(batches(query)) >= 344)
    finally:
        query.stop()
    assert bodies(spark, checkpoint("sink")) == numbered(80, 1000) + numbered(240, 2000) + numbered(24, 3000)
    rows = spark.read.parquet(checkpoint("sink")).select("broker", "queueId").collect()
    assert {tuple(row) for row in rows} == {(name, number) for name in NAMES for number in range(8)}
    new = {queue for queue in topics.queues(topic) if queue.queue_id >= 4 or queue.broker_name == NAMES[2]}
    begun = [pair for offset in logged(checkpoint("log")).values() for pair in offset.begins.items() if pair[0] in new]
    assert sorted(begun) == [(queue, 0) for queue in sorted(new)]


def test_rows_go_to_remaining_broker(spark: SparkSession, three: Brokers) -> None:
    """Scenario 34: it is killed between two sends of the same task; none is lost.

    Each of two tasks has one send in flight, so a third send shows that the first was stored.
    """
    topic = three.make("written", 2, TWO)
    sent_there = itertools.count()

    def end(request: RemotingCommand, _: int) -> None:
        if request.code in SENDS and next(sent_there) == 2:
            three.kill(TWO[1])

    three.taps[TWO[1]].before = end
    try:
        write(source(spark, 2000).drop("id"), three.topics, topic=topic, batchMessages=50, sendsInFlight=1)
    finally:
        three.taps[TWO[1]].before = lambda *_: None
        three.restart(TWO[1])
    assert next(sent_there) >= 3
    rows = read(spark, three.topics, subscribe=topic).select("broker", "body").collect()
    assert sorted({bytes(row.body) for row in rows}) == numbered(2000)
    assert 0 < sum(row.broker == TWO[1] for row in rows) < 2000 // 3
