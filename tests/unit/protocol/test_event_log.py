import logging

import pytest

from triomq.protocol.event_log import EventLog


@pytest.fixture
def log() -> EventLog:
    return EventLog(logging.getLogger("triomq.test"), "cannot write %s", logging.WARNING, recovery="can write %s")


def test_failure_is_logged_once_until_a_success(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    log.ended("a")
    for _ in range(2):
        for name in ("a", "b"):
            log.occurred(name)
        log.ended("c")
    assert caplog.messages == ["cannot write a", "can write c"] * 2
    assert {each.levelno for each in caplog.records} == {logging.WARNING}


def test_keys_fail_independently(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        for name in ("a", "b"):
            log.occurred(name, key=name)
    log.ended("a", key="a")
    log.occurred("b", key="b")
    assert caplog.messages == ["cannot write a", "cannot write b", "can write a"]


def test_another_cause_is_logged(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for cause in ("x", "x", "y"):
        log.occurred(cause, cause=cause, level=logging.INFO if cause == "x" else None)
    assert [(each.levelno, each.message) for each in caplog.records] == [
        (logging.INFO, "cannot write x"),
        (logging.WARNING, "cannot write y"),
    ]


def test_it_forgets_the_oldest_of_very_many_keys(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    for key in (*range(1001), 1000, 0):
        log.occurred(key, key=key)
    assert caplog.messages[-2:] == ["cannot write 1000", "cannot write 0"]


def test_lasting_failure_counted_once_minute_whatever_causes(
    log: EventLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(150):
        monkeypatch.setattr("triomq.protocol.event_log.monotonic", lambda now=second: now)
        log.occurred(second, cause="one" if second < 60 else str(second))
    assert caplog.messages == [
        "cannot write 0",
        "cannot write 60",
        "cannot write 61",
        "cannot write 121 (and 118 more like this)",
    ]
