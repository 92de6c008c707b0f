"""Connections leave the store the open files that it needs."""

import resource

import pytest

from tests.unit.broker.recording import MakeBroker
from triomq.broker.limits.peers import TLS_SESSION_BYTES
from triomq.broker.server import Broker
from triomq.storage.files.mapped_file import MIN_MAPPED_FILES


def limit_open_files(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))


def admitted(broker: Broker, tries: int, host: str = "127.0.0.1", *, is_namesrv: bool = False) -> int:
    """Try so many connections, and return how many are accepted."""
    limits, is_local = broker.context.connection_limits, host.startswith("127.")
    return sum(limits.admits(host, is_local=is_local, is_namesrv=is_namesrv) for _ in range(tries))


@pytest.mark.parametrize(("limit", "connections"), [(512, 192), (256, 128), (128, 64)])
def test_connections_leave_file_descriptors_for_the_store(
    make_broker: MakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: int,
    connections: int,
) -> None:
    limit_open_files(monkeypatch, limit)
    broker = make_broker()
    assert admitted(broker, 300) + admitted(broker, 300, "127.0.0.2", is_namesrv=True) == connections
    assert "max_connections_per_address" in caplog.messages[0]
    assert f"{connections} of at most {connections}" in caplog.messages[1]
    assert "ulimit -n" in caplog.messages[1]


def test_files_of_the_commit_log_reduce_connections(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    log = broker.store.commit_log
    for _ in range(3):
        log.files.create_next(0)
    limit_open_files(monkeypatch, broker.store.queues.pool.limit + 64 + 100)
    assert admitted(broker, 200) + admitted(broker, 200, "127.0.0.2", is_namesrv=True) == 94


def test_only_the_setting_limits_with_many_files(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_open_files(monkeypatch, resource.RLIM_INFINITY)
    assert admitted(make_broker(max_connections=5), 10) == 5
    limit_open_files(monkeypatch, 500_000)
    assert admitted(make_broker(max_connections=7), 10) == 7


def test_no_address_or_kind_of_port_takes_all(make_broker: MakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker = make_broker(max_connections=320)
    remote = [f"192.0.2.{number}" for number in range(4)]
    assert [admitted(broker, 300, host) for host in remote] == [160, 110, 0, 0]  # the rest is for other ports, and here
    assert admitted(broker, 300, remote[2], is_namesrv=True) == 40
    assert admitted(broker, 300, "127.0.0.2") == 10
    assert admitted(broker, 300, "127.0.0.1") == 0
    broker.context.connection_limits.all.leave(remote[0])
    assert admitted(broker, 2, "127.0.0.1") == 1
    assert broker.statistics.refused_connections > 1000
    assert len(caplog.records) == 2  # of each kind one


def test_local_address_leaves_some_to_other_addresses(make_broker: MakeBroker) -> None:
    broker = make_broker(max_connections=320)
    assert admitted(broker, 300, "127.0.0.2") == 270
    assert admitted(broker, 300, "127.0.0.2", is_namesrv=True) == 0
    assert admitted(broker, 300, "127.0.0.1") == 10
    assert admitted(broker, 300, "127.0.0.1", is_namesrv=True) == 40


def test_without_local_peers_none_is_kept_for_them(make_broker: MakeBroker) -> None:
    limits = make_broker(max_connections=320, local_peers=False).context.connection_limits
    hosts = ("192.0.2.1", "192.0.2.2", "127.0.0.1")
    taken = [sum(limits.admits(host, is_local=False, is_namesrv=False) for _ in range(300)) for host in hosts]
    assert taken == [160, 120, 0]
    assert sum(limits.admits("127.0.0.1", is_local=False, is_namesrv=True) for _ in range(300)) == 40


def test_setting_limits_connections_of_an_address(make_broker: MakeBroker) -> None:
    broker = make_broker(max_connections_per_address=3)
    assert admitted(broker, 5, "192.0.2.1") == 3
    assert admitted(broker, 5) == 5


def test_ipv6_network_of_64_bits_is_one_address(make_broker: MakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker = make_broker(max_connections_per_address=3, memory_budget_bytes=1024**2)
    limits = broker.context.connection_limits
    hosts = [f"2001:db8::{number:x}:1" for number in range(30)]
    assert sum(admitted(broker, 1, host) for host in hosts) == 3
    assert "from 2001:db8::/64: 3 of at most 3" in caplog.text
    assert admitted(broker, 5, "2001:db8:0:1::1") == 3
    assert sum(limits.admits_tls(host, is_local=False) for host in hosts) == 1024**2 // TLS_SESSION_BYTES // 2
    limits.all.leave(hosts[0])
    assert admitted(broker, 2, hosts[9]) == 1


def test_few_files_are_mapped_under_a_low_limit(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_open_files(monkeypatch, 256)
    assert make_broker().store.queues.pool.limit == MIN_MAPPED_FILES < 256 // 2
    limit_open_files(monkeypatch, 1024)
    assert make_broker().store.queues.pool.limit == 768
