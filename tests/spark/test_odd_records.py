"""Scenario 9: records that are odd in many ways, stored by a broker that is reached by IPv6."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import Broker, start_triomq
from tests.spark.harness import Topics, read
from tests.unit.spark.reading.test_columns import expected
from triomq.protocol.record.batch import encode_batch
from triomq.protocol.record.message import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: As producers of other languages write them.
PROPERTIES = (
    b"", b"a\x011", b"a\x011\x02", b"a\x011\x02a\x012\x02", b"a\x01\x02b\x01x", b"a\x01\xff\xfe\x02", b"nothing\x02",
    b"\x01v\x02", b"TAGS\x01\x02", b"KEYS\x01k\x02TAGS\x01A\x02",
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    addresses = ("--listen", "[::1]:0", "--namesrv-listen", "[::1]:0")
    with start_triomq(tmp_path_factory.mktemp("broker"), *addresses) as running:
        yield running


@pytest.fixture(scope="module")
def topics(broker: Broker) -> Iterator[Topics]:
    with Topics(broker.namesrv) as opened:
        yield opened


def test_odd_records_equal_those_of_client(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.make(1)
    topics.producer.send_encoded_batch(topic, encode_batch([(0, b"%d" % n, p) for n, p in enumerate(PROPERTIES)]))
    for message in (Message(topic, b"z" * 10_000), Message(topic, b"plain", tags="A", keys=["k"], flag=-1)):
        topics.producer.send(message)
    (queue,) = topics.queues(topic)
    messages = topics.consumer.pull(queue, 0).messages
    assert len(messages) == len(PROPERTIES) + 2
    assert {message.born_host.rpartition(":")[0] for message in messages} == {"[::1]"}
    rows = read(spark, topics, subscribe=topic).orderBy("queueOffset").collect()
    assert [row.asDict() for row in rows] == [as_spark(expected(message, topic)) for message in messages]


def as_spark(columns: dict[str, Any]) -> dict[str, Any]:
    """Columns as Spark gives them: times without zone, in this machine's."""
    return {
        name: value.astimezone().replace(tzinfo=None) if isinstance(value, datetime) else value
        for name, value in columns.items()
    }
