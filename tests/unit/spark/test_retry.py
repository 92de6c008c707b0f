import pytest

from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ConnectError,
    DataLossError,
    NoPermissionError,
    RequestTimeoutError,
    SystemBusyError,
)
from triomq.spark import connections
from triomq.spark.connections import Retry, is_busy

LOST = ConnectError("127.0.0.1:1 refused")


class Clock:
    """Takes the place of ``time``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    replaced = Clock()
    monkeypatch.setattr(connections, "time", replaced)
    return replaced


def reading(limit_s: float) -> Retry:
    return Retry(limit_s, "reading X (option 'y')")


def fail_for_ever(retrying: Retry) -> None:
    while True:
        retrying.failed(LOST)


def test_pauses_grow_until_the_time_is_over(clock: Clock) -> None:
    retrying = reading(10)
    with pytest.raises(
        RequestTimeoutError, match=r"reading X \(option 'y'\): given up after .*127\.0\.0\.1:1"
    ) as caught:
        fail_for_ever(retrying)
    assert caught.value.__cause__ is LOST
    assert clock.pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert 7 < clock.now <= 10


def test_the_try_itself_counts(clock: Clock) -> None:
    with pytest.raises(RequestTimeoutError):
        reading(5).failed(LOST, took_s=5)
    assert clock.pauses == []


def test_no_attempt_starts_too_late(clock: Clock) -> None:
    retrying = reading(30)

    def connect_for_ever() -> None:
        while True:
            clock.now += 5  # as long as a connection may take
            retrying.failed(LOST, took_s=5)

    with pytest.raises(RequestTimeoutError, match="given up after"):
        connect_for_ever()
    assert 20 < clock.now <= 30


def test_a_success_begins_anew(clock: Clock) -> None:
    retrying = reading(1)
    for _ in range(10):
        retrying.failed(LOST)
        retrying.success()
    assert clock.pauses == [0.1] * 10


def test_busy_broker_sets_least_pause(clock: Clock) -> None:
    retrying = reading(10)
    for after_s in (0.7, 0.01, None):
        retrying.failed(SystemBusyError(int(ResponseCode.SYSTEM_BUSY), "", "", after_s))
    assert clock.pauses == [0.7, 0.2, 0.4]


def test_lasting_error_is_raised_at_once(clock: Clock) -> None:
    error = NoPermissionError(int(ResponseCode.NO_PERMISSION), "no")
    with pytest.raises(NoPermissionError):
        reading(100).failed(error)
    assert clock.pauses == []


def test_answers_of_busy_brokers_are_retriable() -> None:
    busy = BrokerResponseError.from_response(int(ResponseCode.SYSTEM_BUSY), "")
    assert (is_busy(busy), busy.is_retriable) == (True, True)
    assert (is_busy(LOST), LOST.is_retriable) == (False, True)
    assert not DataLossError("gone").is_retriable
    assert not BrokerResponseError.from_response(1, "system error").is_retriable
