"""Consumer offsets: stored, queried, deleted with group or topic, lowered to the end of queues."""

from pathlib import Path

import pytest

from tests.unit.broker.recording import Clock
from triomq.broker.groups.consumer_offsets import ConsumerOffsetTable
from triomq.storage.files.json_table import JsonTable
from triomq.storage.reading.cold_read import finish


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "consumerOffset.json"


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


def test_a_lower_offset_replaces_a_higher_one(table: ConsumerOffsetTable) -> None:
    """C.2 scenario 30."""
    table.commit("G", "T", 0, 10)
    table.commit("G", "T", 0, 3)
    assert table.query("G", "T", 0) == 3


def test_offset_never_stored_is_none(table: ConsumerOffsetTable) -> None:
    table.commit("G", "T", 0, 10)
    assert table.query("G", "T", 1) is None
    assert table.query("G", "U", 0) is None
    assert table.query("H", "T", 0) is None


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
    assert table.query("HG", "T", 0) == 1
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
