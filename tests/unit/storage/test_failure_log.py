"""A failure that repeats is logged once, until a success."""

import logging

import pytest

from triomq.storage.failure_log import FailureLog


def test_a_failure_is_logged_once_until_a_success(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(logging.getLogger("triomq.test"), "cannot write %s", logging.WARNING)
    for name in ("a", "b"):
        log.failed(name)
    log.worked()
    log.failed("c")
    assert [(each.levelno, each.message) for each in caplog.records] == [
        (logging.WARNING, "cannot write a"),
        (logging.WARNING, "cannot write c"),
    ]
