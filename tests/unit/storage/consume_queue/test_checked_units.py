"""Ranges of units that need no second look."""

from hypothesis import given
from hypothesis import strategies as st

from triomq.storage.consume_queue.consume_queue import CheckedUnits

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda r: (r[0], sum(r))), max_size=30)


@given(RANGES)
def test_nothing_is_covered_that_was_not_added(ranges: list[tuple[int, int]]) -> None:
    checked = CheckedUnits()
    added: set[int] = set()
    for begin, end in ranges:
        checked.add(begin, end)
        added.update(range(begin, end))
        assert checked.covers(begin, end)
    assert all(unit in added for unit in range(80) if checked.covers(unit, unit + 1))


def test_one_reader_after_the_other_makes_one_range() -> None:
    checked = CheckedUnits()
    for begin in range(0, 320, 32):
        checked.add(begin, begin + 32)
    checked.add(352, 384)
    assert checked.covers(0, 320)
    assert not checked.covers(0, 321)
    checked.add(320, 352)
    assert checked.covers(0, 384)


def test_of_too_many_ranges_shortest_old_one_goes() -> None:
    checked = CheckedUnits()
    for begin, count in ((0, 10), (100, 3), (200, 20), (300, 5), (400, 1)):
        checked.add(begin, begin + count)
    assert [checked.covers(begin, begin + 1) for begin in (0, 100, 200, 300, 400)] == [True, False, True, True, True]


def test_cleared_ranges_cover_nothing() -> None:
    checked = CheckedUnits()
    checked.add(0, 10)
    checked.clear()
    assert not checked.covers(0, 1)
