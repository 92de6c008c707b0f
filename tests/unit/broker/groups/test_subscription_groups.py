"""Configurations of consumer groups: created by use, changed, deleted, saved."""

from pathlib import Path

import orjson
import pytest

from triomq.broker.config import BrokerConfig
from triomq.broker.groups.subscription_groups import SubscriptionGroupTable
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.errors import IllegalNameError, RefusedError
from triomq.storage.config import StoreConfig
from triomq.storage.files.json_table import JsonTable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "subscriptionGroup.json"


def opened(path: Path, *, auto_create: bool = True, max_groups: int = 100) -> SubscriptionGroupTable:
    config = BrokerConfig(store=StoreConfig(root=path.parent), auto_create_group=auto_create, max_groups=max_groups)
    table = SubscriptionGroupTable(JsonTable(path), config, clock_ms=lambda: 5, on_change=lambda: None)
    table.load()
    return table


@pytest.fixture
def table(path: Path) -> SubscriptionGroupTable:
    return opened(path)


def test_use_creates_group_with_rocketmq_defaults(table: SubscriptionGroupTable) -> None:
    """C.2 scenario 31."""
    assert table.get("G") is None
    config = table.get_or_create("G")
    assert config == SubscriptionGroupConfig(
        group_name="G",
        consume_enable=True,
        consume_from_min_enable=True,
        consume_broadcast_enable=True,
        retry_queue_nums=1,
        retry_max_times=16,
        broker_id=0,
        which_broker_when_consume_slowly=1,
        notify_consumer_ids_changed_enable=True,
    )
    assert table.get("G") is config
    assert table.is_dirty


def test_only_system_groups_are_created_without_auto_create(path: Path) -> None:
    table = opened(path, auto_create=False)
    assert table.get_or_create("G") is None
    assert table.get_or_create("CID_RMQ_SYS_TRANS") is not None
    assert not table.names().count("G")


@pytest.mark.parametrize("group", ["", " ", "a@b", "a/b", "G" * 256, "DEFAULT_CONSUMER"])
def test_group_with_illegal_name_is_not_created(table: SubscriptionGroupTable, group: str) -> None:
    before = table.names()
    with pytest.raises(IllegalNameError):
        table.get_or_create(group)
    assert table.names() == before


@pytest.mark.parametrize("group", ["TOOLS_CONSUMER", "CID_ONSAPI_PULL", "SELF_TEST_C_GROUP"])
def test_built_in_groups_exist(table: SubscriptionGroupTable, group: str) -> None:
    assert table.get(group) is not None
    assert not table.is_dirty


def test_a_group_can_be_replaced_and_deleted(table: SubscriptionGroupTable) -> None:
    table.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    config = table.get_or_create("G")
    assert config is not None
    assert config.retry_max_times == 3
    assert table.delete("G")
    assert not table.delete("G")
    assert table.get("G") is None


def test_every_change_raises_the_data_version(table: SubscriptionGroupTable) -> None:
    first = table.data_version.counter
    table.get_or_create("G")
    table.get_or_create("G")
    table.delete("G")
    assert table.data_version.counter == first + 2


def test_file_of_rocketmq_5_is_read(path: Path) -> None:
    entry = {"groupName": "G", "retryMaxTimes": 2, "consumeMessageOrderly": False, "attributes": {}}
    path.write_bytes(
        orjson.dumps({"dataVersion": {"counter": 14, "timestamp": 3}, "subscriptionGroupTable": {"G": entry}})
    )
    table = opened(path)
    assert table.get("G") == SubscriptionGroupConfig(group_name="G", retry_max_times=2)
    assert table.data_version.counter == 14


def test_full_table_refuses_new_groups(path: Path) -> None:
    table = opened(path, max_groups=len(opened(path).names()) + 1)
    table.get_or_create("G")
    for create in (table.get_or_create, table.check_new):
        with pytest.raises(RefusedError, match="H: the broker has 8 subscription groups and may have 8: "):
            create("H")
        create("G")
    assert table.get("H") is None
