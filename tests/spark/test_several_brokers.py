"""Scenarios 10, 20, 34 and 49: two and three brokers, behind relays that count the requests."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.spark.brokers import Brokers
from tests.spark.checkpoints import logged
from tests.spark.harness import batches, bodies, numbered, read, read_stream, start, wait_until
from tests.spark.tap import SENDS
from tests.spark.test_write import source, write
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message
from triomq.protocol.wire.command import RemotingCommand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("broker-a", "broker-b", "broker-c")
TWO = NAMES[:2]
QUEUES = 8
LONGEST_DELAY = 18  # level; two hours


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack, tmp_path_factory.mktemp("three"), NAMES)


def test_topics_and_a_pattern_give_all_queues_of_both_brokers(spark: "SparkSession", three: Brokers) -> None:
    """Scenario 10; the topics of the system have messages, too."""
    topics = three.topics
    wanted: Counter[MessageQueue] = Counter()
    for name in ("pattern-1", "pattern-2"):
        three.make(name, 4, TWO)
        topics.send(name, numbered(80))
        wanted.update({MessageQueue(name, broker, number): 10 for broker in TWO for number in range(4)})
    other = three.make("other-pattern-1", 1, TWO)
    topics.send(other, numbered(2))
    fill_topics_of_the_system(three)

    def found(**options: str) -> "Counter[MessageQueue]":
        rows = read(spark, topics, schema="topic string, broker string, queueId int", **options).collect()
        return Counter(MessageQueue(row.topic, row.broker, row.queueId) for row in rows)

    assert found(subscribe="pattern-1,pattern-2") == wanted
    assert found(subscribePattern="pattern-.") == wanted
    everything = found(subscribePattern=".*")
    assert {queue.topic for queue in everything} == {"pattern-1", "pattern-2", other}
    assert {queue.topic for queue in found(subscribePattern="%.*")} == {"%DLQ%TEST"}


def fill_topics_of_the_system(brokers: Brokers) -> None:
    """Put messages into topics of the system: a delayed one, and a dead letter."""
    topics = brokers.topics
    topics.producer.send(Message("other-pattern-1", b"later", delay_level=LONGEST_DELAY))
    (message, *_) = next(
        result.messages
        for queue in topics.queues("other-pattern-1")
        if (result := topics.consumer.pull(queue, 0)).messages
    )
    topics.consumer.send_back(message, delay_level=-1)
    filled = {queue.topic for queue in topics_with_messages(brokers)}
    assert filled >= {"SCHEDULE_TOPIC_XXXX", "%DLQ%TEST"}


def topics_with_messages(brokers: Brokers) -> Iterator[MessageQueue]:
    for topic in ("SCHEDULE_TOPIC_XXXX", "%DLQ%TEST"):
        bounds = brokers.topics.consumer.bounds(topic)
        yield from (queue for queue, found in bounds.offsets.items() if found.max_offset > found.min_offset)


def test_three_brokers_share_the_pulls_of_one_job(spark: "SparkSession", three: Brokers) -> None:
    """Scenario 49: 24 queues, and in no half of the job does a broker get more than 40 % of the pulls.

    The partitions are many, since one that hangs behind moves its pulls to those of others.
    """
    topic = three.make("shared", QUEUES, NAMES)
    three.topics.send(topic, numbered(24 * 1600))
    before = {name: tap.pulls() for name, tap in three.taps.items()}
    frame = read(spark, three.topics, subscribe=topic, maxRecordsPerPartition=400)
    assert frame.rdd.getNumPartitions() == 96
    rows = frame.select("broker", "queueId", "queueOffset").collect()
    found = Counter((row.broker, row.queueId) for row in rows)
    assert found == {(name, queue): 1600 for name in NAMES for queue in range(QUEUES)}
    assert len({tuple(row) for row in rows}) == 24 * 1600
    pulls = sorted((at, name) for name, tap in three.taps.items() for at in tap.pull_times[before[name] :])
    half = len(pulls) // 2
    for part in (pulls[:half], pulls[half:]):
        served = Counter(name for _, name in part)
        assert max(served.values()) <= 0.4 * len(part), served


def test_stream_reads_new_queues_and_broker_from_first_message(
    spark: "SparkSession", three: Brokers, checkpoint: Callable[[str], str]
) -> None:
    """Scenarios 20 and 49 while the query runs: 4 queues on two brokers become 8 on three.

    The query begins at the ends, but what is new has messages before it is discovered.
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


def test_rows_go_to_the_other_broker_when_one_ends(spark: "SparkSession", three: Brokers) -> None:
    """Scenario 34: it is killed between two sends of the same task; none is lost.

    Two tasks have one send under way each, so that the third one tells that the first was stored.
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
