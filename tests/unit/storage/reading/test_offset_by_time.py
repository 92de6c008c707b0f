from collections.abc import Sequence

import pytest

from tests.unit.storage.making import NothingInMemory, StoreMaker, put
from triomq.storage.files.file_system import FileSystem
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish

START = 1_800_000_000_000


def fill(
    maker: StoreMaker, times: Sequence[int], body: bytes = b"", file_system: FileSystem | None = None
) -> MessageStore:
    store = maker(file_system=file_system)
    for time in times:
        maker.clock.now_ms = START + time
        put(store, body=body)
    return store


def test_an_unknown_or_empty_queue_gives_zero(store: MessageStore) -> None:
    assert finish(store.reader.offset_by_time("T", 0, START)) == 0
    store.queue("T", 0)
    assert finish(store.reader.offset_by_time("T", 0, START)) == 0


@pytest.mark.parametrize(
    ("timestamp", "queue_offset"),
    [(-1000, 0), (0, 0), (10, 1), (14, 1), (15, 1), (16, 2), (20, 2), (29, 3), (30, 3), (99999, 3)],
)
def test_the_nearest_message_is_found_and_the_older_one_of_two(
    maker: StoreMaker, timestamp: int, queue_offset: int
) -> None:
    store = fill(maker, [0, 10, 20, 30])
    assert finish(store.reader.offset_by_time("T", 0, START + timestamp)) == queue_offset


def test_the_file_that_covers_the_time_is_searched(maker: StoreMaker) -> None:
    store = fill(maker, range(0, 1700, 10))  # 50 messages in each file
    for queue_offset in (0, 49, 50, 51, 99, 100, 120, 169):
        assert finish(store.reader.offset_by_time("T", 0, START + queue_offset * 10)) == queue_offset


def test_file_deleted_during_cold_search_hides_no_other_file(maker: StoreMaker) -> None:
    store = fill(maker, range(0, 1700, 10), file_system=NothingInMemory())
    search = store.reader.offset_by_time("T", 0, START + 700)
    assert next(search)  # the last unit of the first file
    queue = store.queue("T", 0)
    queue.files.remove_oldest()
    queue.min_offset = 50
    assert finish(search) == 70


def test_with_equal_times_one_of_them_is_found(maker: StoreMaker) -> None:
    store = fill(maker, [5] * 20)
    assert 0 <= finish(store.reader.offset_by_time("T", 0, START + 5)) < 20


def test_expired_messages_are_not_found(maker: StoreMaker) -> None:
    store = fill(maker, range(0, 600, 10), body=bytes(3000))
    first_left = next(
        n for n, unit in enumerate(store.reader.queue_units("T", 0, 0, 60)) if unit.physical_offset >= 65536
    )
    del store.commit_log.files.files[0]
    assert finish(store.reader.offset_by_time("T", 0, START)) == first_left  # the queue does not know yet
    store.queue("T", 0).min_offset = first_left
    assert finish(store.reader.offset_by_time("T", 0, START)) == first_left


def test_a_queue_that_has_expired_altogether_gives_its_end(maker: StoreMaker) -> None:
    store = fill(maker, [0, 10])
    store.queue("T", 0).min_offset = 2
    assert finish(store.reader.offset_by_time("T", 0, START)) == 2


def test_an_unreadable_record_gives_the_first_message(maker: StoreMaker) -> None:
    store = fill(maker, [0, 10, 20])
    unit = store.reader.queue_units("T", 0, 1, 1)[0]
    store.commit_log.files.files[0].map[unit.physical_offset + 4] = 0
    assert finish(store.reader.offset_by_time("T", 0, START + 10)) == 0


def test_store_times_of_single_messages(maker: StoreMaker) -> None:
    store = fill(maker, [0, 10, 20])
    assert finish(store.reader.store_time("T", 0, 1)) == START + 10
    assert finish(store.reader.earliest_store_time("T", 0)) == START
    store.queue("T", 0).min_offset = 1
    assert finish(store.reader.earliest_store_time("T", 0)) == START + 10
    assert finish(store.reader.store_time("T", 0, 0)) == -1
    assert finish(store.reader.store_time("T", 0, 3)) == -1
    assert finish(store.reader.store_time("T", 9, 0)) == -1
    assert finish(store.reader.earliest_store_time("U", 0)) == -1
