"""The table of topics: system topics, creation by sending, changes, saving."""

from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from triomq.broker.config import BrokerConfig
from triomq.broker.topics import TopicTable
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.errors import IllegalNameError, RefusedError
from triomq.storage.config import StoreConfig
from triomq.storage.files.json_table import JsonTable

NOW_MS = 1_795_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "topics.json"


def opened(path: Path, **settings: Any) -> TopicTable:
    on_change = settings.pop("on_change", lambda: None)
    config = BrokerConfig(store=StoreConfig(root=path.parent), cluster_name="C", broker_name="B", **settings)
    table = TopicTable(JsonTable(path), config, clock_ms=lambda: NOW_MS, on_change=on_change, random=Random(1))
    table.load()
    return table


@pytest.fixture
def table(path: Path) -> TopicTable:
    return opened(path)


@pytest.mark.parametrize(
    ("topic", "queues", "perm"),
    [
        ("TBW102", 8, 7),
        ("SELF_TEST_TOPIC", 1, 6),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("BenchmarkTest", 1024, 6),
        ("C", 16, 7),
        ("B", 1, 7),
        ("SCHEDULE_TOPIC_XXXX", 18, 6),
        ("C_REPLY_TOPIC", 1, 6),
        ("RMQ_SYS_TRACE_TOPIC", 1, 6),
    ],
)
def test_the_system_topics_are_rocketmqs(table: TopicTable, topic: str, queues: int, perm: int) -> None:
    config = table.get(topic)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (queues, queues, perm)
    assert topic in table.system_topics


@pytest.mark.parametrize(("asked", "given"), [(100, 8), (8, 8), (4, 4), (0, 0), (-5, 0)])
def test_template_limits_number_of_queues(table: TopicTable, asked: int, given: int) -> None:
    config = table.create_by_sending("T", "TBW102", asked)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (given, given, 6)
    assert table.get("T") == config


@pytest.mark.parametrize("template", ["SELF_TEST_TOPIC", "no such topic"])
def test_template_without_inherit_permission_creates_no_topic(table: TopicTable, template: str) -> None:
    assert table.create_by_sending("T", template, 4) is None
    assert table.get("T") is None


def test_without_automatic_creation_there_is_no_template(path: Path, table: TopicTable) -> None:
    """C.2 scenario 2; a saved one is removed."""
    table.write(list(table.pieces()))
    table = opened(path, auto_create_topic=False)
    assert table.get("TBW102") is None
    assert table.create_by_sending("T", "TBW102", 4) is None


def test_send_creates_retry_topic_without_auto_create(path: Path) -> None:
    config = opened(path, auto_create_topic=False).create_by_sending("%RETRY%G", "TBW102", 4)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


@pytest.mark.parametrize("name", ["", "   ", "a b", "ü", "a/b", "../T", "T" * 128, "T\0"])
def test_an_illegal_name_creates_nothing(table: TopicTable, name: str) -> None:
    """C.2 scenario 4."""
    before = list(table.configs)
    with pytest.raises(IllegalNameError):
        table.create_by_sending(name, "TBW102", 4)
    assert list(table.configs) == before


def test_every_change_raises_data_version_and_requests_save(table: TopicTable) -> None:
    counters = [table.data_version.counter]
    for change in (
        lambda: table.put(TopicConfig(topic_name="T")),
        lambda: table.ensure("U", 1),
        lambda: table.delete("T"),
    ):
        table.is_dirty = False
        change()
        assert table.is_dirty
        counters.append(table.data_version.counter)
    assert counters == list(range(counters[0], counters[0] + 4))
    assert table.data_version.timestamp == NOW_MS


def test_what_changes_nothing_leaves_the_data_version(table: TopicTable) -> None:
    table.ensure("T", 3)
    table.is_dirty = False
    version = table.data_version
    assert table.ensure("T", 5).read_queue_nums == 3
    assert not table.delete("no such topic")
    assert table.data_version == version
    assert not table.is_dirty


def test_rocketmqs_file_is_read(path: Path) -> None:
    entry = (
        '{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T","topicSysFlag":0,"writeQueueNums":4}'
    )
    path.write_text(
        f'{{"dataVersion":{{"counter":24,"timestamp":17}},"topicConfigTable":{{"T":{entry}}}}}', encoding="ascii"
    )
    table = opened(path)
    assert table.get("T") == TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, perm=6)
    assert (table.data_version.counter, table.data_version.timestamp) == (24, 17)


def test_missing_system_topic_is_saved_again(path: Path, table: TopicTable) -> None:
    """With the next topic that it deletes, RocketMQ deletes the queues of those that its file does not name."""
    assert table.is_dirty
    saved = table.to_json()
    path.write_bytes(orjson.dumps(saved))
    assert not opened(path).is_dirty
    del saved["topicConfigTable"]["rmq_sys_wheel_timer"]
    path.write_bytes(orjson.dumps(saved))
    again = opened(path)
    assert again.is_dirty
    assert b"rmq_sys_wheel_timer" in b"".join(again.pieces())
    assert again.data_version == table.data_version


def test_topics_with_data_but_no_configuration_are_adopted(table: TopicTable) -> None:
    table.adopt([("lost", 0), ("lost", 2), ("TBW102", 9), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)])
    lost = table.get("lost")
    assert lost is not None
    assert (lost.read_queue_nums, lost.write_queue_nums, lost.perm) == (3, 3, 6)
    template = table.get("TBW102")
    assert template is not None
    assert template.read_queue_nums == 8
    assert table.get("RMQ_SYS_TRANS_OP_HALF_TOPIC") is None


def test_full_table_accepts_only_topics_of_broker(path: Path) -> None:
    table = opened(path, max_topics=len(opened(path).configs) + 1)
    assert table.create_by_sending("T", "TBW102", 4) is not None
    for topic in ("U", "%RETRY%nobody"):
        with pytest.raises(RefusedError, match=r"the broker has \d+ topics and may have \d+: .* raise max_topics"):
            table.create_by_sending(topic, "TBW102", 4)
    with pytest.raises(RefusedError):
        table.check_room("U")
    table.check_room("T")  # it may be changed
    assert table.ensure("%RETRY%G", 1).topic_name == "%RETRY%G"
