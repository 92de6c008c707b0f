"""Connections leave the store the open files that it needs."""

import resource

import pytest

from tests.unit.broker.recording import MakeBroker
from triomq.broker.server import Broker
from triomq.storage.files.mapping_pool import MIN_MAPPED_FILES


def limit_open_files(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))


def admitted(broker: Broker, tries: int, already: int = 0) -> int:
    """Try so many connections, and return how many are accepted."""
    count = already
    for _ in range(tries):
        count += broker.acceptors.admission.admits(count)
    return count - already


@pytest.mark.parametrize(("limit", "connections"), [(512, 192), (256, 128), (128, 64)])
def test_connections_leave_enough_file_descriptors_for_store(
    make_broker: MakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: int,
    connections: int,
) -> None:
    limit_open_files(monkeypatch, limit)
    broker = make_broker()
    assert admitted(broker, 300) == connections
    (record,) = caplog.records
    assert f"{connections} of at most {connections}" in record.getMessage()
    assert "ulimit -n" in record.getMessage()


def test_files_of_the_commit_log_count(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    log = broker.store.commit_log
    for _ in range(3):
        log.files.create_next(0)
    limit_open_files(monkeypatch, broker.store.queues.pool.limit + 64 + 100)
    assert admitted(broker, 200) == 94


def test_where_many_files_may_be_open_only_the_setting_counts(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_open_files(monkeypatch, resource.RLIM_INFINITY)
    assert admitted(make_broker(max_connections=5), 10) == 5
    limit_open_files(monkeypatch, 500_000)
    assert admitted(make_broker(max_connections=7), 10) == 7


def test_a_refusal_is_told_again_after_somebody_was_admitted(
    make_broker: MakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(max_connections=2)
    assert admitted(broker, 4) == 2
    assert admitted(broker, 4) == 2
    assert len(caplog.records) == 2


def test_where_few_files_may_be_open_few_are_mapped(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_open_files(monkeypatch, 256)
    assert make_broker().store.queues.pool.limit == MIN_MAPPED_FILES < 256 // 2
    limit_open_files(monkeypatch, 1024)
    assert make_broker().store.queues.pool.limit == 768
