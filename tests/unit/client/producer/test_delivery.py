import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.producer.config import ProducerConfig
from triomq.client.producer.delivery import Attempts, LatencyFaults, next_try
from triomq.protocol.errors import (
    BrokerResponseError,
    ConnectError,
    ConnectionLostError,
    NoPermissionError,
    RequestTimeoutError,
    TriomqError,
)

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


BUSY = BrokerResponseError.from_response(2, "busy")
BUSY_FOR_1S = BrokerResponseError.from_response(2, "busy", ext_fields={"retryAfterMs": "1000"})
FAILED, REFUSED = BrokerResponseError.from_response(1, ""), BrokerResponseError.from_response(13, "")
DENIED_FOR_1S = NoPermissionError(16, "", "", 1.0)
UNREACHED, LOST, LATE = ConnectError(""), ConnectionLostError(""), RequestTimeoutError("")
ONE, THREE = Attempts(("a",), 1), Attempts(("a", "b", "a"), 3)
NOT_REACHED = Attempts(("a", "a"), 0, 2)


@pytest.mark.parametrize(
    ("error", "attempts", "left_s", "has_other", "is_chosen", "pause_s"),
    [
        (FAILED, ONE, 2.0, False, False, 0.0),
        (FAILED, THREE, 2.0, True, False, None),
        (FAILED, ONE, 2.0, False, True, None),
        (FAILED, ONE, 0.0, True, False, None),
        (REFUSED, ONE, 2.0, True, False, None),
        (DENIED_FOR_1S, THREE, 2.0, True, False, 1.0),
        (BUSY, ONE, 2.9, True, False, 0.0),
        (BUSY, ONE, 2.95, False, False, 0.1),
        (BUSY, ONE, 2.8, False, True, pytest.approx(0.2)),
        (BUSY, THREE, 1.0, True, False, 0.5),
        (BUSY, THREE, 0.7, True, False, None),
        (BUSY_FOR_1S, THREE, 1.3, True, True, 1.0),
        (BUSY_FOR_1S, THREE, 1.2, True, False, None),
        (UNREACHED, NOT_REACHED, 2.0, True, False, 0.0),
        (UNREACHED, NOT_REACHED, 2.0, False, True, 0.2),
        (UNREACHED, Attempts(("a",) * 9, 0, 9), 2.0, False, False, 0.5),
        (UNREACHED, NOT_REACHED, 0.3, False, False, pytest.approx(0.1)),
        (UNREACHED, NOT_REACHED, 0.2, False, False, None),
        (LOST, THREE, 2.0, True, False, 0.0),
        (LOST, ONE, 2.0, False, False, 0.1),
        (LATE, Attempts(("a", "a"), 2), 0.05, False, False, 0.05),
        (LATE, THREE, 2.0, False, False, None),
        (LATE, ONE, 2.0, False, True, None),
    ],
)
def test_a_failed_attempt_is_repeated_after(  # a table
    error: TriomqError, attempts: Attempts, left_s: float, has_other: bool, is_chosen: bool, pause_s: float | None
) -> None:
    retry = next_try(error, attempts, left_s, ProducerConfig(), has_other=has_other, is_chosen=is_chosen)
    assert (None if retry is None else retry.pause_s) == pause_s


@pytest.mark.parametrize("error", [BUSY, BUSY_FOR_1S, UNREACHED])
def test_settings_forbid_waiting(error: TriomqError) -> None:
    settings = ProducerConfig(on_busy="raise", retries=0)
    assert next_try(error, ONE, 2.0, settings, has_other=False, is_chosen=False) is None


def test_waiting_for_busy_brokers_renews_the_attempts() -> None:
    retry = next_try(BUSY, THREE, 2.0, ProducerConfig(), has_other=True, is_chosen=False, spread=1.2)
    assert retry is not None
    assert retry.pause_s == pytest.approx(0.6)
    assert retry.attempts == Attempts(("a",), 1)


@given(st.lists(st.sampled_from([UNREACHED, LOST, None]), max_size=9))
def test_attempts_without_connection_are_counted_apart(errors: list[TriomqError | None]) -> None:
    attempts = Attempts()
    for error in errors:
        attempts = attempts.add("a", error)
    assert attempts.unreached == errors.count(UNREACHED)
    assert len(attempts.brokers) == attempts.reached + attempts.unreached == len(errors)
