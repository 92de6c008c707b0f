import errno
from pathlib import Path
from threading import Event, Thread, Timer

import pytest

from tests.unit.storage.making import FaultyFileSystem, StoreMaker, put
from triomq.protocol.errors import StoreError
from triomq.storage.config import Durability
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import load_checkpoint
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.get_message import GetMessageStatus


def checkpoint(store: MessageStore) -> tuple[int, ...]:
    return tuple(load_checkpoint(FileSystem(), store.config.root / "checkpoint"))[:3]


def synced(faulty: FaultyFileSystem, root: Path) -> list[str]:
    return [str(path.relative_to(root)) for name, path in faulty.calls if name in {"sync_file", "sync_directory"}]


def test_full_file_is_flushed_despite_few_dirty_pages(store: MessageStore) -> None:
    put(store, body=bytes(10_000))
    assert store.flush_plan(least_pages=4) is None
    assert store.flush_plan(least_pages=2) is not None
    assert store.flush_plan(least_pages=0) is not None
    for _ in range(3):
        put(store, body=bytes(15_000))
    store.flush()
    put(store, body=bytes(1000))
    assert store.flush_plan(least_pages=100) is None
    put(store, body=bytes(15_000))
    assert store.commit_log.max_offset // 65536 == 1
    assert store.flush_plan(least_pages=100) is not None


def test_queue_flush_counts_dirty_pages(maker: StoreMaker) -> None:
    store = maker(consume_queue_file_size_bytes=20_000)
    for _ in range(500):
        put(store)
    assert store.flush_consume_queues_plan(least_pages=3) is None
    assert store.flush_consume_queues_plan(least_pages=2) is not None
    for _ in range(501):
        put(store)
    assert store.flush_consume_queues_plan(least_pages=100) is not None


def test_full_queue_flush_writes_checkpoint_of_flushed_data(maker: StoreMaker) -> None:
    store = maker()
    first = put(store).store_timestamp
    store.flush()
    maker.clock.now_ms += 5
    second = put(store).store_timestamp
    plan = store.flush_consume_queues_plan()
    maker.clock.now_ms += 5
    put(store)
    assert plan is not None
    plan.run()
    store.flush_done(plan)
    assert checkpoint(store) == (first, second, 0)  # the log was flushed before the second message


def test_thorough_queue_flush_without_news(store: MessageStore) -> None:
    put(store)
    store.flush()
    assert store.flush_consume_queues_plan() is None


def test_flushed_log_is_reason_for_new_checkpoint(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    queues = store.flush_consume_queues_plan()
    assert queues is not None
    queues.run()
    store.flush_done(queues)
    log = store.flush_plan()
    assert log is not None
    log.run()
    store.flush_done(log)
    again = store.flush_consume_queues_plan()
    assert again is not None
    again.run()
    store.flush_done(again)
    assert checkpoint(store) == (maker.clock.now_ms, maker.clock.now_ms, 0)


def test_partial_flush_leaves_checkpoint(store: MessageStore) -> None:
    for _ in range(60):
        put(store)
    plan = store.flush_consume_queues_plan(least_pages=1)
    assert plan is not None
    plan.run()
    store.flush_done(plan)
    assert checkpoint(store) == (0, 0, 0)


@pytest.mark.parametrize("failing", ["sync_file", "sync_directory"])
def test_after_failed_sync_nothing_is_acknowledged_any_more(
    maker: StoreMaker, faulty: FaultyFileSystem, failing: str
) -> None:
    store = maker(file_system=faulty)
    place = put(store)
    plan = store.flush_plan()
    faulty.code = errno.EIO
    faulty.fails = lambda number, name, path: name == failing
    assert plan is not None
    with pytest.raises(StoreError, match=r"cannot sync .*Input/output error"):
        plan.run()
    faulty.fails = lambda number, name, path: False
    with pytest.raises(ValueError, match="failed"):
        store.flush_done(plan)
    for _ in range(2):
        with pytest.raises(StoreError, match="takes no messages since its disk failed"):
            put(store)
    with pytest.raises(StoreError, match="takes no messages"):
        store.append([])
    assert store.commit_log.look_message(place.physical_offset) is not None
    assert "takes no messages" in str(store.refused.error())
    store.close()
    assert (store.config.root / "abort").exists()


def test_flush_planned_before_failed_flush_does_not_succeed(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    """The kernel reports the failed write to only one of them."""
    store = maker(file_system=faulty, durability=Durability.SYNC)
    put(store)
    first, second = store.flush_plan(), store.flush_plan()
    assert first is not None
    assert second is not None
    faulty.code = errno.EIO
    failing, going_on = Event(), Event()

    def fails(number: int, name: str, path: Path) -> bool:
        if name == "sync_file" and not failing.is_set():
            failing.set()
            going_on.wait(10)
            return True
        return False

    def run_first() -> None:
        with pytest.raises(StoreError, match="cannot sync"):
            first.run()

    faulty.fails = fails
    thread = Thread(target=run_first)
    thread.start()
    failing.wait(10)
    Timer(0.1, going_on.set).start()
    with pytest.raises(StoreError, match=r"an earlier flush has failed.*Input/output error"):
        second.run()
    thread.join()
    with pytest.raises(ValueError, match="failed"):
        store.flush_done(second)
    assert store.commit_log.flushed_offset == 0


def test_sync_that_fails_for_lack_of_rights_failure(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    """As on a network file system whose server rejects the data: it reports that once, and drops the data."""
    store = maker(file_system=faulty)
    put(store)
    faulty.code = errno.EACCES
    faulty.fails = lambda number, name, path: name == "sync_file"
    with pytest.raises(StoreError, match=r"cannot sync .*Permission denied"):
        store.flush()
    faulty.fails = lambda number, name, path: False
    assert store.has_failed
    with pytest.raises(StoreError, match="takes no messages since its disk failed"):
        put(store)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("failing", ["open_file", "sync_directory"])
def test_later_flush_recovers_when_files_could_not_opened(
    maker: StoreMaker, faulty: FaultyFileSystem, code: int, failing: str
) -> None:
    store = maker(file_system=faulty)
    put(store)
    store.queue("T", 0).files.files[0].unmap()
    faulty.code = code
    faulty.fails = lambda number, name, path: name == failing
    plan = store.flush_consume_queues_plan()
    assert plan is not None
    with pytest.raises(StoreError, match="cannot"):
        plan.run()
    faulty.fails = lambda number, name, path: False
    assert put(store).queue_offset == 1
    store.flush()
    assert store.commit_log.flushed_offset == store.commit_log.max_offset
    assert store.queue("T", 0).flushed_position == 40
    store.close()
    assert not (store.config.root / "abort").exists()


def test_topic_deleted_while_its_flush_runs_spoils_neither(store: MessageStore) -> None:
    put(store, "T")
    put(store, "U")
    plan = store.flush_consume_queues_plan()
    assert plan is not None
    store.delete_topic("T")
    plan.run()
    store.flush_done(plan)
    put(store, "T")
    assert store.queue("T", 0).flushed_position == 0
    assert store.queue("U", 0).flushed_position == 20
    assert store.flush_consume_queues_plan(least_pages=0) is not None


def test_store_closed_while_flush_runs_spoils_neither(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    log, queues = store.flush_plan(), store.flush_consume_queues_plan()
    assert log is not None
    assert queues is not None
    store.close()
    store.open()
    for plan in (log, queues):
        plan.run()
        store.flush_done(plan)
    assert store.commit_log.flushed_offset == store.commit_log.max_offset
    put(store)
    assert store.commit_log.flushed_offset < store.commit_log.max_offset


def test_reads_at_unflushed_offsets_wait(maker: StoreMaker) -> None:
    """A sender that does not wait for the flush knows these offsets."""
    store = maker(durability=Durability.SYNC)

    def read(queue_offset: int) -> tuple[GetMessageStatus, int]:
        return store.reader.get_message(("T", 0), queue_offset, 32)[:2]

    for _ in range(2):
        put(store, "T")
    assert [*map(read, (1, 2))] == [(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset) for offset in (1, 2)]
    assert read(3) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)
    store.flush()
    for _ in range(2):
        put(store, "T")
    assert [*map(read, (3, 4))] == [(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset) for offset in (3, 4)]
    assert read(5) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 2)


def test_many_queues_are_synced_together_but_not_log(
    maker: StoreMaker, faulty: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triomq.storage.flush._MANY", 5)
    store = maker(file_system=faulty)
    root = store.config.root
    for topic in ("T", "U", "V"):
        put(store, topic)
    store.delete_topic("V")
    put(store, "V", queue_id=1)
    plan = store.flush_consume_queues_plan()
    assert plan is not None
    store.delete_topic("U")  # a queue deleted meanwhile is no error
    faulty.calls.clear()
    plan.run()
    store.flush_done(plan)
    assert synced(faulty, root) == []
    together = {str(path.relative_to(root)) for name, path in faulty.calls if name == "sync_all"}
    assert {f"consumequeue/{name}" for name in ("T/0/" + "0" * 20, "T/0", "T", "U", "V/1")} < together
    faulty.calls.clear()
    store.flush()
    assert synced(faulty, root) == ["commitlog/" + "0" * 20, "commitlog", "."]
    put(store, "W")
    put(store, "X")
    faulty.fails = lambda number, name, path: name == "sync_all"
    with pytest.raises(StoreError, match="cannot sync"):
        store.close()


def test_deleted_topic_drops_messages_that_wait_for_flush(maker: StoreMaker) -> None:
    store = maker(durability=Durability.SYNC)
    put(store, "T")
    put(store, "U")
    store.delete_topic("T")
    assert put(store, "T").queue_offset == 0
    store.flush()
    assert [store.reader.max_offset_in_queue(topic, 0) for topic in "TU"] == [1, 1]
