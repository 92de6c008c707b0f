import os
from datetime import UTC, datetime

import pytest

from triomq.client.consumer.config import ConsumerConfig, StartOffset, StartPolicy, StartPosition
from triomq.protocol.bodies.client import ConsumeFromWhere
from triomq.protocol.errors import ConfigError
from triomq.protocol.message_queue import QueueOffset, Timestamp


def test_defaults_are_rocketmqs() -> None:
    config = ConsumerConfig()
    assert ConsumerConfig(executor="process").workers == os.cpu_count()
    assert ConsumerConfig(executor="process", max_concurrency=3).workers == 3
    assert (config.workers, config.pull_batch_size, config.max_reconsume_times) == (20, None, 16)
    assert (config.max_cached_messages, config.max_cached_bytes, config.max_span) == (1_000, 104_857_600, 2_000)
    assert (config.suspend_s, config.pull_timeout_s, config.consume_timeout_s) == (15, 30, 900)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_concurrency", 0),
        ("max_concurrency", 1_001),
        ("batch_max_size", 0),
        ("pull_batch_size", 1_025),
        ("max_cached_messages", 65_536),
        ("max_cached_bytes", 0),
        ("max_span", 0),
        ("max_reconsume_times", -1),
        ("grace_s", -1.0),
        ("pull_error_delay_s", 0.0),
        ("out_of_range", "zero"),
        ("executor", "fork"),
        ("suspend_s", 30.0),
    ],
)
def test_impossible_values_fail_at_start_and_are_named(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=setting):
        ConsumerConfig(**{setting: value})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("start", "policy", "where"),
    [
        ("earliest", StartPolicy(StartPosition.EARLIEST), "FIRST_OFFSET"),
        (StartPosition.LATEST, StartPolicy(StartPosition.LATEST), "LAST_OFFSET"),
        (datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC), StartPolicy(None, Timestamp(1_767_323_045_678)), "TIMESTAMP"),
        (7, StartPolicy(None, queue_offset=QueueOffset(7)), "FIRST_OFFSET"),
    ],
)
def test_starts_are_read_and_have_rocketmqs_word(start: StartOffset, policy: StartPolicy, where: str) -> None:
    assert StartPolicy.parse(start) == policy
    assert policy.consume_from_where is ConsumeFromWhere[f"CONSUME_FROM_{where}"]


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="time zone"):
        StartPolicy.parse(datetime(2026, 1, 2))  # noqa: DTZ001  # the refused value


@pytest.mark.parametrize("start", ["first", "", "LATEST", -1, True])
def test_other_words_are_refused(start: str) -> None:
    with pytest.raises(ConfigError, match="earliest"):
        StartPolicy.parse(start)
