"""Silent members are removed; the exposure of the server is logged every hour."""

import pytest
import trio
from trio.testing import MockClock

from tests.unit.broker.processors.test_client import heartbeat
from tests.unit.broker.recording import Clock, Peer
from triomq.broker.server import Broker
from triomq.broker.services.housekeeping import log_exposure


def test_silent_producers_are_removed(broker: Broker, peer: Peer, another_peer: Peer, clock: Clock) -> None:
    for each in (peer, another_peer):
        heartbeat(each, each.peer, producers=("P",))
        clock.now_ms += 1
    clock.now_ms += round(broker.config.client_timeout_s * 1000) - 1
    broker.housekeeping.remove_silent_members()
    members = broker.groups.producers.get("P")
    assert members is not None
    assert list(members) == [another_peer.as_connection]


async def test_exposure_is_logged_every_hour(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    await log_exposure("")
    with trio.move_on_after(2 * 3600 + 1):
        await log_exposure("routes at 0.0.0.0:9876")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["open to everybody who reaches it, without an account (--insecure): routes at 0.0.0.0:9876"] * 3
