"""What Apache's brokers must do too: the same tests, with Apache 4.9.7 in the place of our broker."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.interop.kit_driver import ApacheBroker, ApacheBrokers
from tests.spark import test_batch_read, test_faults, test_read_by_java, test_scale, test_stream_read, test_write
from tests.spark.harness import Topics
from tests.spark.tap import OneNameServer, Tap
from tests.unit.spark.reading import test_deleted_topics
from tests.unit.spark.reading.test_deleted_topics import Stream

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]  # a first run builds the kit


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBrokers]:
    """What starts and ends Apache's brokers."""
    brokers = ApacheBrokers(tmp_path_factory.mktemp("apache"))
    try:
        yield brokers
    finally:
        brokers.stop_all()


@pytest.fixture(scope="module")
def broker(apache: ApacheBrokers) -> ApacheBroker:
    """Apache's broker; ended with the module."""
    return apache.get("4.9.7")


@pytest.fixture(scope="module")
def topics(broker: ApacheBroker) -> Iterator[Topics]:
    with Topics(broker.namesrv) as opened:
        yield opened


@pytest.fixture(scope="module")
def tapped(broker: ApacheBroker) -> Iterator[tuple[Topics, Tap]]:
    """The broker behind a relay, which only this name server knows."""
    with (
        Tap() as tap,
        OneNameServer([broker.namesrv], {broker.broker: tap.address}) as name_server,
        Topics(name_server.address) as topics,
    ):
        tap.target = broker.broker
        yield topics, tap


class Restartable:
    """Apache's broker, away for a while; its name server stays, and forgets the topics of a broker that is away."""

    def __init__(self, apache: ApacheBrokers, broker: ApacheBroker) -> None:
        self._apache = apache
        self._folder = broker.folder
        self.broker, self.namesrv = broker.broker, broker.namesrv

    def stop(self) -> None:
        self._apache.stop_broker(self._folder, kill=True)

    def start(self) -> None:
        self._apache.start_broker(self._folder)


@pytest.fixture
def restartable(apache: ApacheBrokers, broker: ApacheBroker) -> Restartable:
    """The module's broker: the last tests have it."""
    return Restartable(apache, broker)


@pytest.fixture
def stream(broker: ApacheBroker) -> Iterator[Stream]:
    with ExitStack() as stack:
        yield Stream(stack, broker.namesrv)


# Scenarios 1, 3, 4, 6, 8, 15, 28, 40 and 44; pytest runs them here again, with the broker of this module.
test_columns = test_batch_read.test_all_columns_equal_the_sent_messages
test_positions = test_batch_read.test_json_positions_give_exactly_their_ranges
test_bounds = test_batch_read.test_out_of_range_offset_error_names_the_bounds
test_times = test_batch_read.test_times_bound_the_rows
test_sql = test_batch_read.test_an_sql_filter_chooses_rows_at_the_broker
test_bytes_of_tags = test_scale.test_tags_are_filtered_by_the_broker
test_bodies = test_batch_read.test_bodies_of_all_sizes_arrive
test_stream = test_stream_read.test_available_now_ends_at_offsets_of_its_start
test_written_columns = test_write.test_all_columns_of_all_rows_become_messages
test_delays = test_write.test_delayed_rows_arrive_later
test_columns_by_java = test_read_by_java.test_java_reads_all_columns_of_all_rows
test_deleted_topic = test_deleted_topics.test_deleted_topic_is_loss_or_logged
test_topic_made_again = test_deleted_topics.test_topic_made_again_is_read_from_its_start
test_topic_made_again_between_runs = test_deleted_topics.test_topic_made_again_between_runs_is_recognised
test_task_of_a_deleted_topic = test_deleted_topics.test_task_of_a_deleted_topic_ends_at_once
test_begins_without_broker = test_faults.test_start_without_broker_names_topic_and_name_server
test_broker_away = test_faults.test_query_waits_limited_time_for_broker
