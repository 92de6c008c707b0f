"""Silent members are removed, set clocks noticed, and old files deleted while the broker serves."""

import logging
import os
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.unit.broker.processors.test_client import heartbeat
from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.broker.server import Broker
from triomq.broker.services.housekeeping import ClockWatch, log_exposure
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import StoreError
from triomq.storage.files.file_system import DiskSpace, FileSystem
from triomq.storage.retention import Retention

pytestmark = pytest.mark.usefixtures("instant_threads")
LOG_FILE = 4096


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
        await log_exposure("routes at 0.0.0.0:9876", may_misjudge_peers=True)
    first, *lines = [record.getMessage() for record in caplog.records]
    assert first == "clients may look local: this is a container, and --no-local-peers is not given"
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


@pytest.fixture(autouse=True)
def half_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "space", lambda self, path: DiskSpace(500, 500))


@pytest.fixture
def broker(make_broker: MakeBroker, clock: Clock) -> Broker:
    """Deletes at another hour than it is; a message of 1000 bytes fills a quarter of a file."""
    hour = time.localtime(clock.now_ms / 1000).tm_hour
    sizes = {"commit_log_file_size_bytes": LOG_FILE, "consume_queue_file_size_bytes": 40, "reserve_step_bytes": 4096}
    return make_broker({**sizes, "delete_when": ((hour + 2) % 24,)})


def fill(broker: Broker, peer: Peer, count: int = 10) -> None:
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    for _ in range(count):
        assert peer.put("T", bytes(1000)).code == ResponseCode.SUCCESS
    broker.store.flush()
    for file in broker.store.commit_log.files.files:
        os.utime(file.path, (0, 0))


def log_start(broker: Broker) -> int:
    return min(int(path.name) for path in (broker.config.store.root / "commitlog").iterdir())


async def run_for(broker: Broker, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await broker.retention.run()


async def test_old_files_are_deleted_only_at_delete_hour(
    broker: Broker, peer: Peer, clock: Clock, autojump_clock: MockClock
) -> None:
    fill(broker, peer)
    await run_for(broker, 200)
    clock.now_ms += 2 * 3_600_000
    await run_for(broker, 59)
    assert log_start(broker) == 0
    await run_for(broker, 120)
    assert log_start(broker) == broker.store.commit_log.files.files[-1].start > 0


async def test_request_deletes_at_any_hour(broker: Broker, peer: Peer, autojump_clock: MockClock) -> None:
    fill(broker, peer)
    assert peer.get(RequestCode.DELETE_EXPIRED_COMMITLOG).code == ResponseCode.SUCCESS
    await run_for(broker, 10)
    assert log_start(broker) > 0


async def test_files_are_deleted_with_pauses(broker: Broker, peer: Peer, autojump_clock: MockClock) -> None:
    fill(broker, peer, 40)
    broker.retention.request()
    await run_for(broker, 0.55)
    assert 4 <= log_start(broker) // LOG_FILE <= 6
    await run_for(broker, 1)


async def test_refused_deletion_is_logged_once_and_retried(
    broker: Broker,
    peer: Peer,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(broker, peer)
    broker.retention.request()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "triomq.broker.services.housekeeping"):
        refuse_to("unlink", "commitlog", patch)
        await run_for(broker, 100)
    assert len(caplog.records) == 1
    assert "not deleted for now: cannot delete" in caplog.text
    assert log_start(broker) == 0
    await run_for(broker, 100)
    assert log_start(broker) > 0


def fill_queues(broker: Broker, peer: Peer) -> None:
    """The messages of three queues in turn, each with two units in a file."""
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    for number in range(30):
        assert peer.put("T", bytes(1000), queue_id=number % 3).code == ResponseCode.SUCCESS
    broker.store.flush()
    for file in broker.store.commit_log.files.files[:-1]:
        os.utime(file.path, (0, 0))


def begins(broker: Broker) -> list[tuple[int, int]]:
    """Of each queue the first offset, and the first one on the disk."""
    queues = [broker.store.queue("T", queue_id) for queue_id in range(3)]
    return [(queue.min_offset, queue.files.start // 20) for queue in queues]


def refuse_to(name: str, part: str, patch: pytest.MonkeyPatch) -> None:
    """Let a call of the file system fail where ``part`` is in the path."""

    def call(self: FileSystem, file: Any, *arguments: Any) -> Any:
        if part in str(getattr(file, "path", file)):
            raise PermissionError(1, "Operation not permitted", part)
        return real(self, file, *arguments)

    real = getattr(FileSystem, name)
    patch.setattr(FileSystem, name, call)


async def test_undeletable_log_file_does_not_stop_queue_cleanup(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    fill_queues(broker, peer)
    broker.retention.retention.request()
    with monkeypatch.context() as patch:
        refuse_to("unlink", f"commitlog/{3 * LOG_FILE:020d}", patch)
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"cannot delete .*commitlog/{3 * LOG_FILE:020d}"):
                await broker.retention.clean()
        assert log_start(broker) == 3 * LOG_FILE
        assert begins(broker) == [(3, 2)] * 3
        assert not broker.retention.retention.is_behind
    await broker.retention.clean()
    assert log_start(broker) > 3 * LOG_FILE


@pytest.mark.parametrize(("name", "first"), [("unlink", (9, 0)), ("read", (0, 0))])
async def test_failing_queue_does_not_stop_others(
    broker: Broker,
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    name: str,
    first: tuple[int, int],
) -> None:
    fill_queues(broker, peer)
    broker.retention.retention.request()
    followed: list[int] = []
    monkeypatch.setattr(broker.store.index.files, "delete_expired", followed.append)
    with monkeypatch.context() as patch:
        refuse_to(name, "T/0/", patch)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"cannot .*T/0/.*Operation not permitted"):
                await broker.retention.clean()
        assert begins(broker) == [first, (9, 8), (9, 8)]
        assert followed == [log_start(broker)] * 2
        assert broker.retention.retention.is_behind
        assert broker.retention.retention.queues_behind == [broker.store.queue("T", 0)]
    await broker.retention.clean()
    assert begins(broker) == [(9, 8)] * 3
    assert not broker.retention.retention.is_behind


async def test_unconfirmed_deletion_is_completed_later(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    fill(broker, peer)
    broker.retention.retention.request()
    with monkeypatch.context() as patch:
        refuse_to("sync_directory", "commitlog", patch)
        with pytest.raises(StoreError, match=r"cannot sync .*commitlog"):
            await broker.retention.clean()
        assert len(broker.retention.retention.held) == 1
    await broker.retention.clean()
    assert broker.retention.retention.held == []


async def test_cold_queues_are_read_before_correction(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(Retention, "reading_for", lambda *_: lambda: steps.append("read"))
    monkeypatch.setattr(Retention, "correct_queues", lambda *_: steps.append("look"))
    fill(broker, peer)
    await broker.retention.clean()
    assert steps == ["read", "look"]


async def test_files_in_use_are_held(broker: Broker, peer: Peer, autojump_clock: MockClock) -> None:
    fill(broker, peer)
    found = broker.store.reader.get_message(("T", 0), 0, 1)
    broker.retention.request()
    await run_for(broker, 25)
    assert len(broker.retention.retention.held) == 1
    assert bytes(found.buffers[0][:4]) == found.size_bytes.to_bytes(4)
    del found
    await run_for(broker, 80)
    assert broker.retention.retention.held == []


async def test_sends_are_refused_while_the_disk_is_full(
    broker: Broker, peer: Peer, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, peer)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "space", lambda self, path: DiskSpace(910, 90))
        await run_for(broker, 2)
        refused = peer.put("T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark is not None
        for part in (str(broker.config.store.root), "91 % full", "90 bytes are free", "disk_full_ratio"):
            assert part in refused.remark
    await run_for(broker, 2)
    assert peer.put("T").code == ResponseCode.SUCCESS


async def test_failed_measurement_of_the_disk_ends_nothing(
    broker: Broker, peer: Peer, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, peer)

    def fail(*_: object) -> None:
        raise StoreError("no idea")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "check_disk", fail)
        await run_for(broker, 100)
    assert peer.put("T").code == ResponseCode.SUCCESS
