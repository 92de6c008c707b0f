import logging

import pytest

from triomq.broker.services.clock_watch import ClockWatch

HOUR_MS = 3_600_000


@pytest.mark.parametrize("jump_ms", [-24 * HOUR_MS, -999, 999, 1000, 24 * HOUR_MS])
def test_jump_of_a_second_is_noticed_once(jump_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    wall_ms, passed_ms = [1_800_000_000_000], [5000]
    watch = ClockWatch(lambda: wall_ms[0], lambda: passed_ms[0])
    for _ in range(3):
        wall_ms[0] += HOUR_MS
        passed_ms[0] += HOUR_MS
        watch.check()
    assert not caplog.records
    even_ms = watch.even_ms()
    wall_ms[0] += jump_ms
    watch.check()
    watch.check()
    assert watch.even_ms() == even_ms
    is_noticed = abs(jump_ms) >= 1000
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * is_noticed
    assert watch.jump_ms == (jump_ms if is_noticed else 0)
    assert watch.jump_age_ms == (0 if is_noticed else 3 * HOUR_MS)
    assert watch.is_trusted == (jump_ms < 1000)
    passed_ms[0] += HOUR_MS
    assert watch.is_trusted


def test_future_message_at_the_start_is_a_jump(caplog: pytest.LogCaptureFixture) -> None:
    watch = ClockWatch(lambda: 10_000, lambda: 0)
    watch.begin(10_999)
    assert not caplog.records
    watch.begin(70_000)
    assert watch.jump_ms == -60_000
    assert "wall clock jumped seconds=-60.0" in caplog.text
