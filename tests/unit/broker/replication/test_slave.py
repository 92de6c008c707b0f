"""A slave of a played master: the frames that it takes, its reports, and when it connects again."""

import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
import trio
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    MockClock,
    memory_stream_pair,
    wait_all_tasks_blocked,
)

from tests.unit.broker.recording import MakeBroker, Peer, make_steps_short
from tests.unit.storage.making import StoreMaker, bodies, put
from triomq.broker.addresses import Address
from triomq.broker.replication import slave as module
from triomq.broker.replication.comparison import Comparison
from triomq.broker.replication.slave import Slave
from triomq.broker.server import Broker
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import StoreFullError
from triomq.protocol.wire.ha import HEAD, REPORT
from triomq.storage.config import Durability
from triomq.storage.message_store import MessageStore

FILE = 256 * 1024
MESSAGES = 150
Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


class Link:
    """A connection as the master has it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._unread = b""
        self.began = trio.current_time()

    async def send(self, offset: int, data: bytes = b"") -> None:
        await self._stream.send_all(HEAD.pack(offset, len(data)) + data)
        await wait_all_tasks_blocked()

    async def send_raw(self, data: bytes) -> None:
        await self._stream.send_all(data)
        await wait_all_tasks_blocked()

    async def report(self) -> int:
        """Return the next report."""
        while len(self._unread) < REPORT.size:
            data = await self._stream.receive_some(4096)
            assert data, "the slave closed the connection"
            self._unread += data
        (end,) = REPORT.unpack_from(self._unread)
        self._unread = self._unread[REPORT.size :]
        return int(end)

    async def is_closed(self) -> bool:
        """Wait until the slave closes the connection; ``False``: it reported instead."""
        return not await self._stream.receive_some(4096)

    async def close(self) -> None:
        await self._stream.aclose()


class Master:
    """Accepts connections, or refuses them while it ``is_away``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away = False
        self.attempts: list[tuple[float, str]] = []
        self._accepting, self._accepted = trio.open_memory_channel[Link](100)
        monkeypatch.setattr(module, "connect", self._connect)

    async def _connect(self, address: Address, tls: None) -> tuple[Stream, str]:
        self.attempts.append((trio.current_time(), str(address)))
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise ConnectionRefusedError("refused")
        ours, theirs = memory_stream_pair()
        self._accepting.send_nowait(Link(theirs))
        return ours, "127.0.0.1"

    async def accept(self) -> Link:
        """Wait for the next connection."""
        return await self._accepted.receive()


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Master:
    return Master(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> Iterator["Log"]:
    maker = StoreMaker(tmp_path / "master")
    yield Log(maker(commit_log_file_size_bytes=FILE))
    maker.close()


class Log:
    """A master's log of several files."""

    def __init__(self, store: MessageStore) -> None:
        chooser = random.Random(7)
        self.places = [put(store, "T", body=chooser.randbytes(chooser.randint(10, 9000))) for _ in range(MESSAGES)]
        self.bodies = bodies(store)
        self.end = store.commit_log.max_offset
        self.data = log_bytes(store, 0, self.end)
        assert self.end > 2 * FILE

    def border(self, number: int) -> int:
        """Return where a message begins."""
        return self.places[number].physical_offset


def log_bytes(store: MessageStore, begin: int, end: int) -> bytes:
    return b"".join(bytes(file.view) for file in store.commit_log.files.files)[begin:end]


def open_slave(make_broker: MakeBroker, durability: Durability = Durability.ASYNC) -> Broker:
    return make_broker({"durability": durability}, role="slave", broker_id=1, ha_master=Address("192.0.2.1", 10912))


def slave_of(broker: Broker) -> Slave:
    assert broker.slave is not None
    return broker.slave


@asynccontextmanager
async def running(broker: Broker) -> AsyncGenerator[Slave]:
    slave = slave_of(broker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slave.run)
        yield slave
        nursery.cancel_scope.cancel()


@pytest.fixture
def broker(make_broker: MakeBroker) -> Broker:
    return open_slave(make_broker)


async def test_frames_and_stream_cut_anywhere(
    broker: Broker, master: Master, log: Log, autojump_clock: MockClock
) -> None:
    chooser, stream, at = random.Random(3), b"", 0
    while at < log.end:
        size = min(chooser.choice((1, 7, 300, 5000, 32768)), log.end - at, FILE - at % FILE)
        stream += HEAD.pack(at, size) + log.data[at : at + size]
        at += size
    async with running(broker):
        link = await master.accept()
        assert await link.report() == 0
        reported = 0
        while stream:
            size = chooser.choice((1, 5, 12, 700, 40_000))
            await link.send_raw(stream[:size])
            stream = stream[size:]
        while reported < log.end:
            before, reported = reported, await link.report()
            assert reported >= before
        await trio.sleep(1)  # records reach their queues at intervals
    assert log_bytes(broker.store, 0, log.end) == log.data
    assert bodies(broker.store) == log.bodies


async def test_reports_at_once_after_growth_and_when_idle(
    broker: Broker, master: Master, log: Log, autojump_clock: MockClock
) -> None:
    async with running(broker) as slave:
        link = await master.accept()
        assert (await link.report(), trio.current_time()) == (0, link.began)
        assert (slave.is_following, slave.last_received_s) == (False, None)
        begin = trio.current_time()
        await link.send(0, log.data[:1000])
        assert (await link.report(), trio.current_time()) == (1000, begin)
        for number in range(1, 5):
            assert (await link.report(), trio.current_time()) == (1000, begin + 5.0 * number)
            assert slave.last_received_s == 5.0
            await link.send(1000)  # a heartbeat is not answered
            assert slave.last_received_s == 0.0
    assert not slave_of(broker).is_following


@pytest.mark.parametrize(
    "position", [lambda log, end: end + 500, lambda log, end: end + 1, lambda log, end: end - 1, lambda log, end: 0]
)
async def test_frame_that_does_not_fit_is_not_taken(
    broker: Broker,
    master: Master,
    log: Log,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    position: Callable[[Log, int], int],
) -> None:
    end = log.border(10)
    at = position(log, end)
    async with running(broker):
        link = await master.accept()
        await link.report()
        await link.send(0, log.data[:end])
        assert await link.report() == end
        begin = trio.current_time()
        await link.send(at, log.data[at : at + 500])
        assert await link.is_closed()
        link = await master.accept()
        assert trio.current_time() - begin < 1
        assert await link.report() == end
        await link.send(end, log.data[end:FILE])
        assert await link.report() == FILE
    assert log_bytes(broker.store, 0, FILE) == log.data[:FILE]
    assert broker.statistics.copy_misfits == 1
    assert f"the master sends its log from {at}, but this log ends at {end}" in caplog.text


async def test_misfits_that_repeat_are_asked_for_slowly(
    broker: Broker, master: Master, log: Log, autojump_clock: MockClock
) -> None:
    async with running(broker):
        for _ in range(20):
            link = await master.accept()
            await link.report()
            await link.send(100, log.data[100:200])  # no file begins there
    assert broker.store.commit_log.min_offset == -1
    times = [when for when, _ in master.attempts]
    assert max(later - earlier for earlier, later in pairwise(times)) == pytest.approx(5.0, abs=0.1)
    assert times[2] < 1


async def test_empty_log_refuses_files_of_another_size(
    broker: Broker, master: Master, log: Log, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(broker):
        link = await master.accept()
        await link.report()
        await link.send(FILE // 2, log.data[FILE // 2 : FILE])
        assert await link.is_closed()
        link = await master.accept()
        assert await link.report() == 0
        await link.send(FILE, log.data[FILE : FILE + 1000])
        assert await link.report() == FILE + 1000
    assert broker.store.commit_log.min_offset == FILE
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert ["where no file begins" in error for error in errors] == [True]


async def test_silent_master_is_left_after_20_s(
    broker: Broker, master: Master, log: Log, autojump_clock: MockClock
) -> None:
    async with running(broker):
        link = await master.accept()
        for _ in range(10):
            await link.send(0)
            await trio.sleep(15)
        begin = trio.current_time()
        await link.send(0, log.data[: log.border(1) + 10])
        second = await master.accept()
        assert second.began == pytest.approx(begin + 20, abs=0.2)
        assert await second.report() == log.border(1)


async def test_master_away_is_tried_soon_then_slowly(
    broker: Broker, master: Master, log: Log, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(broker):
        link = await master.accept()
        await link.send(0, log.data[: log.border(1) + 10])
        began, master.is_away = len(master.attempts), True
        await link.close()
        await trio.sleep(60)
        times = [when for when, _ in master.attempts[began:]]
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * (len(pauses) - 5)])
        master.is_away = False
        link = await master.accept()
        assert await link.report() == log.border(1)
        await link.send(log.border(1))
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert texts == [
        "master lost address=192.0.2.1:10912 reason=the master closed the connection",
        "master found again address=192.0.2.1:10912",
    ]


async def test_another_address_is_followed_at_once(
    make_broker: MakeBroker, master: Master, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comparison, "begin", AsyncMock())  # nothing answers there
    broker = make_broker(role="slave", broker_id=1, register=(Address("192.0.2.9", 9876),))
    async with running(broker) as slave:
        for number in range(1, 4):
            await wait_all_tasks_blocked()
            host = f"192.0.2.{number}"
            broker.registration.take_master({"masterAddr": f"{host}:10911", "haServerAddr": f"{host}:10912"})
            link = await master.accept()
            assert await link.report() == 0
            await link.send(0)
            assert (slave.master, slave.is_following) == (f"{host}:10912", True)
            if number > 1:  # the next address comes while the slave waits before it connects again
                await link.close()
    assert [address for _, address in master.attempts] == [f"192.0.2.{number}:10912" for number in (1, 2, 3)]


async def test_full_disk_loses_nothing(
    broker: Broker, master: Master, log: Log, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = broker.store.replica.append
    refused = iter(range(3))

    def full(offset: int, data: memoryview) -> None:
        if offset and next(refused, None) is not None:
            raise StoreFullError("no space left")
        append(offset, data)

    monkeypatch.setattr(broker.store.replica, "append", full)
    first = log.border(10)
    async with running(broker):
        at = 0
        for _ in range(5):
            link = await master.accept()
            assert await link.report() == at
            if at == 0:
                await link.send(0, log.data[:first])
                at = await link.report()
            await link.send(at, log.data[at:FILE])
            if broker.store.replica.end == FILE:
                break
    assert broker.statistics.copy_refusals == 3
    assert log_bytes(broker.store, 0, FILE) == log.data[:FILE]


async def test_durability_sync_reports_only_flushed_data(
    make_broker: MakeBroker, master: Master, log: Log, autojump_clock: MockClock
) -> None:
    broker = open_slave(make_broker, Durability.SYNC)
    assert broker.group_commit is not None
    async with running(broker):
        link = await master.accept()
        assert await link.report() == 0
        await link.send(0, log.data[:FILE])
        for _ in range(3):
            assert await link.report() == 0  # only because it is time
        broker.store.flush()
        broker.group_commit.on_flush()
        assert await link.report() == FILE
        await link.send(FILE, log.data[FILE : 2 * FILE])
        await link.close()
        link = await master.accept()
        with trio.move_on_after(15) as waiting:
            await link.report()
        assert waiting.cancelled_caught  # a first report says where the master begins
        broker.store.flush()
        broker.group_commit.on_flush()
        assert await link.report() == 2 * FILE


async def test_held_pull_is_answered_by_what_arrives(
    broker: Broker, master: Master, log: Log, autojump_clock: MockClock
) -> None:
    make_steps_short(broker)
    broker.topics.adopt([("T", 0)])
    peer = Peer(broker)
    async with running(broker):
        link = await master.accept()
        await link.send(0, log.data[: log.border(1)])
        await trio.sleep(1)
        assert peer.pull("T", 1, sysFlag=6) is None
        await link.send(log.border(1), log.data[log.border(1) : log.border(2) - 1])
        await trio.sleep(1)
        assert [each.code for each in peer.sent] == []
        await link.send(log.border(2) - 1, log.data[log.border(2) - 1 : log.border(2)])
        await trio.sleep(1)
    assert [each.code for each in peer.sent] == [ResponseCode.SUCCESS]
