import errno
import gc
from pathlib import Path

import pytest

from tests.unit.storage.making import HOST, FaultyFileSystem, StoreMaker, bodies, put
from triomq.protocol.errors import IllegalNameError, StoreError
from triomq.storage.append import entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import is_topic_name
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish


@pytest.mark.parametrize("topic", ["", "..", "a/b", "a b", "a\0b", "\u00e4", "x" * 128, "a.b"])
def test_topic_with_path_is_refused(store: MessageStore, topic: str) -> None:
    with pytest.raises(IllegalNameError):
        store.queue(topic, 0)
    assert not is_topic_name(topic)


@pytest.mark.parametrize("queue_id", [-1, 2**31])
def test_impossible_queue_ids_are_refused(store: MessageStore, queue_id: int) -> None:
    with pytest.raises(IllegalNameError, match="queue id"):
        store.queue("T", queue_id)


def test_non_queue_directories_are_skipped_and_left_untouched(maker: StoreMaker) -> None:
    store = maker()
    put(store, "T", 7)
    store.close()
    below = maker.root / "store" / "consumequeue"
    for strange in ("T/notes", "T/07", "T/99999999999", "bad name/0"):
        (below / strange).mkdir(parents=True)
        (below / strange / "file").write_bytes(b"x")
    (below / "readme").write_bytes(b"x")
    again = maker()
    assert [(queue.topic, queue.queue_id) for queue in again.queues] == [("T", 7)]
    assert (below / "T/07/file").exists()


def test_deleting_last_queue_removes_topic_directory(store: MessageStore) -> None:
    put(store, "T", 0)
    put(store, "T", 1)
    put(store, "U", 0)
    assert store.delete_topic("T") == 2
    below = store.config.root / "consumequeue"
    assert sorted(path.name for path in below.iterdir()) == ["U"]


def test_topics_directory_with_something_else_in_it_stays(store: MessageStore) -> None:
    put(store, "T", 0)
    (store.config.root / "consumequeue/T/notes").mkdir()
    store.delete_topic("T")
    assert [path.name for path in (store.config.root / "consumequeue/T").iterdir()] == ["notes"]


def test_undeletable_topic_rejects_messages_and_others_work(store: MessageStore) -> None:
    put(store, "T", 0)
    put(store, "T", 1)
    directory = Path(store.config.root, "consumequeue/T/0")
    (directory / "file").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot delete"):
            store.delete_topic("T")
        for queue_id in range(2):
            with pytest.raises(StoreError, match=r"topic\[T\] takes no messages until its deletion succeeds.*T/0"):
                put(store, "T", queue_id)
            assert store.reader.max_offset_in_queue("T", queue_id) == 0
        put(store, "U", 0)
    (directory / "file").unlink()
    assert store.delete_topic("T") == 2
    assert not directory.exists()
    assert put(store, "T", 0).queue_offset == 0


@pytest.mark.parametrize("failing", ["unlink", "remove_directory", "sync_directory"])
def test_remains_of_deleted_topic_stay_deleted(maker: StoreMaker, faulty: FaultyFileSystem, failing: str) -> None:
    """With three files: neither while the store runs, nor after a clean stop, nor after a kill."""
    store = maker(file_system=faulty)
    for _ in range(120):
        put(store, "T", 0)
    assert len(store.queue("T", 0).files.files) == 3
    faulty.code = errno.EPERM
    below = store.config.root / "consumequeue"
    faulty.fails = lambda number, name, path: name == failing and (path == below or below in path.parents)
    with pytest.raises(StoreError, match="not permitted"):
        store.delete_topic("T")
    with pytest.raises(StoreError, match="not permitted"):
        put(store, "T", 0)
    put(store, "U", 0)
    assert store.reader.max_offset_in_queue("T", 0) == 0
    faulty.fails = lambda number, name, path: False
    killed = maker(maker.killed_copy(store))
    assert killed.reader.max_offset_in_queue("T", 0) == 0
    assert put(killed, "T", 0).queue_offset == 0
    store.close()
    store.open()
    assert store.reader.max_offset_in_queue("T", 0) == 0
    assert put(store, "T", 0).queue_offset == 0
    assert store.reader.max_offset_in_queue("U", 0) == 1


def test_deletion_that_cannot_be_recorded_changes_nothing(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = maker(file_system=faulty)
    put(store)
    faulty.fails = lambda number, name, path: path.name.startswith("deletedTopics")
    with pytest.raises(StoreError, match="deletedTopics"):
        store.delete_topic("T")
    assert put(store).queue_offset == 1
    store.close()
    assert maker().reader.max_offset_in_queue("T", 0) == 2


def test_deleted_topics_leave_no_queue_behind(maker: StoreMaker) -> None:
    store = maker()
    put(store, "kept")
    for number in range(50):
        put(store, f"T{number}")
        store.delete_topic(f"T{number}")
    gc.collect()
    assert [queue.topic for queue in store.queues] == ["kept"]
    assert len(store.queues) == 1
    assert sum(isinstance(each, ConsumeQueue) for each in gc.get_objects()) == 1
    assert len(store.queues.pool) == 1


def test_held_queue_reappears_when_its_topic_is_recreated(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    held = store.queue("T", 0)
    store.delete_topic("T")
    assert store.queues.find("T", 0) is None
    assert store.queue("T", 0) is held
    store.delete_topic("T")
    store.append([entry(held, b"again", b"", born_host=HOST, store_host=HOST)])
    assert store.queues.find("T", 0) is held
    assert bodies(store) == [b"again"]
    store.close()
    assert bodies(maker()) == [b"again"]


def test_topic_takes_no_messages_while_it_is_deleted(store: MessageStore) -> None:
    for queue_id in range(3):
        put(store, "T", queue_id)
    deletion = store.deletion("T")
    next(deletion)
    for queue_id in range(3):
        with pytest.raises(StoreError, match="queues are being deleted"):
            put(store, "T", queue_id)
    put(store, "T", 3)
    with pytest.raises(StoreError, match=r"topic\[T\] is being deleted"):
        store.delete_topic("T")
    assert finish(deletion) == 3
    assert [queue.queue_id for queue in store.queues.of_topic("T")] == [3]
    assert put(store, "T", 0).queue_offset == 0
