"""Pulls of old messages wait for the disk in threads, and nobody with them."""

import mmap
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker import cold_pulls
from triomq.broker.server import Broker
from triomq.protocol.bodies import TopicConfig
from triomq.protocol.codes import ResponseCode
from triomq.protocol.record import decode_records
from triomq.storage.file_system import FileSystem, OpenFile


class Disk:
    """Files are in memory once they were read; reading waits until the test lets it."""

    def __init__(self) -> None:
        self.is_read = False
        self.forgets = False
        self.may_read = threading.Event()
        self.error: Exception | None = None
        self.threads: set[int] = set()

    def is_resident(self, files: FileSystem, map_: mmap.mmap, start: int, end: int) -> bool:
        return self.is_read and not self.forgets

    def read(self, files: FileSystem, file: OpenFile, start: int, end: int) -> None:
        self.threads.add(threading.get_ident())
        assert self.may_read.wait(10)
        if self.error is not None:
            raise self.error
        self.is_read = True


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(FileSystem, "is_resident", lambda *arguments: disk.is_resident(*arguments))
    monkeypatch.setattr(FileSystem, "read_into_memory", lambda *arguments: disk.read(*arguments))
    yield disk
    disk.may_read.set()


@pytest.fixture
def broker(make_broker: MakeBroker, disk: Disk) -> Broker:
    """Opened again after ten messages."""
    first = make_broker()
    first.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    peer = Peer(first)
    for number in range(10):
        peer.put("T", b"m%d" % number)
    first.save_tables_now()
    return make_broker()


def received(peer: Peer) -> list[bytes]:
    return [message.stored_body for command in peer.sent for message in decode_records(command.body)]


async def test_a_cold_pull_is_answered_later_and_others_meanwhile(broker: Broker, disk: Disk, peer: Peer) -> None:
    async with trio.open_nursery() as broker.connection_nursery:
        assert peer.pull("T", 4) is None
        await trio.testing.wait_all_tasks_blocked()
        assert broker.cold_pulls.waiting == 1
        assert peer.put("T", b"new").code == ResponseCode.SUCCESS
        newest = peer.pull("T", 10)
        assert newest is not None
        assert [message.stored_body for message in decode_records(newest.body)] == [b"new"]
        peer.sent.clear()
        disk.may_read.set()
    assert received(peer) == [b"m%d" % number for number in range(4, 10)] + [b"new"]
    assert (broker.cold_pulls.waiting, broker.cold_pulls.served) == (0, 1)
    assert threading.get_ident() not in disk.threads
    assert peer.pull("T", 4) is not None  # it is in memory now


async def test_a_pull_may_still_be_held_when_its_queue_was_deleted_meanwhile(
    broker: Broker, disk: Disk, peer: Peer
) -> None:
    async with trio.open_nursery() as broker.connection_nursery:
        assert peer.pull("T", 4) is None
        broker.store.delete_topic("T")
        disk.may_read.set()
    assert [command.code for command in peer.sent] == [ResponseCode.PULL_OFFSET_MOVED]


async def test_memory_that_forgets_at_once_does_not_keep_a_pull_for_ever(
    broker: Broker, disk: Disk, peer: Peer
) -> None:
    disk.forgets = True
    disk.may_read.set()
    async with trio.open_nursery() as broker.connection_nursery:
        assert peer.pull("T", 0) is None
    assert len(received(peer)) == 10


async def test_a_disk_that_cannot_read_refuses_the_pull_and_ends_nothing(
    broker: Broker, disk: Disk, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    disk.error = OSError(5, "Input/output error")
    disk.may_read.set()
    async with trio.open_nursery() as broker.connection_nursery:
        assert peer.pull("T", 0) is None
    (refused,) = peer.sent
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refused.remark is not None
    assert "Input/output error" in refused.remark
    assert "old messages cannot be read" in caplog.text


async def test_a_defect_is_the_pulls_own(
    broker: Broker, disk: Disk, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    disk.error = ValueError("a defect")
    disk.may_read.set()
    async with trio.open_nursery() as broker.connection_nursery:
        assert peer.pull("T", 0) is None
    assert [command.code for command in peer.sent] == [ResponseCode.SYSTEM_ERROR]


async def test_a_connection_that_ended_meanwhile_gets_nothing(broker: Broker, disk: Disk, peer: Peer) -> None:
    async with trio.open_nursery() as broker.connection_nursery:
        assert peer.pull("T", 0) is None
        peer.closed = True
        disk.may_read.set()
    assert peer.sent == []


async def test_too_many_waiting_pulls_are_told_to_come_again(
    broker: Broker, disk: Disk, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_pulls, "_MOST_WAITING", 3)
    async with trio.open_nursery() as broker.connection_nursery:
        for _ in range(3):
            assert peer.pull("T", 0) is None
        refused = peer.pull("T", 0)
        assert refused is not None
        assert refused.code == ResponseCode.SYSTEM_BUSY
        disk.may_read.set()
    assert len(received(peer)) == 30


async def test_pulls_at_the_end_never_ask_the_disk(make_broker: MakeBroker, disk: Disk) -> None:
    broker = make_broker()
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    peer = Peer(broker)
    for number in range(100):
        peer.put("T")
        assert peer.pull("T", number) is not None
    assert broker.cold_pulls.served == 0
