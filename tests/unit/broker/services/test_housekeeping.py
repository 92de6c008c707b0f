"""Silent members are removed; the exposure of the server is logged every hour; a wall clock that is set is noticed."""

import logging

import pytest
import trio
from trio.testing import MockClock

from tests.unit.broker.processors.test_client import heartbeat
from tests.unit.broker.recording import Clock, Peer
from triomq.broker.server import Broker
from triomq.broker.services.housekeeping import ClockWatch, log_exposure


def test_silent_producers_are_removed(broker: Broker, peer: Peer, another_peer: Peer, clock: Clock) -> None:
    for each in (peer, another_peer):
        heartbeat(each, each.peer, producers=("P",))
        clock.now_ms += 1
    clock.now_ms += round(broker.config.client_timeout_s * 1000) - 1
    broker.housekeeping.remove_silent_members()
    members = broker.groups.producers.groups.get("P")
    assert members is not None
    assert list(members) == [another_peer.as_connection]


async def test_exposure_is_logged_every_hour(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    await log_exposure("")
    with trio.move_on_after(2 * 3600 + 1):
        await log_exposure("routes at 0.0.0.0:9876")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["open to everybody who reaches it, without an account (--insecure): routes at 0.0.0.0:9876"] * 3


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
