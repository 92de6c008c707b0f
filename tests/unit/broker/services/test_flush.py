"""Group commit: which senders share a flush, how long they wait, and the answer after a timeout."""

import errno
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.commands import make_command
from tests.integration.broker_wire import until
from tests.unit.broker.processors.test_client import heartbeat
from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.broker.server import Broker
from triomq.broker.services.flush import flush_periodically
from triomq.broker.services.group_commit import FlushThread
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import StoreError
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.record import decode_record
from triomq.protocol.requests.messages import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability
from triomq.storage.files.file_system import translated
from triomq.storage.flush import FlushPlan

SEND = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_795_000_000_000, "h": 0}
HALF = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01id"


class Disk:
    """Lets each flush wait until the test ends it, after ``seconds`` of trio's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: MockClock) -> None:
        self._clock = clock
        self._begun = 0
        self._may_end = threading.Semaphore(0)
        run = FlushPlan.run

        def slow(plan: FlushPlan) -> None:
            self._begun += 1
            assert self._may_end.acquire(timeout=30)
            run(plan)

        monkeypatch.setattr(FlushPlan, "run", slow)

    @property
    def flushes(self) -> int:
        """How many have begun."""
        return self._begun

    async def flush(self, number: int, *, seconds: float = 0.0) -> None:
        """Wait for the beginning of a flush, counted from 1, and end it."""
        await until(lambda: self._begun == number)
        self._clock.jump(seconds)
        self._may_end.release()


@pytest.fixture
def broker(make_broker: MakeBroker) -> Broker:
    return make_broker({"durability": Durability.SYNC})


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock) -> Disk:
    """A test must ask for ``mock_clock`` itself too: else it runs by the real clock."""
    return Disk(monkeypatch, mock_clock)


@asynccontextmanager
async def committing(broker: Broker) -> AsyncGenerator[None]:
    assert broker.group_commit is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.group_commit.run)
        yield
        nursery.cancel_scope.cancel()


def send(*peers: Peer) -> None:
    """Store a message for each of them; none is answered yet."""
    for peer in peers:
        peer.sent.clear()
        assert peer.ask(RequestCode.SEND_MESSAGE_V2, SEND, b"body") is None


async def answered(*peers: Peer) -> None:
    await until(lambda: all(peer.sent for peer in peers))
    assert [response.code for peer in peers for response in peer.sent] == [ResponseCode.SUCCESS] * len(peers)


async def flushed_together(disk: Disk, first: Peer, second: Peer, *, seconds: float) -> None:
    """Let two senders be answered by one flush that takes so long."""
    send(first, second)
    await disk.flush(1, seconds=seconds)
    await answered(first, second)


async def test_sender_during_a_flush_waits_for_the_next(
    peer: Peer, another_peer: Peer, disk: Disk, mock_clock: MockClock
) -> None:
    async with committing(peer.broker):
        send(peer)
        await until(lambda: disk.flushes == 1)
        send(another_peer)
        await disk.flush(1)
        await answered(peer)
        assert another_peer.sent == []
        await disk.flush(2)
        await answered(another_peer)


async def test_senders_answered_together_are_flushed_together_again(
    peer: Peer, another_peer: Peer, disk: Disk, mock_clock: MockClock
) -> None:
    async with committing(peer.broker):
        await flushed_together(disk, peer, another_peer, seconds=4)
        send(peer)
        await wait_all_tasks_blocked()
        send(another_peer)
        await disk.flush(2)
        await answered(peer, another_peer)
        assert disk.flushes == 2


async def test_absent_sender_delays_flush_at_most_one_eighth(
    peer: Peer, another_peer: Peer, disk: Disk, mock_clock: MockClock
) -> None:
    async with committing(peer.broker):
        await flushed_together(disk, peer, another_peer, seconds=4)
        send(peer)
        await wait_all_tasks_blocked()
        mock_clock.jump(0.51)
        await disk.flush(2)
        await answered(peer)
        send(peer)  # he is alone now, and known to be
        await disk.flush(3)
        await answered(peer)


async def test_flush_timeout_is_reported_for_each_message(peer: Peer, disk: Disk, mock_clock: MockClock) -> None:
    """Source: store.md 5.9."""
    peer.broker.topics.create_by_sending("T", "TBW102", 4)
    fields = {name: str(value) for name, value in {**SEND, "i": "TAGS\x01A", "n": "broker-a"}.items()}
    run = [RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque, ext_fields=fields) for opaque in (7, 8)]
    async with committing(peer.broker):
        next(peer.broker.pipeline.commands(peer.as_connection, iter([each.encode()[4:] for each in run])), None)
        await until(lambda: disk.flushes == 1)
        await wait_all_tasks_blocked()  # also who watches the deadlines: a sleep that begins after the jump never ends
        assert peer.sent == []
        mock_clock.jump(peer.broker.config.sync_flush_timeout_s + 0.3)
        await until(lambda: len(peer.sent) == 2)
        assert [each.opaque for each in peer.sent] == [7, 8]
        assert {each.code for each in peer.sent} == {ResponseCode.FLUSH_DISK_TIMEOUT}
        assert [each.ext_fields["queueOffset"] for each in peer.sent] == ["0", "1"]
        await disk.flush(1)
    assert len(peer.sent) == 2


async def place_from_check(peer: Peer, disk: Disk, clock: Clock) -> tuple[int, int]:
    """Return commit log and queue offset of a half message before its flush."""
    peer.ask(RequestCode.SEND_MESSAGE_V2, SEND | {"i": HALF}, b"half")
    await disk.flush(1)
    await answered(peer)
    clock.now_ms += 60_000
    await peer.broker.transactions._turn()
    check = CheckTransactionStateRequestHeader.decode(peer.sent.pop().ext_fields)
    return check.commit_log_offset, check.tran_state_table_offset


async def place_from_send(peer: Peer, disk: Disk, clock: Clock) -> tuple[int, int]:
    fields = peer.put("T", b"half", i=f"{HALF}\x02WAIT\x01false").ext_fields
    await until(lambda: disk.flushes == 1)
    return parse_offset_message_id(fields["msgId"])[2], int(fields["queueOffset"])


@pytest.mark.parametrize("source", [place_from_check, place_from_send])
@pytest.mark.parametrize("way", ["question", "oneway", "plain"])
async def test_place_known_before_its_flush_can_be_used(
    peer: Peer,
    another_peer: Peer,
    disk: Disk,
    mock_clock: MockClock,
    clock: Clock,
    source: Callable[[Peer, Disk, Clock], Awaitable[tuple[int, int]]],
    way: str,
) -> None:
    heartbeat(peer, "c", producers=("P",), topics=())
    async with committing(peer.broker):
        place, queue_offset = await source(peer, disk, clock)
        peer.sent.clear()
        header = EndTransactionRequestHeader("P", QueueOffset(queue_offset), PhysicalOffset(place), 8, msg_id="id")
        command = make_command(RequestCode.END_TRANSACTION, 1, 0 if way == "question" else 2, header.encode())
        if way == "plain":
            peer.read(command)
        else:
            peer.serve(command)
        assert another_peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place}) is None
        assert another_peer.pull("T", 0, sysFlag=6) is None
        assert peer.sent == []
        begun = disk.flushes
        await disk.flush(begun)
        await disk.flush(begun + 1)
        await until(lambda: len(another_peer.sent) == 2)
    assert {answer.code for answer in another_peer.sent + peer.sent} == {ResponseCode.SUCCESS}
    assert len(peer.sent) == (way == "question")
    assert {decode_record(bytes(answer.body)).stored_body for answer in another_peer.sent} == {b"half"}


class Lockout:
    """While it lasts, files of the store cannot be opened."""

    lasts = False


@pytest.fixture
def locked_out(monkeypatch: pytest.MonkeyPatch) -> Lockout:
    lockout, run = Lockout(), FlushPlan.run

    def refuse(plan: FlushPlan) -> None:
        if lockout.lasts:
            with translated("open", Path("/store/file")):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        run(plan)

    monkeypatch.setattr(FlushPlan, "run", refuse)
    return lockout


async def test_sender_is_answered_once_files_can_be_opened(
    peer: Peer, another_peer: Peer, locked_out: Lockout, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    locked_out.lasts = True
    async with committing(peer.broker):
        send(peer)
        await until(lambda: "not flushed for now: cannot open" in caplog.text)
        await wait_all_tasks_blocked()
        assert peer.sent == []
        assert another_peer.pull("T", 0, sysFlag=6) is None
        locked_out.lasts = False
        mock_clock.jump(0.26)
        await answered(peer, another_peer)


async def test_periodic_flush_resumes_once_files_can_be_opened(
    make_broker: MakeBroker, locked_out: Lockout, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker({"flush_least_pages": 0})
    assert Peer(broker).put("T").code == ResponseCode.SUCCESS
    log = broker.store.commit_log
    locked_out.lasts = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(flush_periodically, broker.store, broker.worker, broker.statistics.flushes, of_queues=False)
        )
        await wait_all_tasks_blocked()
        mock_clock.jump(0.51)
        await until(lambda: "not flushed for now: cannot open" in caplog.text)
        await wait_all_tasks_blocked()
        assert log.flushed_offset == 0
        locked_out.lasts = False
        mock_clock.jump(0.51)
        await until(lambda: log.flushed_offset == log.max_offset)
        nursery.cancel_scope.cancel()


async def test_error_is_raised_once() -> None:
    def fail() -> None:
        raise StoreError("the disk is gone")

    with FlushThread() as thread:
        with pytest.raises(StoreError, match="the disk is gone"):
            await thread.run(fail)
        await thread.run(lambda: None)


async def test_cancelled_run_waits_for_its_action() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        assert go_on.wait(10)
        ended.append(True)

    with FlushThread() as thread:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run, slow)
            await trio.to_thread.run_sync(begun.wait, 10)
            nursery.cancel_scope.cancel()
            go_on.set()
        assert ended == [True]
