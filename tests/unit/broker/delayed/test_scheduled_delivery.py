"""The service that delivers delayed messages: it sleeps, wakes in time, and saves its progress."""

import errno
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.integration.broker_wire import until
from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.broker.delayed import levels
from triomq.broker.server import Broker
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import StoreError
from triomq.protocol.record.record import decode_records
from triomq.storage.config import Durability
from triomq.storage.flush import FlushPlan
from triomq.storage.reading.cold_read import finish

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class TrioClock(Clock):
    """A wall clock that passes with trio's, and can be moved besides."""

    def __call__(self) -> int:
        try:
            return self.now_ms + round(trio.current_time() * 1000)
        except RuntimeError:  # before and after trio runs
            return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return TrioClock()


@asynccontextmanager
async def delivering(broker: Broker) -> AsyncGenerator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.delayed.run, broker.config.persist_delay_offsets_interval_s)
        if broker.group_commit is not None:
            nursery.start_soon(broker.group_commit.run)
        yield
        nursery.cancel_scope.cancel()


def put(peer: Peer, level: int = 1, body: bytes = b"body") -> None:
    assert peer.put("T", body, i=f"DELAY\x01{level}\x02WAIT\x01false").code == ResponseCode.SUCCESS


def count_calls(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the times of the deliveries."""
    calls: list[int] = []
    deliver: Callable[[int], int | None] = broker.delayed.schedule.deliver

    def counted(now_ms: int) -> int | None:
        calls.append(now_ms)
        return deliver(now_ms)

    monkeypatch.setattr(broker.delayed.schedule, "deliver", counted)
    return calls


async def test_held_pull_gets_message_when_due(peer: Peer, another_peer: Peer, autojump_clock: MockClock) -> None:
    """C.2 scenario 14."""
    async with delivering(peer.broker):
        put(peer)
        assert another_peer.pull("T", 0, sysFlag=6) is None
        await trio.sleep(0.999)
        assert another_peer.sent == []
        await trio.sleep(0.002)
        await wait_all_tasks_blocked()
        (response,) = another_peer.sent
        (message,) = decode_records(response.body)
        assert message.stored_body == b"body"
        assert message.store_timestamp == peer.broker.store.now_ms() - 1


async def test_service_sleeps_while_nothing_waits(
    peer: Peer, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(peer.broker, monkeypatch)
    async with delivering(peer.broker):
        await trio.sleep(3600)
        assert len(calls) == 1
        put(peer)
        await trio.sleep(3600)
        assert len(calls) == 3
        assert peer.broker.delayed.delivery.delivered == 1


async def test_task_sleeps_until_first_message_is_due(
    peer: Peer, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(peer.broker, monkeypatch)
    async with delivering(peer.broker):
        for _ in range(100):
            for level in (3, 2, 1):
                put(peer, level)
        await trio.sleep(20)
        assert peer.broker.delayed.delivery.delivered == 300
        assert len(calls) < 25  # it looks at the wall clock once a second besides
        units = [
            unit for queue_id in range(3) for unit in peer.broker.store.reader.queue_units(SCHEDULE, queue_id, 0, 100)
        ]
        times = [finish(peer.broker.store.reader.store_time("T", 0, number)) for number in range(300)]
        assert times == sorted(unit.tags_code for unit in units)


async def test_nearby_due_times_are_delivered_together(
    peer: Peer, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(peer.broker, monkeypatch)
    async with delivering(peer.broker):
        for _ in range(1000):
            put(peer)
            await trio.sleep(0.001)
        began = len(calls)
        await trio.sleep(1.2)
        assert peer.broker.delayed.delivery.delivered == 1000
        assert len(calls) - began < 130
        late = [
            finish(peer.broker.store.reader.store_time("T", 0, n))
            - finish(peer.broker.store.reader.store_time(SCHEDULE, 0, n))
            for n in range(1000)
        ]
        assert min(late) >= 1000
        assert max(late) <= 1011


@pytest.mark.parametrize("limit", ["_MAX_DELIVERED", "_MAX_CALLS"])
async def test_backlog_does_not_block_other_tasks(
    peer: Peer, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(levels, limit, 1)
    for number in range(500):
        put(peer, body=b"%d" % number)
    await trio.sleep(2)
    seen = []
    async with delivering(peer.broker):
        for _ in range(20):
            await trio.lowlevel.checkpoint()
            seen.append(peer.broker.delayed.delivery.delivered)
    assert set(seen) <= {0, 100, 200, 300, 400, 500}
    assert len(set(seen) - {0, 500}) >= 2  # trio may run it twice between two looks, never more often
    assert seen[-1] == 500


async def test_one_turn_delivers_many_batches(peer: Peer, autojump_clock: MockClock) -> None:
    for number in range(500):
        put(peer, body=b"%d" % number)
    await trio.sleep(2)
    async with delivering(peer.broker):
        await wait_all_tasks_blocked()
        assert peer.broker.delayed.delivery.delivered == 500
        pull = peer.pull("T", 499)
        assert pull is not None
        assert decode_records(pull.body)[0].stored_body == b"499"


def saved(broker: Broker) -> bytes:
    path: Path = broker.config.store.root / "config" / "delayOffset.json"
    return b"".join(path.read_bytes().split()) if path.exists() else b""


async def test_offsets_are_saved_after_their_messages(peer: Peer, mock_clock: MockClock) -> None:
    broker = peer.broker
    async with delivering(broker):
        await wait_all_tasks_blocked()
        put(peer)
        await wait_all_tasks_blocked()
        mock_clock.jump(1)
        await until(lambda: broker.delayed.delivery.delivered == 1)
        await wait_all_tasks_blocked()
        assert saved(broker) == b""
        end = broker.store.commit_log.max_offset
        mock_clock.jump(8.9)
        await wait_all_tasks_blocked()
        assert saved(broker) == b""
        mock_clock.jump(0.2)
        await until(lambda: saved(broker) != b"")
        assert saved(broker) == b'{"offsetTable":{"1":1}}'
        assert broker.store.commit_log.flushed_offset == end
        await until(lambda: not broker.delayed.schedule.offsets.is_dirty)
        file = broker.config.store.root / "config" / "delayOffset.json"
        file.unlink()
        mock_clock.jump(20)
        await wait_all_tasks_blocked()
        assert saved(broker) == b"", "what has not changed is not written again"


async def test_disk_losing_messages_stops_service_and_saves_nothing(
    peer: Peer, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_plan: FlushPlan) -> None:
        raise StoreError("sync refused")

    put(peer)
    peer.broker.delayed.schedule.offsets.set(1, 1)
    monkeypatch.setattr(FlushPlan, "run", fail)
    with pytest.RaisesGroup(StoreError, flatten_subgroups=True):
        async with delivering(peer.broker):
            await wait_all_tasks_blocked()
            mock_clock.jump(10.1)
            await trio.sleep_forever()
    assert saved(peer.broker) == b""


async def test_offsets_are_not_saved_ahead_of_unflushed_messages(
    peer: Peer, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_plan: FlushPlan) -> None:
        raise StoreError("cannot open") from PermissionError(errno.EACCES, "Permission denied")

    put(peer)
    offsets = peer.broker.delayed.schedule.offsets
    offsets.set(1, 1)
    async with delivering(peer.broker):
        await wait_all_tasks_blocked()
        with monkeypatch.context() as patch:
            patch.setattr(FlushPlan, "run", fail)
            mock_clock.jump(10.1)
            await until(lambda: "not flushed for now: cannot open" in caplog.text)
            await wait_all_tasks_blocked()
        assert saved(peer.broker) == b""
        assert offsets.is_dirty
        mock_clock.jump(10.1)
        await until(lambda: saved(peer.broker) != b"")


async def test_delivered_message_is_flushed_in_sync_mode(make_broker: MakeBroker, mock_clock: MockClock) -> None:
    broker = make_broker({"durability": Durability.SYNC})
    peer, consumer = Peer(broker), Peer(broker)
    async with delivering(broker):
        put(peer)
        await until(lambda: broker.store.reader.max_offset_in_queue(SCHEDULE, 0) == 1)
        assert consumer.pull("T", 0, sysFlag=6) is None
        mock_clock.jump(1)
        await until(lambda: consumer.sent != [])
        assert len(decode_records(consumer.sent[0].body)) == 1
        assert broker.store.commit_log.flushed_offset == broker.store.commit_log.max_offset
