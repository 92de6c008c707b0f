from pathlib import Path
from typing import Any

import pytest

from triomq.protocol.errors import ConfigError
from triomq.storage.config import StoreConfig


def config(**settings: Any) -> StoreConfig:
    return StoreConfig(root=Path("store"), **settings)


def test_consume_queue_files_hold_whole_units() -> None:
    assert config(consume_queue_file_size_bytes=1001).consume_queue_file_size_bytes == 1020


def test_record_limited_by_file_size_and_message_size() -> None:
    assert config(commit_log_file_size_bytes=65536).max_record_size_bytes == 65528
    assert config().max_record_size_bytes == 4 * 1024**2 + 65536


def test_in_memory_is_part_of_main_memory() -> None:
    assert config(physical_memory_bytes=1000).in_memory_bytes == 400
    assert config().in_memory_bytes > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("commit_log_file_size_bytes", 1023),
        ("commit_log_file_size_bytes", 2**31),
        ("consume_queue_file_size_bytes", 0),
        ("max_message_size_bytes", 0),
        ("disk_full_ratio", 101),
        ("disk_max_used_ratio", 9),
        ("disk_clean_ratio", 0),
        ("retention_hours", -1),
        ("retention_bytes", 1024**3 - 1),
        ("delete_when", (4, 24)),
        ("clean_interval_s", 0),
        ("in_memory_max_ratio", -1),
        ("flush_interval_s", 0),
        ("flush_interval_s", float("nan")),
        ("reserve_step_bytes", 0),
        ("max_transfer_bytes_asked", 0),
        ("max_transfer_bytes_asked", 8 * 1024**2 + 1),
        ("max_transfer_count_asked", 0),
        ("max_transfer_count_asked", 8193),
    ],
)
def test_impossible_values_are_refused_with_their_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        config(**{name: value})
