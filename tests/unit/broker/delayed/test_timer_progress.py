from pathlib import Path

import pytest

from triomq.broker.delayed.timer_index import TimerProgress
from triomq.protocol.errors import StoreLayoutError
from triomq.storage.files.json_table import JsonTable


def progress(path: Path, first_offset: int = 3) -> TimerProgress:
    made = TimerProgress(JsonTable(path / "timerProgress.json"), lambda: first_offset)
    made.load()
    return made


def test_a_new_one_has_delivered_nothing(tmp_path: Path) -> None:
    new = progress(tmp_path)
    assert (new.done, new.first_offset, new.is_dirty) == ((-1, -1), 0, False)


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    before = progress(tmp_path)
    before.set([(17, 4)])
    assert before.is_dirty
    before.write(list(before.pieces()))
    after = progress(tmp_path)
    assert (after.done, after.first_offset, after.is_dirty) == ((17, 4), 3, False)


def test_it_never_goes_back(tmp_path: Path) -> None:
    ours = progress(tmp_path)
    ours.set([(17, 4)])
    ours.is_dirty = False
    ours.set([(17, 3)])
    assert (ours.done, ours.is_dirty) == ((17, 4), False)


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"timeMs":1,"queueOffset":"x","firstOffset":2}', b"{"])
def test_a_file_that_holds_something_else_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "timerProgress.json").write_bytes(content)
    with pytest.raises(StoreLayoutError, match=r"timerProgress\.json"):
        progress(tmp_path)
