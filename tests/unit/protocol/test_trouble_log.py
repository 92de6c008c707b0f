import logging

import pytest

from triomq.protocol.trouble_log import TroubleLog


def test_a_trouble_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    troubles = TroubleLog(logging.getLogger("triomq.test"))
    troubles.end("a", "a works again")
    for _ in range(2):
        for _ in range(3):
            troubles.begin("a", "a fails error=%s", "no")
        troubles.begin("b", "b fails")
        troubles.end("a", "a works again")
    assert caplog.messages == ["a fails error=no", "b fails", "a works again", "a fails error=no", "a works again"]
