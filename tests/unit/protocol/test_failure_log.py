import logging

import pytest

from triomq.protocol.failure_log import FailureLog


@pytest.fixture
def log() -> FailureLog:
    return FailureLog(logging.getLogger("triomq.test"), "cannot write %s", logging.WARNING, recovery="can write %s")


def test_failure_is_logged_once_until_a_success(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    log.worked("a")
    for _ in range(2):
        for name in ("a", "b"):
            log.failed(name)
        log.worked("c")
    assert caplog.messages == ["cannot write a", "can write c"] * 2
    assert {each.levelno for each in caplog.records} == {logging.WARNING}


def test_keys_fail_independently(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        for name in ("a", "b"):
            log.failed(name, key=name)
    log.worked("a", key="a")
    log.failed("b", key="b")
    assert caplog.messages == ["cannot write a", "cannot write b", "can write a"]


def test_another_cause_is_logged(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for cause in ("x", "x", "y"):
        log.failed(cause, cause=cause, level=logging.INFO if cause == "x" else None)
    assert [(each.levelno, each.message) for each in caplog.records] == [
        (logging.INFO, "cannot write x"),
        (logging.WARNING, "cannot write y"),
    ]


def test_it_forgets_the_oldest_of_very_many_keys(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    for key in (*range(1001), 1000, 0):
        log.failed(key, key=key)
    assert caplog.messages[-2:] == ["cannot write 1000", "cannot write 0"]


def test_a_lasting_failure_is_counted_once_a_minute_whatever_its_causes(
    log: FailureLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(150):
        monkeypatch.setattr("triomq.protocol.failure_log.monotonic", lambda now=second: now)
        log.failed(second, cause="one" if second < 60 else str(second))
    assert caplog.messages == [
        "cannot write 0",
        "cannot write 60",
        "cannot write 61",
        "cannot write 121 (and 118 more like this)",
    ]
