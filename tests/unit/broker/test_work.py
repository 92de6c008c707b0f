"""Long work takes turns, and only worker threads wait for the disk."""

import mmap
import threading
from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.commands import make_command
from tests.unit.broker.recording import Clock, MakeBroker, Peer, make_steps_short
from triomq.broker.network.connection import Connection
from triomq.broker.server import Broker
from triomq.broker.work import Signal
from triomq.protocol.bodies.client import ConsumerData
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.record import decode_records
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.files.file_system import FileSystem, OpenFile
from triomq.storage.reading.cold_read import PAUSE, Work


class Disk:
    """Files are in memory after they were read; reading waits for the event ``may_read``."""

    def __init__(self) -> None:
        self.is_read = False
        self.forgets = False
        self.may_read = threading.Event()
        self.error: Exception | None = None
        self.bad_path = ""  # where the error is raised
        self.threads: set[int] = set()
        self.asked: list[tuple[int, int]] = []
        self.reads = 0

    def is_resident(self, files: FileSystem, map_: mmap.mmap, start: int, end: int) -> bool:
        self.asked.append((start, end))
        return self.is_read and not self.forgets

    def read(self, files: FileSystem, file: OpenFile, start: int, end: int) -> None:
        self.threads.add(threading.get_ident())
        assert self.may_read.wait(10)
        self.reads += 1
        if self.error is not None and self.bad_path in str(file.path):
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
        peer.put("T", b"m%d" % number, i=f"KEYS\x01k{number}")
    peer.put("W", b"level", i="DELAY\x011")
    peer.put("W", b"time", i="TIMER_DELAY_SEC\x0160")
    first.save_tables()
    return make_broker()


def received(peer: Peer) -> list[bytes]:
    return [message.stored_body for command in peer.sent for message in decode_records(command.body)]


async def test_cold_pull_does_not_delay_others(broker: Broker, disk: Disk, peer: Peer) -> None:
    async with trio.open_nursery() as broker.worker.nursery:
        assert peer.pull("T", 4) is None
        await trio.testing.wait_all_tasks_blocked()
        assert broker.worker.waiting == 1
        assert peer.put("T", b"new").code == ResponseCode.SUCCESS
        newest = peer.pull("T", 10)
        assert newest is not None
        assert [message.stored_body for message in decode_records(newest.body)] == [b"new"]
        peer.sent.clear()
        disk.may_read.set()
    assert received(peer) == [b"m%d" % number for number in range(4, 10)] + [b"new"]
    assert (broker.worker.waiting, broker.worker.served) == (0, 1)
    assert threading.get_ident() not in disk.threads
    assert peer.pull("T", 4) is not None  # it is in memory now


async def test_cold_pull_of_slow_reader_returns_nothing(broker: Broker, disk: Disk, peer: Peer) -> None:
    async with trio.open_nursery() as broker.worker.nursery:
        assert peer.pull("T", 4) is None
        peer.unread_bytes = broker.config.unread_high_bytes + 1
        disk.may_read.set()
    (response,) = peer.sent
    assert (response.code, response.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
    assert response.ext_fields["nextBeginOffset"] == "4"


async def test_non_reading_peer_triggers_no_further_lookups(broker: Broker, disk: Disk, peer: Peer) -> None:
    async with trio.open_nursery() as broker.worker.nursery:
        assert peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}) is None
        peer.unread_bytes = broker.config.unread_high_bytes + 1
        disk.may_read.set()
    (response,) = peer.sent
    assert (response.code, response.body) == (ResponseCode.SYSTEM_BUSY, b"")
    peer.unread_bytes -= 1
    assert peer.get(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}).code == ResponseCode.SUCCESS


REQUESTS: dict[int, dict[str, object]] = {
    RequestCode.VIEW_MESSAGE_BY_ID: {"offset": 0},
    RequestCode.QUERY_MESSAGE: {"topic": "T", "key": "k3", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 2**62},
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {"topic": "T", "queueId": 0, "timestamp": 1},
    RequestCode.GET_EARLIEST_MSG_STORETIME: {"topic": "T", "queueId": 0},
    RequestCode.QUERY_CONSUMER_OFFSET: {"topic": "T", "queueId": 0, "consumerGroup": "new"},
    RequestCode.QUERY_CONSUME_QUEUE: {"topic": "T", "queueId": 0, "index": 2, "count": 3},
    RequestCode.GET_TOPIC_STATS_INFO: {"topic": "T"},
    RequestCode.GET_CONSUME_STATS: {"topic": "T", "consumerGroup": "G"},
    RequestCode.GET_BROKER_RUNTIME_INFO: {},
    RequestCode.CONSUMER_SEND_MSG_BACK: {"offset": 0, "group": "G", "delayLevel": 1},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {"topic": "T", "group": "G", "timestamp": 1, "isForce": "true"},
}


@pytest.mark.parametrize("code", REQUESTS)
async def test_cold_lookup_is_answered_later_with_same_result(
    broker: Broker, disk: Disk, peer: Peer, code: int
) -> None:
    for queue_id in range(4):
        broker.groups.offsets.commit("G", "T", queue_id, 3)
    broker.groups.consumers.heartbeat(peer.as_connection, "client", ConsumerData("G"))
    async with trio.open_nursery() as broker.worker.nursery:
        assert peer.ask(code, REQUESTS[code]) is None
        await trio.testing.wait_all_tasks_blocked()
        assert broker.worker.waiting == 1
        assert peer.put("T", b"new", queue_id=1).code == ResponseCode.SUCCESS
        disk.may_read.set()
    assert threading.get_ident() not in disk.threads
    later = next(command for command in peer.sent if command.flag & CommandFlag.RESPONSE)
    assert later.code == ResponseCode.SUCCESS
    at_once = peer.get(code, REQUESTS[code])
    assert at_once.code == later.code
    if code != RequestCode.GET_BROKER_RUNTIME_INFO:  # its counters have changed
        assert (at_once.body, at_once.ext_fields) == (later.body, later.ext_fields)


async def test_lookup_of_new_messages_waits_for_no_disk(make_broker: MakeBroker, disk: Disk) -> None:
    disk.is_read = True  # units and slots are asked for, which costs little; records are known to be there
    broker = make_broker()
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    peer = Peer(broker)
    peer.put("T", i="KEYS\x01k3")
    disk.asked.clear()
    for code in (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.QUERY_MESSAGE, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
        assert peer.get(code, REQUESTS[code]).code == ResponseCode.SUCCESS
    assert len(disk.asked) < 8
    for number in range(100):
        assert peer.pull("T", number) is not None
        peer.put("T")
    assert broker.worker.served == 0


@pytest.mark.parametrize(
    ("unreadable", "first", "then"),
    [(SCHEDULE_TOPIC, [b"time"], [b"time", b"level"]), (TIMER_TOPIC, [b"level"], [b"level", b"time"])],
)
async def test_unreadable_delayed_messages_do_not_block_others(
    broker: Broker, disk: Disk, clock: Clock, autojump_clock: MockClock, unreadable: str, first: list[bytes],
    then: list[bytes], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    clock.now_ms += 3_600_000
    disk.error, disk.bad_path, disk.forgets = OSError(5, "Input/output error"), unreadable, True
    disk.may_read.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.delayed.run, broker.config.persist_delay_offsets_interval_s)
        while waiting_bodies(broker) != first:  # noqa: ASYNC110  # a real thread reads
            await trio.sleep(0.1)
        reads = disk.reads
        await trio.sleep(2.9)
        assert disk.reads <= reads + 3
        assert waiting_bodies(broker) == first
        assert caplog.text.count("delayed messages cannot be read for now") == 1
        disk.error = None
        while waiting_bodies(broker) != then:  # noqa: ASYNC110  # a real thread reads
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


def waiting_bodies(broker: Broker) -> list[bytes]:
    """What was delivered of the messages that waited."""
    found = broker.store.reader.get_message(("W", 0), 0, 32)
    return [message.stored_body for view in found.buffers for message in decode_records(view)]


async def test_immediate_page_eviction_does_not_block_pull_forever(broker: Broker, disk: Disk, peer: Peer) -> None:
    disk.forgets = True
    disk.may_read.set()
    async with trio.open_nursery() as broker.worker.nursery:
        assert peer.pull("T", 0) is None
    assert len(received(peer)) == 10


@pytest.mark.parametrize(
    ("error", "code", "logged"),
    [
        (OSError(5, "Input/output error"), ResponseCode.SERVICE_NOT_AVAILABLE, "old messages cannot be read"),
        (ValueError("a defect"), ResponseCode.SYSTEM_ERROR, "request failed"),
    ],
)
async def test_failed_read_fails_only_its_pull(
    broker: Broker, disk: Disk, peer: Peer, caplog: pytest.LogCaptureFixture, error: Exception, code: int, logged: str
) -> None:
    disk.error = error
    disk.may_read.set()
    async with trio.open_nursery() as broker.worker.nursery:
        assert peer.pull("T", 0) is None
    (refused,) = peer.sent
    assert refused.code == code
    assert str(error.args[-1]) in str(refused.remark)
    assert logged in caplog.text


async def test_closed_connection_gets_no_answer(broker: Broker, disk: Disk, peer: Peer) -> None:
    async with trio.open_nursery() as broker.worker.nursery:
        assert peer.pull("T", 0) is None
        peer.closed = True
        disk.may_read.set()
    assert peer.sent == []


async def test_too_many_waiting_pulls_are_refused(broker: Broker, disk: Disk, peer: Peer) -> None:
    before = broker.context.budget.reserved_bytes = broker.context.budget.limit_bytes // 2 - 3 * 9000
    async with trio.open_nursery() as broker.worker.nursery:
        for _ in range(3):
            assert peer.pull("T", 0) is None
        refused = peer.pull("T", 0)
        assert refused is not None
        assert refused.code == ResponseCode.SYSTEM_BUSY
        disk.may_read.set()
    assert len(received(peer)) == 30
    assert broker.context.budget.reserved_bytes == before


async def test_long_requests_take_turns(broker: Broker, peer: Peer, another_peer: Peer) -> None:
    """However many a peer sends, another one's is served between them, and all sockets are read before each step."""
    make_steps_short(broker)
    steps: list[str] = []
    broker.worker.read_ready = lambda: steps.append("read")

    def work(connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        for _ in range(5):
            steps.append(connection.peer)
            yield PAUSE
        return command.reply()

    async with trio.open_nursery() as broker.worker.nursery:
        for number, each in enumerate((peer, peer, another_peer)):
            command = make_command(1, number)
            done = work(each.as_connection, command)
            assert broker.worker.answer(each.as_connection, command, done, only_reads=True) is None
        steps.clear()
    first = steps[1:6:2]
    assert sorted(first) == sorted([peer.peer, peer.peer, another_peer.peer])
    assert steps[:24] == [each for name in first * 4 for each in ("read", name)]
    assert [len(each.sent) for each in (peer, another_peer)] == [2, 1]


async def test_peers_do_not_delay_urgent_work(broker: Broker, peer: Peer) -> None:
    make_steps_short(broker)
    steps: list[str] = []

    def work(name: str) -> Work[None]:
        for _ in range(3):
            steps.append(name)
            yield PAUSE

    async with trio.open_nursery() as nursery:
        for _ in range(9):
            nursery.start_soon(broker.worker.run, work("peer"))
        nursery.start_soon(partial(broker.worker.run, work("urgent"), urgent=True))
    assert steps.index("urgent") < 6
    assert len(steps) - 1 - steps[::-1].index("urgent") < 9


@pytest.mark.parametrize("only_reads", [True, False])
async def test_departed_peer_ends_work_that_only_reads(broker: Broker, peer: Peer, only_reads: bool) -> None:
    """And a one-way request does not begin it; but other work runs to its end."""
    make_steps_short(broker)
    steps: list[int] = []

    def work(connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        for _ in range(3):
            steps.append(command.opaque)
            yield PAUSE
        return command.reply()

    def serve(command: RemotingCommand) -> RemotingCommand | None:
        done = work(peer.as_connection, command)
        return broker.worker.answer(peer.as_connection, command, done, only_reads=only_reads)

    async with trio.open_nursery() as broker.worker.nursery:
        assert serve(make_command(1, 1, CommandFlag.ONEWAY)) is None
        assert serve(make_command(1, 2)) is None
        peer.closed = True
    assert sorted(steps) == ([2] if only_reads else [1, 1, 1, 2, 2, 2])


async def test_signal_wakes_until_cleared(nursery: trio.Nursery) -> None:
    signal = Signal()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await signal.wait()
        woken.append(number)

    signal.set()
    await wait(1)
    signal.clear()
    assert not signal.is_set()
    nursery.start_soon(wait, 2)
    await wait_all_tasks_blocked()
    assert woken == [1]
    signal.set()
    await wait_all_tasks_blocked()
    assert woken == [1, 2]
