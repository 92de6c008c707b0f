"""The saved tables of groups: consumer offsets, and configurations."""

from pathlib import Path

import orjson
import pytest

from tests.unit.broker.recording import Clock
from triomq.broker.config import BrokerConfig
from triomq.broker.groups.tables import ConsumerOffsetTable, SubscriptionGroupTable
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.errors import RefusedError
from triomq.storage.config import StoreConfig
from triomq.storage.files.json_table import JsonTable
from triomq.storage.reading.cold_read import finish


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


@pytest.fixture
def table(path: Path) -> ConsumerOffsetTable:
    return ConsumerOffsetTable(JsonTable(path), clock_ms=Clock())


def reopened(path: Path) -> ConsumerOffsetTable:
    table = ConsumerOffsetTable(JsonTable(path), clock_ms=Clock())
    table.load()
    return table


def save(table: ConsumerOffsetTable) -> None:
    table.is_dirty = False
    table.write(list(table.pieces()))


def test_unchanged_offsets_leave_the_table_clean(table: ConsumerOffsetTable) -> None:
    table.commit("G", "T", 0, 1)
    save(table)
    table.commit("G", "T", 0, 1)
    finish(table.delete_group("no such group"))
    finish(table.delete_topic("no such topic"))
    assert not table.is_dirty


def test_delete_group_affects_only_that_group(table: ConsumerOffsetTable) -> None:
    for group, topic in (("G", "T"), ("G", "U"), ("HG", "T")):
        table.commit(group, topic, 0, 1)
    finish(table.delete_group("G"))
    assert list(finish(table.groups())) == ["HG"]
    assert finish(table.of_group("G")) == {}
    assert (table.query("HG", "T", 0), table.query("HG", "T", 1)) == (1, None)
    assert table.is_dirty


def test_delete_topic_affects_only_that_topic(table: ConsumerOffsetTable) -> None:
    for group, topic in (("G", "T"), ("H", "T"), ("G", "TT")):
        table.commit(group, topic, 0, 1)
    assert sorted(finish(table.of_topic("T"))) == ["G", "H"]
    finish(table.delete_topic("T"))
    assert finish(table.of_topic("T")) == {}
    assert list(finish(table.of_topic("TT"))) == ["G"]


def test_returned_offsets_are_a_copy(table: ConsumerOffsetTable) -> None:
    table.commit("G", "T", 0, 1)
    finish(table.of_group("G"))["T"][0] = 99
    assert table.query("G", "T", 0) == 1


def test_last_change_time_is_kept_until_offset_deletion(path: Path) -> None:
    clock = Clock()
    table = ConsumerOffsetTable(JsonTable(path), clock_ms=clock)
    assert table.changed_ms("G", "T", 0) == 0
    table.commit("G", "T", 0, 5)
    changed = clock.now_ms
    clock.now_ms += 1000
    table.commit("G", "T", 0, 5)
    assert table.changed_ms("G", "T", 0) == changed
    table.commit("G", "T", 0, 4)
    assert table.changed_ms("G", "T", 0) == changed + 1000
    assert table.changed_ms("G", "T", 1) == 0
    finish(table.delete_group("G"))
    assert table.changed_ms("G", "T", 0) == 0


@pytest.mark.parametrize("row", [{"0": 1e300}, {"0": 2**63}, {"0": -1e300}, {str(2**64): 1}])
def test_numbers_that_cannot_be_saved_are_refused(table: ConsumerOffsetTable, row: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="64"):
        finish(table.copy_from({"offsetTable": {"T@G": row}}))
    save(table)


def test_offset_committed_again_without_master_is_kept(table: ConsumerOffsetTable, path: Path) -> None:
    table.commit("G", "T", 0, 5)
    table.keeps_commits = True
    table.commit("G", "T", 0, 5)  # the client's first commit came before the slave noticed that its master is away
    finish(table.copy_from({"offsetTable": {"T@G": {"0": 3}}}))
    assert table.query("G", "T", 0) == 5
    save(table)
    assert list(table.take_kept()) == [("G", "T", 0, 5)]
    promoted = reopened(path)
    promoted.restrict(lambda topic, queue_id: 9)
    assert list(promoted.take_kept()) == []


def test_offsets_beyond_queue_end_are_lowered_and_reported(
    table: ConsumerOffsetTable, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for topic, queue_id, offset in (("T", 0, 10), ("T", 1, 11), ("GONE", 0, 5), ("GONE", 1, 0)):
        table.commit("G", topic, queue_id, offset)
    save(table)
    again = reopened(path)
    ends = {("T", 0): 10, ("T", 1): 7}
    assert again.restrict(lambda topic, queue_id: ends.get((topic, queue_id), 0)) == 2
    assert finish(again.of_group("G")) == {"T": {0: 10, 1: 7}, "GONE": {0: 0, 1: 0}}
    assert again.is_dirty
    assert "group=G topic=T queue=1 stored=11 end=7" in caplog.text
    assert again.restrict(lambda topic, queue_id: 100) == 0


def opened(path: Path, *, auto_create: bool = True, max_groups: int = 100) -> SubscriptionGroupTable:
    config = BrokerConfig(store=StoreConfig(root=path.parent), auto_create_group=auto_create, max_groups=max_groups)
    groups = SubscriptionGroupTable(JsonTable(path), config, clock_ms=lambda: 5, on_change=lambda: None)
    groups.load()
    return groups


@pytest.fixture
def groups(path: Path) -> SubscriptionGroupTable:
    return opened(path)


def test_use_creates_group_with_rocketmq_defaults(groups: SubscriptionGroupTable) -> None:
    """C.2 scenario 31."""
    assert groups.get("G") is None
    config = groups.get_or_create("G")
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
    assert groups.get("G") is config
    assert groups.is_dirty


def test_only_system_groups_are_created_without_auto_create(path: Path) -> None:
    groups = opened(path, auto_create=False)
    assert groups.get_or_create("G") is None
    assert groups.get_or_create("CID_RMQ_SYS_TRANS") is not None
    assert not list(groups.configs).count("G")


@pytest.mark.parametrize("group", ["TOOLS_CONSUMER", "CID_ONSAPI_PULL", "SELF_TEST_C_GROUP"])
def test_built_in_groups_exist(groups: SubscriptionGroupTable, group: str) -> None:
    assert groups.get(group) is not None
    assert not groups.is_dirty


def test_file_of_rocketmq_5_is_read(path: Path) -> None:
    entry = {"groupName": "G", "retryMaxTimes": 2, "consumeMessageOrderly": False, "attributes": {}}
    path.write_bytes(
        orjson.dumps({"dataVersion": {"counter": 14, "timestamp": 3}, "subscriptionGroupTable": {"G": entry}})
    )
    groups = opened(path)
    assert groups.get("G") == SubscriptionGroupConfig(group_name="G", retry_max_times=2)
    assert groups.data_version.counter == 14


def test_full_table_refuses_new_groups(path: Path) -> None:
    groups = opened(path, max_groups=len(list(opened(path).configs)) + 1)
    groups.get_or_create("G")
    for create in (groups.get_or_create, groups.check_new):
        with pytest.raises(RefusedError, match="H: the broker has 8 subscription groups and may have 8: "):
            create("H")
        create("G")
    assert groups.get("H") is None
