import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.cli.histogram import Histogram


def test_an_empty_histogram_has_no_percentiles() -> None:
    assert Histogram().percentile_s(50) is None
    assert Histogram().percentile_ms(99) is None


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=200), st.sampled_from([1.0, 50.0, 90.0, 99.0, 100.0]))
def test_percentile_is_at_most_2_3_percent_above_the_exact_one(durations: list[float], percent: float) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    exact = sorted(durations)[max(0, -int(-len(durations) * percent // 100) - 1)]
    found = histogram.percentile_s(percent)
    assert found is not None
    assert exact * (1 - 1e-9) <= found <= exact * 1.023
    assert histogram.longest_s == max(durations)


def test_a_duration_may_count_many_times() -> None:
    histogram = Histogram()
    histogram.add(0.001, 99)
    histogram.add(1.0)
    assert histogram.count == 100
    assert histogram.percentile_ms(99) == pytest.approx(1, rel=0.023)
    assert histogram.percentile_ms(100) == 1000
