from collections.abc import Sequence
from mmap import mmap
from typing import Any, Final

import pytest

from tests.unit.storage.making import StoreMaker, discard, put
from triomq.protocol.java import tags_code
from triomq.protocol.record.consume_queue_unit import UNIT
from triomq.protocol.record.intact_record import are_intact
from triomq.protocol.record.layout import record_size
from triomq.protocol.record.record import decode_records
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.get_message import GetMessageResult, GetMessageStatus

FIXED: Final = record_size(0, 1, 0)


def offsets(found: GetMessageResult) -> list[int]:
    return [message.queue_offset for buffer in found.buffers for message in decode_records(buffer)]


def outcome(found: GetMessageResult) -> tuple[GetMessageStatus, int]:
    return found.status, found.next_begin_offset


def overwrite(queue: ConsumeQueue, queue_offset: int, unit: tuple[int, int, int]) -> None:
    file = queue.files.file_at(queue_offset * 20)
    assert file is not None
    UNIT.pack_into(file.map, queue_offset * 20 - file.start, *unit)


def test_offset_outside_queue_gets_next_offset(store: MessageStore) -> None:
    queue = store.queue("T", 0)
    assert outcome(store.reader.get_message(queue, 5, 32)) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)
    for _ in range(3):
        put(store)
    queue.min_offset = 1
    assert outcome(store.reader.get_message(queue, 0, 32)) == (GetMessageStatus.OFFSET_TOO_SMALL, 1)
    assert outcome(store.reader.get_message(queue, -1, 32)) == (GetMessageStatus.OFFSET_TOO_SMALL, 1)
    assert outcome(store.reader.get_message(queue, 3, 32)) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 3)
    assert outcome(store.reader.get_message(queue, 4, 32)) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3)
    assert outcome(store.reader.get_message(queue, 2**62, 32)) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3)


def test_adjacent_records_share_view(store: MessageStore) -> None:
    for queue_id in (0, 0, 0, 1, 0, 0):
        put(store, "T", queue_id)
    for max_msg_nums, buffers in ((3, 1), (32, 5)):
        found = store.reader.get_message(("T", 0), 0, max_msg_nums)
        assert (found.message_count, len(found.buffers)) == (min(max_msg_nums, 5), buffers)
        assert found.size_bytes == sum(map(len, found.buffers))
        assert offsets(found) == [0, 1, 2, 3, 4][:max_msg_nums]
        assert all(view.readonly for view in found.buffers)


@pytest.mark.parametrize(("wanted", "got"), [(-1, 1), (0, 1), (1, 1), (7, 7), (32, 32), (1000, 32)])
def test_read_returns_one_to_32_messages(store: MessageStore, wanted: int, got: int) -> None:
    for _ in range(40):
        put(store)
    found = store.reader.get_message(("T", 0), 0, wanted)
    assert (found.message_count, found.next_begin_offset) == (got, got)


@pytest.mark.parametrize(("body_kib", "settings", "wanted"), [(64, {}, 4), (32, {"physical_memory_bytes": 1}, 2)])
def test_read_is_limited_in_memory_and_on_disk(
    maker: StoreMaker, body_kib: int, settings: dict[str, int], wanted: int
) -> None:
    store = maker(commit_log_file_size_bytes=1024 * 1024, **settings)
    for _ in range(6):
        put(store, body=bytes(body_kib * 1024 - FIXED))
    found = store.reader.get_message(("T", 0), 0, 32)
    assert (offsets(found), found.size_bytes) == (list(range(wanted)), wanted * body_kib * 1024)


def test_records_far_from_end_give_smaller_reads(maker: StoreMaker) -> None:
    store = maker(physical_memory_bytes=1000)  # 400 bytes are in memory
    for _ in range(30):
        put(store)
    assert store.reader.get_message(("T", 0), 0, 32).message_count == 8
    assert store.reader.get_message(("T", 0), 0, 5).message_count == 5
    near_the_end = store.commit_log.max_offset - 400
    first_in_memory = next(
        number
        for number, unit in enumerate(store.reader.queue_units("T", 0, 0, 30))
        if unit.physical_offset >= near_the_end
    )
    assert offsets(store.reader.get_message(("T", 0), first_in_memory, 32)) == list(range(first_in_memory, 30))


TAKES_MORE: Final[dict[str, Any]] = {"max_transfer_bytes_asked": 20 * (FIXED + 4), "max_transfer_count_asked": 15}


@pytest.mark.parametrize(
    ("wanted", "most_records", "got"),
    [(100, 30, 15), (100, 12, 12), (7, 30, 7), (1, 0, 1), (100, 0, 1), (100, -1, 1), (100, 1, 1)],
)
@pytest.mark.parametrize("memory_bytes", [2**30, 1])
@pytest.mark.parametrize("codes", [None, frozenset({tags_code("A")})])
def test_large_read_respects_its_own_limits(
    maker: StoreMaker, codes: frozenset[int] | None, memory_bytes: int, wanted: int, most_records: int, got: int
) -> None:
    store = maker(**TAKES_MORE, max_transfer_count_in_memory=3, physical_memory_bytes=memory_bytes)
    for _ in range(40):
        put(store, tags_code=tags_code("A"))
    for _ in range(2):  # the second time as records of an earlier process
        found = store.reader.get_message(("T", 0), 0, wanted, codes, most_records * (FIXED + 4))
        assert (offsets(found), found.next_begin_offset) == (list(range(got)), got)
        assert found.size_bytes == got * (FIXED + 4)
        as_found_at_start(store)
    assert store.reader.get_message(("T", 0), 0, wanted, codes).message_count <= 8


def test_read_of_thousand_messages(maker: StoreMaker) -> None:
    store = maker(consume_queue_file_size_bytes=40_000, commit_log_file_size_bytes=2**20)
    for number in range(1500):
        put(store, body=b"%d" % number)
    for begin, end in ((0, 1024), (476, 1500), (1400, 1500)):
        for _ in range(2):
            found = store.reader.get_message(("T", 0), begin, 5000, None, 2**20)
            messages = [message for buffer in found.buffers for message in decode_records(buffer)]
            assert [message.stored_body for message in messages] == [b"%d" % number for number in range(begin, end)]
            as_found_at_start(store)


def test_huge_unit_hides_nothing_from_large_read(store: MessageStore) -> None:
    for _ in range(200):
        put(store, queue_id=1, body=bytes(2000))
    for _ in range(4):
        put(store)
    as_found_at_start(store)
    for size in (0x7FFFFFFF, -5):
        overwrite(store.queue("T", 0), 1, (0, size, 0))
        found: list[int] = []
        next_offset = 0
        while next_offset < 4:
            result = store.reader.get_message(("T", 0), next_offset, 1024, None, 10_000)
            found += offsets(result)
            assert result.next_begin_offset > next_offset
            next_offset = result.next_begin_offset
        assert found == [0, 2, 3]


def test_filter_compares_low_32_bits(store: MessageStore) -> None:
    put(store, tags_code=(5 << 32) + 77)
    put(store, tags_code=(5 << 32) + 0xFFFFFFFF)
    assert offsets(store.reader.get_message(("T", 0), 0, 32, frozenset({77}))) == [0]
    assert offsets(store.reader.get_message(("T", 0), 0, 32, frozenset({-1}))) == [1]


def test_filter_without_match_returns_after_800_units(maker: StoreMaker) -> None:
    store = maker(consume_queue_file_size_bytes=20_000)
    for _ in range(1100):
        put(store, tags="A")
    nothing = frozenset({1})
    assert outcome(store.reader.get_message(("T", 0), 0, 32, nothing)) == (GetMessageStatus.NO_MATCHED_MESSAGE, 800)
    assert outcome(store.reader.get_message(("T", 0), 800, 32, nothing)) == (GetMessageStatus.NO_MATCHED_MESSAGE, 1000)
    assert outcome(store.reader.get_message(("T", 0), 1000, 32, nothing)) == (GetMessageStatus.NO_MATCHED_MESSAGE, 1100)
    assert outcome(store.reader.get_message(("T", 0), 0, 950, nothing)) == (GetMessageStatus.NO_MATCHED_MESSAGE, 950)


def remove_first_log_file(store: MessageStore) -> None:
    del store.commit_log.files.files[0]


def test_messages_of_removed_commit_log_file_passed_over(store: MessageStore) -> None:
    for _ in range(10):
        put(store, body=bytes(15_000))
    remove_first_log_file(store)
    found = store.reader.get_message(("T", 0), 0, 32)
    assert (found.status, offsets(found), found.next_begin_offset) == (GetMessageStatus.FOUND, [4, 5, 6, 7, 8, 9], 10)


def test_read_of_removed_messages_only_moves_on(store: MessageStore) -> None:
    for queue_id in (0, 0, 1, 1, 1, 1):
        put(store, "T", queue_id, body=bytes(15_000))
    remove_first_log_file(store)
    assert outcome(store.reader.get_message(("T", 0), 0, 32)) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 2)


def as_found_at_start(store: MessageStore) -> None:
    """Let the records count as another process's: only then units are not believed."""
    store.commit_log.checked_from = store.commit_log.max_offset


def test_own_records_are_read_as_found_ones_are(maker: StoreMaker) -> None:
    store = maker(commit_log_file_size_bytes=4096, max_transfer_bytes_in_memory=2500)
    for number in range(60):
        put(store, "T", number % 3 and 1, body=bytes(number * 7), tags_code=number % 4)
    reads = [
        (("T", queue_id), queue_offset, maximum, codes, max_bytes)
        for queue_id in (0, 1)
        for queue_offset in range(41)
        for maximum in (1, 5, 32, 100)
        for codes in (None, frozenset({1, 3}), frozenset({9}))
        for max_bytes in (None, 300, 10_000)
    ]

    def results() -> list[object]:
        found = [store.reader.get_message(*read) for read in reads]
        return [(each.status, each.next_begin_offset, b"".join(each.buffers), each.message_count) for each in found]

    own = results()
    as_found_at_start(store)
    assert own == results()


def test_records_of_earlier_process_are_looked_at_once(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []  # positions in the file

    def noted(buffer: mmap, positions: Sequence[int], *arguments: Any) -> bool:
        looked_at.extend(positions)
        return are_intact(buffer, positions, *arguments)

    monkeypatch.setattr("triomq.storage.reading.get_message.are_intact", noted)
    monkeypatch.setattr("triomq.storage.reading.get_message.find_damage", lambda *_: pytest.fail("none is suspected"))
    places = [put(store).physical_offset for _ in range(20)]
    as_found_at_start(store)
    for begin in range(0, 20, 5):
        assert offsets(store.reader.get_message(("T", 0), begin, 5)) == list(range(begin, begin + 5))
    assert looked_at == places
    looked_at.clear()
    assert offsets(store.reader.get_message(("T", 0), 0, 32)) == list(range(20))
    assert offsets(store.reader.get_message(("T", 0), 3, 32, frozenset({77}))) == []
    assert offsets(store.reader.get_message(("T", 0), 7, 2)) == [7, 8]
    assert looked_at == []


@pytest.mark.parametrize("position", [15, 90])  # the queue id, the body
def test_damaged_record_of_earlier_process_is_always_skipped(store: MessageStore, position: int) -> None:
    places = [put(store, body=b"whole") for _ in range(9)]
    as_found_at_start(store)
    file = store.commit_log.files.files[0]
    file.map[places[4].physical_offset + position] ^= 1
    for _ in range(3):
        assert offsets(store.reader.get_message(("T", 0), 0, 32)) == [0, 1, 2, 3, 5, 6, 7, 8]
        assert outcome(store.reader.get_message(("T", 0), 4, 1)) == (GetMessageStatus.FOUND, 6)
    assert store.commit_log.damaged_records == 1


@pytest.mark.parametrize(
    "unit",
    [
        (2**40, 100, 0),
        (-5, 100, 0),
        (0, -1, 0),
        (0, 0, 0),
        (0, 50, 0),
        (1, 96, 0),
        (0, 97, 0),
        (65530, 96, 0),
        (-(2**63), -(2**31), 0),
    ],
)
def test_damaged_unit_yields_nothing_false_and_hides_nothing(store: MessageStore, unit: tuple[int, int, int]) -> None:
    for _ in range(4):
        put(store)
    as_found_at_start(store)
    overwrite(store.queue("T", 0), 1, unit)
    found = store.reader.get_message(("T", 0), 0, 32)
    assert (offsets(found), found.next_begin_offset) == ([0, 2, 3], 4)
    assert outcome(store.reader.get_message(("T", 0), 1, 1)) == (GetMessageStatus.FOUND, 3)


def test_unit_pointing_beyond_log_end_is_not_read(store: MessageStore) -> None:
    put(store)
    place = put(store)
    as_found_at_start(store)
    store.commit_log.max_offset = place.physical_offset + 10
    assert offsets(store.reader.get_message(("T", 0), 0, 32)) == [0]


def test_missing_consume_queue_file_advances_reader_to_next(store: MessageStore) -> None:
    for _ in range(60):
        put(store)
    queue = store.queue("T", 0)
    del queue.files.files[0]
    assert outcome(store.reader.get_message(queue, 13, 32)) == (GetMessageStatus.OFFSET_FOUND_NULL, 50)
    assert store.reader.get_message(queue, 50, 32).message_count == 10


def test_views_stay_valid_when_topic_and_store_gone(store: MessageStore) -> None:
    put(store, body=b"still here")
    view = store.reader.get_message(("T", 0), 0, 1).buffers[0]
    discard(store)
    assert decode_records(view)[0].stored_body == b"still here"
