"""The table of delay offsets, in RocketMQ's file."""

from pathlib import Path

import pytest

from triomq.broker.delayed.levels import DelayOffsetTable
from triomq.protocol.errors import StoreLayoutError
from triomq.storage.files.json_table import JsonTable


def table(tmp_path: Path) -> DelayOffsetTable:
    return DelayOffsetTable(JsonTable(tmp_path / "delayOffset.json"))


def test_a_level_without_entry_begins_at_0(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    offsets.load()
    assert offsets.get(7) == 0
    assert offsets.to_json() == {"offsetTable": {}}
    assert not offsets.is_dirty


def test_a_file_that_rocketmq_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / "delayOffset.json").write_bytes(b'{\n\t"offsetTable":{1:1,3:2\n\t}\n}')
    offsets = table(tmp_path)
    offsets.load()
    assert [offsets.get(level) for level in (1, 2, 3)] == [1, 0, 2]


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    offsets.set(1, 5)
    offsets.set(18, 2**40)
    assert offsets.is_dirty
    offsets.write(list(offsets.pieces()))
    again = table(tmp_path)
    again.load()
    assert again.to_json() == {"offsetTable": {1: 5, 18: 2**40}}


def test_only_changes_mark_dirty_and_unused_level_has_no_entry(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    offsets.set(1, 0)
    assert not offsets.is_dirty
    assert offsets.to_json() == {"offsetTable": {}}
    offsets.set(1, 1)
    offsets.is_dirty = False
    offsets.set(1, 1)
    assert not offsets.is_dirty


@pytest.mark.parametrize(
    "content", [b"[1]", b'{"offsetTable":[1]}', b'{"offsetTable":{"x":1}}', b'{"offsetTable":{1:{}}}']
)
def test_something_else_than_offsets_stops_the_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "delayOffset.json").write_bytes(content)
    with pytest.raises(StoreLayoutError, match=r"delayOffset\.json"):
        table(tmp_path).load()


def test_a_negative_offset_counts_as_the_begin(tmp_path: Path) -> None:
    (tmp_path / "delayOffset.json").write_bytes(b'{"offsetTable":{1:-4}}')
    offsets = table(tmp_path)
    offsets.load()
    assert offsets.get(1) == 0


def test_offsets_behind_the_end_of_their_level_are_taken_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offsets = table(tmp_path)
    offsets.set(1, 5)
    offsets.set(2, 5)
    offsets.is_dirty = False
    assert offsets.restrict(lambda topic, queue_id: {("SCHEDULE_TOPIC_XXXX", 0): 5}.get((topic, queue_id), 3)) == 1
    assert (offsets.get(1), offsets.get(2)) == (5, 3)
    assert offsets.is_dirty
    assert "level=2 stored=5 end=3" in caplog.text
