"""Members that send no heartbeats."""

from tests.unit.broker.processors.test_client import heartbeat
from tests.unit.broker.recording import Clock, Peer
from triomq.broker.server import Broker


def test_silent_producers_are_removed(broker: Broker, peer: Peer, another_peer: Peer, clock: Clock) -> None:
    for each in (peer, another_peer):
        heartbeat(each, each.peer, producers=("P",))
        clock.now_ms += 1
    clock.now_ms += round(broker.config.client_timeout_s * 1000) - 1
    broker.housekeeping.remove_silent_members()
    members = broker.groups.producers.get("P")
    assert members is not None
    assert list(members) == [another_peer.as_connection]
