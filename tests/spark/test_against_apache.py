"""What Apache's brokers must do too: the same tests, with Apache 4.9.7 in the place of our broker."""

from collections.abc import Iterator

import pytest

from tests.interop.kit_driver import ApacheBroker, ApacheBrokers
from tests.spark import test_batch_read, test_stream_read, test_write

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    """Apache's broker; ended with the module."""
    brokers = ApacheBrokers(tmp_path_factory.mktemp("apache"))
    try:
        yield brokers.get("4.9.7")
    finally:
        brokers.stop_all()


# Scenarios 1, 3, 4, 6, 8, 15 and 28; pytest runs them here again, with the broker of this module.
test_columns = test_batch_read.test_all_columns_of_all_messages_are_what_was_sent
test_positions = test_batch_read.test_json_positions_give_exactly_their_ranges
test_bounds = test_batch_read.test_a_position_outside_its_queue_is_an_error_with_its_bounds
test_times = test_batch_read.test_times_bound_the_rows
test_tags = test_batch_read.test_tags_are_filtered_and_equal_hashes_told_apart
test_bodies = test_batch_read.test_bodies_of_all_sizes_arrive
test_stream = test_stream_read.test_available_now_reads_what_was_there_at_its_start
test_written_columns = test_write.test_all_columns_of_all_rows_become_messages
test_sharding_keys = test_write.test_rows_of_a_sharding_key_stay_in_order_in_one_queue
test_delays = test_write.test_delayed_rows_arrive_later
