from typing import Any, Final

import pytest

from tests.records import make_record
from tests.unit.storage.making import BORN, HOST, StoreMaker, discard, filled, put
from triomq.protocol.errors import MessageIllegalError, StoreError
from triomq.protocol.host import encode_host
from triomq.protocol.record.layout import record_size
from triomq.protocol.record.record import RecordKind, encode_record
from triomq.storage.message_store import MessageStore

FILE: Final = 65536
FIXED: Final = record_size(0, 1, 0)  # topic "T", nothing else


def filled_up_to(store: MessageStore, left: int) -> None:
    """Leave exactly ``left`` bytes in the current file."""
    room = FILE - store.commit_log.max_offset % FILE - left
    while room > 32768:
        put(store, body=bytes(30000 - FIXED))
        room -= 30000
    put(store, body=bytes(room - FIXED))
    assert store.commit_log.max_offset % FILE == FILE - left


@pytest.mark.parametrize("born", [HOST, encode_host("2001:db8::1", 40000)])
@pytest.mark.parametrize("stored", [HOST, encode_host("::ffff:10.0.0.1", 10911), encode_host("fe80::1", 10911)])
@pytest.mark.parametrize("length", [0, 1, 4096, 4097, 20000])
def test_appended_record_equals_encoded_one(store: MessageStore, born: bytes, stored: bytes, length: int) -> None:
    body = bytes(range(256)) * (length // 256) + bytes(length % 256)
    put(store, body=b"first")
    place = put(
        store, body=body, flag=-7, sys_flag=0x30 | 0x8, born_host=born, store_host=stored,
        properties=b"a\x01b", reconsume_times=3, prepared_transaction_offset=2**40,
    )  # fmt: skip
    wanted = encode_record(
        queue_id=0,
        queue_offset=1,
        physical_offset=place.physical_offset,
        sys_flag=0x8,
        born_timestamp=BORN,
        born_host=born,
        store_timestamp=place.store_timestamp,
        store_host=stored,
        body=body,
        topic=b"T",
        properties=b"a\x01b",
        flag=-7,
        reconsume_times=3,
        prepared_transaction_offset=2**40,
    )
    view = store.commit_log.look_message(place.physical_offset)
    assert view is not None
    assert bytes(view) == wanted
    assert store.commit_log.store_time(place.physical_offset) == place.store_timestamp


@pytest.mark.parametrize(("more", "begin", "blank_size"), [(0, FILE - 1000, 8), (1, FILE, 1000)])
def test_message_fits_if_room_for_blank_remains(store: MessageStore, more: int, begin: int, blank_size: int) -> None:
    filled_up_to(store, 1000)
    assert put(store, body=bytes(1000 - 8 - FIXED + more)).physical_offset == begin
    assert put(store).physical_offset == FILE + 993 * more
    blank = store.commit_log.check(FILE - blank_size, check_crc=True)
    assert (blank.kind, blank.size) == (RecordKind.BLANK, blank_size)


def test_file_sized_message_stored_and_longer_one_rejected(store: MessageStore) -> None:
    put(store)
    place = put(store, body=bytes(FILE - 8 - FIXED))
    assert place.physical_offset == FILE
    end = store.commit_log.max_offset
    with pytest.raises(MessageIllegalError, match="at most 65528"):
        put(store, body=bytes(FILE - 8 - FIXED + 1))
    assert store.commit_log.max_offset == end
    assert put(store).physical_offset == 2 * FILE


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("step_ms", "is_followed"), [(1, False), (3000, False), (3001, True), (86_400_000, True)])
def test_store_times_follow_large_clock_steps_only(
    maker: StoreMaker, step_ms: int, is_followed: bool, is_restarted: bool
) -> None:
    store = maker()
    first = put(store)
    maker.clock.now_ms -= step_ms
    if is_restarted:
        store.close()
        store = maker()
    second = put(store)
    assert second.store_timestamp == (maker.clock.now_ms if is_followed else first.store_timestamp)
    steps = [(second.physical_offset, first.store_timestamp)] if is_followed else []
    assert list(store.commit_log.clock_steps.all) == steps
    store.close()
    assert list(maker().commit_log.clock_steps.all) == steps


def test_step_of_clock_is_forgotten_with_log(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    maker.clock.now_ms -= 86_400_000
    put(store)
    discard(store)
    assert maker().commit_log.clock_steps.all == ()


@pytest.mark.parametrize("offset", [-1, -(2**62), 1, 50, 91, 149, 151, 5000, FILE - 8, FILE, 2**62])
def test_look_at_place_without_record_finds_nothing(store: MessageStore, offset: int) -> None:
    put(store, body=bytes(150 - FIXED))
    filled_up_to(store, 900)
    assert store.commit_log.look_message(offset) is None


def test_looking_with_another_size_finds_nothing(store: MessageStore) -> None:
    place = put(store)
    view = store.commit_log.look_message(place.physical_offset)
    assert view is not None
    assert store.commit_log.look_message(place.physical_offset, len(view)) == view
    assert store.commit_log.look_message(place.physical_offset, len(view) - 1) is None


def test_record_inside_body_is_never_taken_for_one(store: MessageStore) -> None:
    place = put(store, body=b"inner")
    inner = store.commit_log.look_message(place.physical_offset)
    assert inner is not None
    outer = put(store, body=bytes(inner))
    assert store.commit_log.look_message(outer.physical_offset + 88) is None  # it names another place as its own


def test_record_claiming_to_extend_beyond_end_not_shown(store: MessageStore) -> None:
    place = put(store)
    file = store.commit_log.files.files[0]
    end = store.commit_log.max_offset
    file.map[end : end + len(forged(end))] = forged(end)
    assert store.commit_log.look_message(end) is None
    store.commit_log.max_offset = end + 10
    assert store.commit_log.look_message(end) is None
    assert store.commit_log.look_message(place.physical_offset) is not None


def forged(physical_offset: int) -> bytes:
    return make_record(queue_offset=1, physical_offset=physical_offset, body=b"x")


def test_out_of_range_numbers_rejected_before_any_write(store: MessageStore) -> None:
    put(store)
    end = store.commit_log.max_offset
    too_large: list[dict[str, Any]] = [
        {"flag": 2**31},
        {"sys_flag": 2**31},
        {"born_timestamp": 2**63},
        {"tags_code": 2**63},
    ]
    for fields in too_large:
        with pytest.raises(MessageIllegalError, match="message for T"):
            put(store, body=b"\xff" * 300, **fields)
    with pytest.raises(MessageIllegalError, match="host of 7 bytes"):
        put(store, born_host=b"1234567")
    assert store.commit_log.max_offset == end
    assert not any(store.commit_log.files.files[0].view[end:])
    assert put(store).queue_offset == 1


@pytest.mark.parametrize("most_bytes", [1, 1000, FILE, 3 * FILE])
def test_pieces_are_the_files_up_to_log_end(maker: StoreMaker, most_bytes: int) -> None:
    store = filled(maker)
    log = store.commit_log
    on_disk = b"".join(path.read_bytes() for path in sorted(log.files.directory.iterdir()))
    offset = begin = 7 if most_bytes > 1 else log.max_offset - 100
    while piece := log.piece(offset, most_bytes):
        assert len(piece) <= most_bytes
        assert offset // FILE == (offset + len(piece) - 1) // FILE
        assert piece == on_disk[offset : offset + len(piece)]
        assert piece.obj is log.files.files[offset // FILE].view.obj
        offset += len(piece)
    assert offset == log.max_offset > begin
    assert not log.piece(offset + 10 * FILE, most_bytes)


def test_piece_of_deleted_file_raises(maker: StoreMaker) -> None:
    store = filled(maker)
    store.commit_log.files.remove_oldest()
    with pytest.raises(StoreError, match=f"begins at {FILE}, offset 5 was deleted"):
        store.commit_log.piece(5, 10)
