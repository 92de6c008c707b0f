import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.producer.latency_faults import LatencyFaults

NAMES = ("a", "b", "c", "d", "e")
names = st.sampled_from(NAMES)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("answered"), names, st.floats(0, 40)),
        st.tuples(st.just("passed"), st.just(""), st.floats(0, 700)),
    )
)


def avoided_s(latency_s: float) -> float:
    """The table of RocketMQ."""
    limits, durations = (0.55, 1.0, 2.0, 3.0, 15.0), (0, 30, 60, 120, 180, 600)
    return durations[sum(latency_s >= limit for limit in limits)]


@given(steps, st.sets(names, min_size=1))
def test_slow_brokers_are_avoided_as_long_as_there_are_others(
    steps: list[tuple[str, str, float]], asked: set[str]
) -> None:
    now = 0.0
    faults = LatencyFaults(lambda: now)
    model: dict[str, tuple[float, float]] = {}
    for step, name, value in steps:
        if step == "passed":
            now += value
        else:
            faults.answered(name, value)
            model[name] = value, now + avoided_s(value)
    quick = {name for name in asked if model.get(name, (0, 0.0))[1] <= now}

    preferred = set(faults.prefer(asked))

    if quick:
        assert preferred == quick
    else:
        rest = asked - preferred
        assert len(preferred) - len(rest) in {0, 1}
        assert max(model[name][0] for name in preferred) <= min((model[name][0] for name in rest), default=1000)


@pytest.mark.parametrize(
    ("latency_s", "seconds"), [(0.55, 30), (0.999, 30), (1, 60), (2, 120), (3, 180), (14.9, 180), (15, 600)]
)
def test_slower_answers_count_for_longer(latency_s: float, seconds: float) -> None:
    now = 0.0
    faults = LatencyFaults(lambda: now)
    faults.answered("a", latency_s)
    now = seconds - 0.1
    assert set(faults.prefer({"a", "b"})) == {"b"}
    now = float(seconds)
    assert set(faults.prefer({"a", "b"})) == {"a", "b"}
    assert not faults.slow
