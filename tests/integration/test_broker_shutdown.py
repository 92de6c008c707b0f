"""Start, shutdown and failing disks: acknowledged messages stay, and the client at fault gets an error."""

import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.integration.broker_wire import (
    broker_config,
    broker_port,
    connected,
    pull_fields,
    request,
    running,
    send_fields,
    until,
)
from triomq.broker import opening
from triomq.broker.addresses import Address
from triomq.broker.config import Listener
from triomq.broker.opening import open_broker
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import StoreError, StoreLayoutError
from triomq.protocol.record.record import decode_records
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.files.file_system import DirectoryEntry, FileSystem, OpenFile
from triomq.storage.message_store import MessageStore

SEND = RequestCode.SEND_MESSAGE_V2


async def bodies(root: Path, count: int) -> list[bytes]:
    """Return the messages in queue 0 of topic T after a restart."""
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        response = await wire.ask(RequestCode.PULL_MESSAGE, pull_fields("T", maxMsgNums=count))
        assert response.code == ResponseCode.SUCCESS
        return [message.stored_body for message in decode_records(response.body)]


async def test_shutdown_does_not_wait_for_idle_peers(root: Path, mock_clock: MockClock) -> None:
    """No clock ticks here: neither idle connections nor held pulls keep the broker alive."""
    async with running(root) as broker:
        broker.topics.put(TopicConfig(topic_name="T"))
        idle = await trio.open_tcp_stream("127.0.0.1", broker_port(broker))
        holding = await trio.open_tcp_stream("127.0.0.1", broker_port(broker))
        await holding.send_all(request(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=6)))
        await until(lambda: broker.pulls.hold.held == 1 and len(broker.connections) == 2)
    for stream in (idle, holding):
        async with stream:
            assert await stream.receive_some() == b""
    assert broker.connections == set()


async def test_shutdown_sends_no_member_notifications(root: Path, mock_clock: MockClock) -> None:
    async with running(root) as broker:
        streams = []
        for number in range(3):
            stream = await trio.open_tcp_stream("127.0.0.1", broker_port(broker))
            body = HeartbeatData(f"c{number}", [], [ConsumerData(group_name="G")]).encode()
            await stream.send_all(request(RequestCode.HEART_BEAT, body=body))
            streams.append(stream)
        await until(lambda: sum(len(group.members) for group in broker.groups.consumers) == 3)
        await wait_all_tasks_blocked()
        for stream in streams:
            await stream.receive_some()
    for stream in streams:
        async with stream:
            assert await stream.receive_some() == b""


async def test_shutdown_does_not_wait_for_slow_reader(root: Path, autojump_clock: MockClock) -> None:
    async with running(root, shutdown_grace_s=1, unread_high_bytes=1024**2) as broker:
        async with connected(broker_port(broker)) as wire:
            for _ in range(20):
                await wire.put("T", bytes(100_000))
        deaf = await trio.open_tcp_stream("127.0.0.1", broker_port(broker))
        await deaf.send_all(request(RequestCode.PULL_MESSAGE, pull_fields()) * 200)
        await until(lambda: any(each.unread_bytes for each in broker.connections))
        began = trio.current_time()
    assert trio.current_time() - began < 2
    await deaf.aclose()


async def test_shutdown_answers_sends_waiting_for_flush(root: Path) -> None:
    messages = 20
    async with running(root, store={"durability": Durability.SYNC}) as broker:
        wires = [await trio.open_tcp_stream("127.0.0.1", broker_port(broker)) for _ in range(messages)]
        for number, stream in enumerate(wires):
            await stream.send_all(request(SEND, send_fields(), b"%d" % number))
        await until(lambda: broker.statistics.put_messages == messages)
    for stream in wires:
        async with stream:
            assert b'"queueOffset":' in bytes(await stream.receive_some())
    assert sorted(map(int, await bodies(root, 32))) == list(range(messages))


async def test_sync_durability_flushes_before_answer_and_visibility(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    class Watching(FileSystem):
        def sync_file(self, file: OpenFile) -> None:
            super().sync_file(file)
            synced.append(file.path.parent.name)

    use(monkeypatch, Watching())
    async with running(root, store={"durability": Durability.SYNC}) as broker:
        broker.topics.put(TopicConfig(topic_name="T"))
        async with connected(broker_port(broker)) as consumer, connected(broker_port(broker)) as producer:
            await consumer.send(request(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=6)))
            await until(lambda: broker.pulls.hold.held == 1)
            synced.clear()
            assert (await producer.put("T")).code == ResponseCode.SUCCESS
            assert "commitlog" in synced
            assert (await consumer.next()).code == ResponseCode.SUCCESS


async def test_late_flush_is_reported_and_message_is_kept(
    root: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    class Slow(FileSystem):
        def sync_file(self, file: OpenFile) -> None:
            goes_on.wait()
            super().sync_file(file)

    use(monkeypatch, Slow())
    async with running(root, store={"durability": Durability.SYNC}) as broker, connected(broker_port(broker)) as wire:
        try:
            await wire.send(request(SEND, send_fields(), b"late"))
            await until(lambda: broker.statistics.put_messages == 1)
            await wait_all_tasks_blocked()
            mock_clock.jump(broker.config.sync_flush_timeout_s + 1)
            response = await wire.next()
        finally:
            goes_on.set()
        assert response.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert response.ext_fields["queueOffset"] == "0"
        assert (await wire.put("T", b"in time")).code == ResponseCode.SUCCESS
    assert await bodies(root, 2) == [b"late", b"in time"]


# --- what cannot start --------------------------------------------------------------------------------------


async def test_a_taken_vip_port_is_no_obstacle(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] + 2
        listener = Listener(broker=Address("127.0.0.1", port), namesrv=Address("127.0.0.1", 0))
        with caplog.at_level(logging.INFO):
            async with running(root, listeners=(listener,)) as broker, connected(broker_port(broker)) as wire:
                assert await wire.works()
    assert "no VIP port" in caplog.text


async def test_damaged_table_is_rejected_and_lock_released(root: Path) -> None:
    (root / "config").mkdir(parents=True)
    table = root / "config" / "consumerOffset.json"
    table.write_bytes(b'{"offsetTable": 7')
    with pytest.raises(StoreLayoutError, match=r"consumerOffset\.json"):
        async with open_broker(broker_config(root)):
            pass
    assert table.read_bytes() == b'{"offsetTable": 7'
    table.unlink()
    async with running(root):
        pass


# --- disks that refuse --------------------------------------------------------------------------------------


class Disk(FileSystem):
    """A disk that can be full, or forbid reading."""

    is_full = False
    is_unreadable = False

    def reserve(self, file: OpenFile, start: int, length: int) -> None:
        self._need_room()
        super().reserve(file, start, length)

    def create_file(self, scratch: Path, size_bytes: int, path: Path) -> OpenFile:
        self._need_room()
        return super().create_file(scratch, size_bytes, path)

    def write_file(self, path: Path, content: bytes) -> None:
        self._need_room()
        super().write_file(path, content)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        if self.is_unreadable:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return super().list_directory(path)

    def _need_room(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def use(monkeypatch: pytest.MonkeyPatch, file_system: FileSystem) -> None:
    """Let brokers keep their stores on another file system."""

    def make(config: StoreConfig, **settings: Any) -> MessageStore:
        return MessageStore(config, **{**settings, "file_system": file_system})

    monkeypatch.setattr(opening, "MessageStore", make)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    use(monkeypatch, disk)
    yield disk
    disk.is_full = disk.is_unreadable = False


async def test_an_unreadable_store_is_refused_by_name(root: Path, disk: Disk) -> None:
    async with running(root):
        pass
    disk.is_unreadable = True
    with pytest.raises(StoreError, match=r"store.*Permission denied"):
        async with open_broker(broker_config(root)):
            pass
    disk.is_unreadable = False
    async with running(root):
        pass


async def test_full_disk_rejects_sends_until_space_is_freed(root: Path, mock_clock: MockClock, disk: Disk) -> None:
    """What was stored before stays and can be consumed all the time; nothing of a refused message is stored."""
    step = {"reserve_step_bytes": 4096, "consume_queue_reserve_step_bytes": 20}
    async with running(root, store=step) as broker, connected(broker_port(broker)) as wire:
        assert (await wire.put("T", b"before")).code == ResponseCode.SUCCESS
        disk.is_full = True
        for topic in ("T", "T", "new"):
            response = await wire.put(topic, bytes(5000))
            assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert response.remark is not None
            assert "No space left" in response.remark
            assert str(root) in response.remark
        pulled = await wire.ask(RequestCode.PULL_MESSAGE, pull_fields("T"))
        assert [message.stored_body for message in decode_records(pulled.body)] == [b"before"]
        disk.is_full = False
        assert (await wire.put("T", b"after")).ext_fields["queueOffset"] == "1"
    assert broker.statistics.put_messages == 2
    async with running(root, store=step) as broker, connected(broker_port(broker)) as wire:
        pulled = await wire.ask(RequestCode.PULL_MESSAGE, pull_fields("T"))
        assert [message.stored_body for message in decode_records(pulled.body)] == [b"before", b"after"]


async def test_a_broker_flushes_while_its_disk_is_full(root: Path, mock_clock: MockClock, disk: Disk) -> None:
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        await wire.put("T", b"before")
        await wait_all_tasks_blocked()
        disk.is_full = True
        for _ in range(3):
            await wire.put("T", b"x")
            mock_clock.jump(broker.config.store.flush_consume_queue_thorough_interval_s)
            await until(lambda: broker.store.commit_log.flushed_offset == broker.store.commit_log.max_offset)
            await wait_all_tasks_blocked()
        assert await wire.works()
        disk.is_full = False
        assert (await wire.put("T", b"after")).code == ResponseCode.SUCCESS
    assert (await bodies(root, 10))[-1] == b"after"


async def test_failed_table_save_at_shutdown_still_flushes_messages(
    root: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise StoreError("the disk refuses")

    async with running(root) as broker, connected(broker_port(broker)) as wire:
        await wire.put("T", b"kept")
        monkeypatch.setattr(broker.topics, "write", refuse)
    assert "its changes may be lost" in caplog.text
    assert await bodies(root, 1) == [b"kept"]
