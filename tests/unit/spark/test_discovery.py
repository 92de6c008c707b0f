"""Scenario 4 of spark.md 6: the first message at a time or later."""

from hypothesis import given
from hypothesis import strategies as st

from triomq.spark.discovery import first_at_or_after

TIMES = st.lists(st.integers(0, 30), min_size=1, max_size=80).map(sorted)


@given(TIMES, st.integers(0, 50), st.integers(-5, 200), st.integers(-1, 32))
def test_the_first_message_at_a_time_is_found_from_any_hint(times: list[int], low: int, hint: int, wanted: int) -> None:
    high = low + len(times)
    expected = next((low + index for index, time in enumerate(times) if time >= wanted), high)
    assert first_at_or_after(lambda queue_offset: times[queue_offset - low], hint, low, high, wanted) == expected


def test_a_hint_that_is_near_costs_few_questions() -> None:
    asked = []

    def store_time(queue_offset: int) -> int:
        asked.append(queue_offset)
        return queue_offset // 2

    assert first_at_or_after(store_time, 1001, 0, 1_000_000, 500) == 1000
    assert len(asked) <= 4
