from collections.abc import Callable, Sequence

import pytest

from tests.unit.storage.making import NothingInMemory, StoreMaker, filled, log_file, overwrite, put
from triomq.protocol.errors import StoreClosedError
from triomq.storage.files.file_system import FileSystem
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish


@pytest.mark.parametrize(
    ("index", "count", "wanted"),
    [(0, 100, [1, 2, 3, 4]), (2, 2, [2, 3]), (4, 5, [4]), (5, 5, []), (-3, 5, [1]), (1, -1, []), (2**60, 2**60, [])],
)
def test_units_are_limited_to_visible_range(store: MessageStore, index: int, count: int, wanted: list[int]) -> None:
    for number in range(5):
        put(store, tags_code=number)
    store.queue("T", 0).min_offset = 1
    assert [unit.tags_code for unit in store.reader.queue_units("T", 0, index, count)] == wanted
    assert store.reader.queue_units("T", 1, index, count) == []


def test_lost_message_has_time_of_next_one(maker: StoreMaker) -> None:
    store = filled(maker)
    times = [finish(store.reader.store_time("T", 0, number)) for number in range(100)]
    copy = maker.killed_copy(store)
    lost = store.reader.queue_units("T", 0, 40, 1)[0].physical_offset
    overwrite(log_file(copy, lost // 65536 * 65536), lost % 65536, b"\x7f")
    again = maker(copy)
    unit = again.reader.queue_units("T", 0, 40, 1)[0]
    assert (unit.is_lost, unit.physical_offset) == (True, 0)
    assert finish(again.reader.store_time("T", 0, 40)) == times[41]
    assert [finish(again.reader.store_time("T", 0, number)) for number in (39, 41)] == [times[39], times[41]]


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.reader.get_message(("T", 0), 0, 1),
        lambda store: store.reader.min_offset_in_queue("T", 0),
        lambda store: store.reader.max_offset_in_queue("T", 0),
        lambda store: finish(store.reader.offset_by_time("T", 0, 0)),
        lambda store: finish(store.reader.store_time("T", 0, 0)),
        lambda store: finish(store.reader.earliest_store_time("T", 0)),
        lambda store: store.reader.queue_units("T", 0, 0, 1),
        lambda store: store.flush_plan(),
        lambda store: store.flush_consume_queues_plan(),
        lambda store: store.dispatch_flushed(),
        lambda store: store.check_disk(),
        lambda store: store.delete_topic("T"),
        lambda store: store.flush(),
    ],
)
def test_closed_store_refuses_every_call(store: MessageStore, ask: Callable[[MessageStore], object]) -> None:
    put(store)
    ask_before_opening = MessageStore(store.config)
    with pytest.raises(StoreClosedError, match="is not open"):
        ask(ask_before_opening)
    store.close()
    with pytest.raises(StoreClosedError, match="is not open"):
        ask(store)


START = 1_800_000_000_000


def fill(
    maker: StoreMaker, times: Sequence[int], body: bytes = b"", file_system: FileSystem | None = None
) -> MessageStore:
    store = maker(file_system=file_system)
    for time in times:
        maker.clock.now_ms = START + time
        put(store, body=body)
    return store


def test_time_search_in_unknown_or_empty_queue(store: MessageStore) -> None:
    assert finish(store.reader.offset_by_time("T", 0, START)) == 0
    store.queue("T", 0)
    assert finish(store.reader.offset_by_time("T", 0, START)) == 0


FEW = (0, 10, 20, 30)
MANY = range(0, 1700, 10)  # 50 messages in each file


@pytest.mark.parametrize(
    ("times", "min_offset", "found"),
    [
        (FEW, 0, {-1000: 0, 0: 0, 10: 1, 14: 1, 15: 1, 16: 2, 20: 2, 29: 3, 30: 3, 99999: 3}),
        (MANY, 0, {10 * queue_offset: queue_offset for queue_offset in (0, 49, 50, 51, 99, 100, 120, 169)}),
        (FEW, 4, {0: 4, 30: 4}),  # all have expired
    ],
)
def test_nearest_message_found_and_older_one_of_two(
    maker: StoreMaker, times: Sequence[int], min_offset: int, found: dict[int, int]
) -> None:
    store = fill(maker, times)
    store.queue("T", 0).min_offset = min_offset
    assert {time: finish(store.reader.offset_by_time("T", 0, START + time)) for time in found} == found


def test_file_deleted_during_cold_search_hides_no_other(maker: StoreMaker) -> None:
    store = fill(maker, range(0, 1700, 10), file_system=NothingInMemory())
    search = store.reader.offset_by_time("T", 0, START + 700)
    assert next(search)  # the last unit of the first file
    queue = store.queue("T", 0)
    queue.files.remove_oldest()
    queue.min_offset = 50
    assert finish(search) == 70


def test_expired_messages_are_not_found(maker: StoreMaker) -> None:
    store = fill(maker, range(0, 600, 10), body=bytes(3000))
    first_left = next(
        n for n, unit in enumerate(store.reader.queue_units("T", 0, 0, 60)) if unit.physical_offset >= 65536
    )
    del store.commit_log.files.files[0]
    assert finish(store.reader.offset_by_time("T", 0, START)) == first_left  # the queue does not know yet
    store.queue("T", 0).min_offset = first_left
    assert finish(store.reader.offset_by_time("T", 0, START)) == first_left


def test_time_search_at_unreadable_record(maker: StoreMaker) -> None:
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
