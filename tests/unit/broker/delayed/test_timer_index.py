import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.broker.delayed import timer_index
from triomq.broker.delayed.timer_index import MAX_TIME_MS, TimerIndex, TimerProgress
from triomq.storage.files.json_table import JsonTable
from triomq.storage.reading.cold_read import finish


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_index, "_RUN_LENGTH", 8)
    monkeypatch.setattr(timer_index, "_MIN_FREED", 2)


STEPS = st.lists(st.one_of(st.tuples(st.integers(0, 30), st.integers(1, 5)), st.integers(0, 30)), max_size=120)


@given(STEPS)
def test_messages_are_taken_by_time_then_queue_offset(steps: list[tuple[int, int] | int]) -> None:
    index, waiting, next_offset = TimerIndex(), [], 5
    for step in steps:
        if isinstance(step, tuple):
            time_ms, distance = step
            next_offset += distance
            index.add(time_ms, next_offset)
            waiting.append((time_ms, next_offset))
        else:
            due = sorted(each for each in waiting if each[0] <= step)[:3]
            assert index.take(step, 3) == due
            waiting = [each for each in waiting if each not in due]
        assert len(index) == len(waiting)
        assert index.next_time() == min((each[0] for each in waiting), default=None)
        first = index.first_offset()
        if waiting:
            least = min(each[1] for each in waiting)
            assert first is not None
            assert least - 8 < first <= least
        else:
            assert first is None
    assert index.take(30, 1000) == sorted(waiting)


def test_times_are_clamped_to_the_range() -> None:
    index = TimerIndex()
    index.add(-5, 1)
    index.add(10**18, 2)
    assert index.take(10**18, 9) == [(0, 1), (MAX_TIME_MS, 2)]


def test_taken_entries_free_memory_before_run_ends() -> None:
    index = TimerIndex()
    for queue_offset in range(80):
        index.add(random.randrange(100), queue_offset)
    index.take(100, 60)
    held = sum(len(run._entries) for _, _, run in index._runs)
    assert held <= 2 * 20


def test_timer_progress_never_goes_back(tmp_path: Path) -> None:
    progress = TimerProgress(JsonTable(tmp_path / "timerProgress.json"), lambda: 3)
    assert (progress.done, progress.first_offset) == ((-1, -1), 0)
    progress.set([(17, 4)])
    progress.is_dirty = False
    progress.set([(17, 3)])
    assert (progress.done, progress.is_dirty) == ((17, 4), False)


@pytest.mark.parametrize("wrong", [{"queueOffset": 1e300}, {"firstOffset": "x"}, {"earlier": [[2**64, 1, 1]]}])
def test_progress_that_cannot_be_saved_is_not_taken(tmp_path: Path, wrong: dict[str, Any]) -> None:
    progress = TimerProgress(JsonTable(tmp_path / "timerProgress.json"), lambda: 3)
    progress.set([(7, 8)])
    before = list(progress.pieces())
    with pytest.raises((TypeError, ValueError)):
        finish(progress.copy_from({"timeMs": 1, "queueOffset": 2, "firstOffset": 3} | wrong))
    assert list(progress.pieces()) == before
