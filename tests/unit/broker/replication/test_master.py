"""The master, with slaves that the test plays on real sockets."""

import socket
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.addresses import Address, parse_networks
from triomq.broker.replication.master import MAX_SLAVES, Master
from triomq.broker.server import Broker
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.wire.ha import REPORT, TRANSFER_BYTES, Frames
from triomq.storage.commit_log.commit_log import NOT_NEEDED

FILE_BYTES = 256 * 1024
ANY_PORT = Address("127.0.0.1", 0)


class PlayedSlave:
    """Collects frames; ``closed`` once the master has closed the connection."""

    sockets: ClassVar[list[socket.socket]] = []

    def __init__(self, master: Master, *, buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        self.sockets.append(self.socket)
        if buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.connect((master.address.host, master.address.port))
        self.socket.setblocking(False)
        self.frames: list[tuple[int, bytes]] = []
        self.closed = False
        self._frames = Frames()

    def report(self, *offsets: int) -> None:
        self.socket.sendall(b"".join(map(REPORT.pack, offsets)))

    def read(self) -> None:
        """Read the bytes that have arrived, if the test has not closed the connection."""
        if self.socket.fileno() < 0:
            return
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self.closed = not data
        self.frames += [(offset, bytes(piece)) for offset, piece in self._frames.feed(data)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read until a condition holds."""
        while not condition():
            self.read()
            await trio.lowlevel.checkpoint()

    async def until_closed(self) -> None:
        await self.until(lambda: self.closed)

    async def until_end(self, end: int) -> bytes:
        """Read up to an offset; return the log from the first frame on."""
        await self.until(lambda: bool(self.frames) and self.frames[-1][0] + len(self.frames[-1][1]) >= end)
        return b"".join(data for _, data in self.frames)


@pytest.fixture(autouse=True)
def close_slaves() -> Iterator[None]:
    yield
    while PlayedSlave.sockets:
        PlayedSlave.sockets.pop().close()


@asynccontextmanager
async def serving(
    make_broker: MakeBroker, store_settings: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncGenerator[Broker]:
    broker = make_broker(store_settings, ha_listen=ANY_PORT, **settings)
    assert broker.master is not None
    broker.master.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.context.reader.run, ())
        nursery.start_soon(broker.master.run)
        await wait_all_tasks_blocked()
        yield broker
        nursery.cancel_scope.cancel()


@pytest.fixture
async def broker(make_broker: MakeBroker) -> AsyncGenerator[Broker]:
    async with serving(make_broker) as broker:
        yield broker


@pytest.fixture
def master(broker: Broker) -> Master:
    assert broker.master is not None
    return broker.master


def put(broker: Broker, count: int, size_bytes: int = 20_000) -> int:
    """Store messages; return where the log ends then."""
    peer = Peer(broker)
    for _ in range(count):
        assert peer.put("T", bytes(size_bytes), i="WAIT\x01false").code == ResponseCode.SUCCESS
    broker.worker.end_step()
    return broker.store.commit_log.max_offset


def log_bytes(broker: Broker, begin: int, end: int) -> bytes:
    parts = [bytes(file.view) for file in broker.store.commit_log.files.files]
    return b"".join(parts)[begin:end]


@pytest.mark.parametrize("begin", [0, 7, FILE_BYTES - 3, FILE_BYTES, 2 * FILE_BYTES + 1234])
async def test_frames_bring_the_log_from_the_report_on(broker: Broker, master: Master, begin: int) -> None:
    """Source: store.md 9.3."""
    end = put(broker, 30)
    assert end > 2 * FILE_BYTES + 1234
    slave = PlayedSlave(master)
    slave.report(begin)
    start = begin or end - end % FILE_BYTES
    assert await slave.until_end(end) == log_bytes(broker, start, end)
    following = put(broker, 20)
    assert await slave.until_end(following) == log_bytes(broker, start, following)
    for offset, data in slave.frames:
        assert 0 < len(data) <= TRANSFER_BYTES
        assert offset // FILE_BYTES == (offset + len(data) - 1) // FILE_BYTES


async def test_slave_of_an_empty_log_gets_all(broker: Broker, master: Master) -> None:
    slave = PlayedSlave(master)
    slave.report(0)
    await wait_all_tasks_blocked()
    assert await slave.until_end(put(broker, 1)) == log_bytes(broker, 0, broker.store.commit_log.max_offset)


async def test_heartbeats_come_at_join_and_after_five_seconds(
    broker: Broker, master: Master, mock_clock: MockClock
) -> None:
    end = put(broker, 1)
    slave, mute = PlayedSlave(master), PlayedSlave(master)
    slave.report(end)
    for number in range(3):
        await slave.until(lambda number=number: len(slave.frames) > number)  # type: ignore[misc]
        await wait_all_tasks_blocked()
        slave.read()
        assert len(slave.frames) == number + 1
        mock_clock.jump(5.01)
        slave.report(end)
    assert slave.frames == [(end, b"")] * 3
    mute.read()
    assert mute.frames == []


@pytest.mark.parametrize("has_reported", [True, False])
async def test_silent_slave_is_closed(
    broker: Broker, master: Master, mock_clock: MockClock, has_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    slave = PlayedSlave(master)
    if has_reported:
        slave.report(0)
    await slave.until(lambda: any((each.sent_offset == 0) == has_reported for each in master.slaves))
    for seconds in (19, 2.1):
        await wait_all_tasks_blocked()
        assert len(master.slaves) == 1
        mock_clock.jump(seconds)
    await slave.until_closed()
    assert master.slaves == []
    assert ("slave left" in caplog.text) == has_reported


@pytest.mark.parametrize("reports", [(-1,), (1,), (0, 1), (0, -5), (2**62,)])
async def test_impossible_report_closes_the_connection(
    broker: Broker, master: Master, reports: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    slave = PlayedSlave(master)
    for report in reports:
        slave.report(report)
        await wait_all_tasks_blocked()
    await slave.until_closed()
    assert "slave refused" in caplog.text
    assert master.slaves == []


async def test_deleted_messages_cannot_be_copied(
    broker: Broker, master: Master, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    end = put(broker, 30)
    slave, slow = PlayedSlave(master), PlayedSlave(master)
    slow.report(FILE_BYTES - 1)
    await slow.until_end(end)
    slave.report(1)
    await slave.until_end(end)
    log = broker.store.commit_log
    assert log.needed_from == 1
    slave.report(FILE_BYTES + 2)
    await slave.until(lambda: log.needed_from == FILE_BYTES - 1)
    log.files.remove_oldest().release()
    await wait_all_tasks_blocked()
    mock_clock.jump(1.1)
    await slow.until_closed()
    assert f"its log ends at {FILE_BYTES - 1}, this one begins at {FILE_BYTES}" in caplog.text
    assert log.needed_from == FILE_BYTES + 2
    slave.socket.close()
    await slave.until(lambda: not master.slaves)
    assert log.needed_from == NOT_NEEDED
    late = PlayedSlave(master)
    late.report(FILE_BYTES - 1)
    await late.until_closed()


async def test_reports_of_slaves_are_shown(broker: Broker, master: Master, mock_clock: MockClock) -> None:
    end = put(broker, 10)
    slave = PlayedSlave(master)
    slave.report(100)
    await slave.until_end(end)
    assert master.has_unfinished
    slave.report(200, 300)
    await slave.until(lambda: any(each.acknowledged_offset == 300 for each in master.slaves))
    mock_clock.jump(4)
    [state] = master.slaves
    host, port = slave.socket.getsockname()
    assert state == (f"{host}:{port}", 300, end - 300, 4.0, 4.0, end, end - 100)
    assert master.sent_bytes == end - 100
    slave.report(end)
    await slave.until(lambda: not master.has_unfinished)


async def test_slave_that_does_not_read_holds_up_none(broker: Broker, master: Master) -> None:
    stuck, slave = PlayedSlave(master, buffer_bytes=4096), PlayedSlave(master)
    for each in (stuck, slave):
        each.report(0)
    await slave.until(lambda: all(each.sent_offset == 0 for each in master.slaves))
    begin = end = 0
    for _ in range(40):
        end = put(broker, 10)
        assert await slave.until_end(end) == log_bytes(broker, begin, end)
        slave.frames.clear()
        begin = end
    sent = min(each.sent_offset for each in master.slaves)
    assert sent < end
    assert await stuck.until_end(end) == log_bytes(broker, 0, end)


async def test_number_of_slaves_is_limited(broker: Broker, master: Master, caplog: pytest.LogCaptureFixture) -> None:
    silent = PlayedSlave(master)  # it holds no place that others need
    await silent.until(lambda: len(master.slaves) == 1)
    slaves = [PlayedSlave(master) for _ in range(MAX_SLAVES)]
    for slave in slaves:
        slave.report(0)
        await slave.until(lambda slave=slave: bool(slave.frames))  # type: ignore[misc]
    await silent.until_closed()
    another = PlayedSlave(master)
    await another.until_closed()
    assert "16 are connected already" in caplog.text
    slaves[0].socket.close()
    await another.until(lambda: len(master.slaves) < MAX_SLAVES)
    assert broker.worker.feed_slaves is not None
    for slave in slaves:
        slave.socket.close()
    await another.until(lambda: not master.slaves)
    assert broker.worker.feed_slaves is None


@pytest.mark.parametrize(("network", "is_served"), [("127.0.0.0/8", True), ("10.0.0.0/8", False)])
async def test_slaves_come_from_listed_networks(
    make_broker: MakeBroker, network: str, is_served: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(make_broker, brokers_from=parse_networks(network), local_peers=False) as broker:
        assert broker.master is not None
        master, slave = broker.master, PlayedSlave(broker.master)
        if is_served:
            await slave.until(lambda: len(master.slaves) == 1)
        else:
            await slave.until_closed()
            assert "its address is not in --brokers-from" in caplog.text


async def test_old_messages_are_read_before_they_are_sent(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was opened again: memory may lack what an earlier process wrote."""
    end = put(make_broker(), 30)
    async with serving(make_broker) as broker:
        assert broker.master is not None
        monkeypatch.setattr(broker.store.file_system, "is_resident", lambda *_: False)
        slave = PlayedSlave(broker.master)
        slave.report(1)
        assert await slave.until_end(end) == log_bytes(broker, 1, end)


@pytest.mark.parametrize(("missing_bytes", "code"), [(0, ResponseCode.SUCCESS), (1, ResponseCode.FLUSH_SLAVE_TIMEOUT)])
async def test_report_answers_senders(
    make_broker: MakeBroker, mock_clock: MockClock, missing_bytes: int, code: int
) -> None:
    """Source: store.md 9.4."""
    async with serving(make_broker, role="sync-master") as broker:
        master = broker.master
        assert master is not None
        assert broker.group_commit is not None
        end = put(broker, 1)
        slave, other = PlayedSlave(master), PlayedSlave(master)
        slave.report(end)
        other.report(end)
        for each in (slave, other):
            await each.until(lambda each=each: bool(each.frames))  # type: ignore[misc]
        slave.frames.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.group_commit.run)
            await wait_all_tasks_blocked()
            peer = Peer(broker)
            assert peer.ask(310, {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}) is None
            broker.worker.end_step()
            while not slave.frames:  # sent in this step
                slave.read()
            end = broker.store.commit_log.max_offset
            await slave.until_end(end)
            slave.report(end - missing_bytes)
            await wait_all_tasks_blocked()
            if missing_bytes:
                assert peer.sent == []
                assert peer.get(RequestCode.UPDATE_BROKER_CONFIG, body=b"slaveTimeout=7000").code == 0
                mock_clock.jump(6.9)
                await wait_all_tasks_blocked()
                assert peer.sent == []
                mock_clock.jump(0.5)
            await slave.until(lambda: bool(peer.sent))
            nursery.cancel_scope.cancel()
        assert [each.code for each in peer.sent] == [code]
        slave.socket.close()
        other.socket.close()
        await slave.until(lambda: not master.slaves)
        assert peer.put("T").code == ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize("role", ["sync-master", "async-master"])
async def test_messages_that_come_meanwhile_go_together(
    make_broker: MakeBroker, mock_clock: MockClock, role: str
) -> None:
    async with serving(make_broker, role=role) as broker:
        assert broker.master is not None
        end = put(broker, 1)
        slave = PlayedSlave(broker.master)
        slave.report(end)
        await slave.until(lambda: bool(slave.frames))
        slave.frames.clear()

        def send() -> int:
            end = put(broker, 1, 100)
            broker.worker.end_step()
            slave.read()
            return end

        first = send()
        assert await slave.until_end(first)
        slave.frames.clear()
        send()
        end = send()
        await wait_all_tasks_blocked()
        slave.read()
        assert slave.frames == []
        if role == "sync-master":
            slave.report(first)
        else:
            mock_clock.jump(0.01)
        await slave.until_end(end)
        assert [offset for offset, _ in slave.frames] == [first]
