from collections.abc import Callable

import pytest

from tests.unit.storage.making import StoreMaker, filled, log_file, overwrite, put
from triomq.protocol.errors import StoreClosedError
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish


def test_ends_of_queues(store: MessageStore) -> None:
    assert (store.reader.min_offset_in_queue("T", 0), store.reader.max_offset_in_queue("T", 0)) == (0, 0)
    for _ in range(3):
        put(store)
    store.queue("T", 0).min_offset = 1
    assert (store.reader.min_offset_in_queue("T", 0), store.reader.max_offset_in_queue("T", 0)) == (1, 3)


@pytest.mark.parametrize(
    ("index", "count", "wanted"),
    [(0, 100, [1, 2, 3, 4]), (2, 2, [2, 3]), (4, 5, [4]), (5, 5, []), (-3, 5, [1]), (1, -1, []), (2**60, 2**60, [])],
)
def test_units_are_given_within_the_visible_range(
    store: MessageStore, index: int, count: int, wanted: list[int]
) -> None:
    for number in range(5):
        put(store, tags_code=number)
    store.queue("T", 0).min_offset = 1
    assert [unit.tags_code for unit in store.reader.queue_units("T", 0, index, count)] == wanted
    assert store.reader.queue_units("T", 1, index, count) == []


def test_a_lost_message_has_the_time_of_the_next_one(maker: StoreMaker) -> None:
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
        lambda store: store.reader.look_message(0),
        lambda store: store.reader.queue_units("T", 0, 0, 1),
        lambda store: store.statistics(),
        lambda store: store.flush_plan(),
        lambda store: store.flush_consume_queues_plan(),
        lambda store: store.dispatch_flushed(),
        lambda store: store.check_disk(),
        lambda store: store.delete_topic("T"),
        lambda store: store.destroy(),
        lambda store: store.flush(),
    ],
)
def test_a_store_that_is_not_open_answers_nothing(store: MessageStore, ask: Callable[[MessageStore], object]) -> None:
    put(store)
    ask_before_opening = MessageStore(store.config)
    with pytest.raises(StoreClosedError, match="is not open"):
        ask(ask_before_opening)
    store.close()
    with pytest.raises(StoreClosedError, match="is not open"):
        ask(store)
