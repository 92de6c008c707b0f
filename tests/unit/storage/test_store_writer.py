import errno
import os
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.storage.making import BORN, HOST, FaultyFileSystem, StoreMaker, bodies, put
from triomq.protocol.errors import MessageIllegalError, StoreClosedError, StoreError, StoreFullError
from triomq.protocol.host import encode_host
from triomq.protocol.record.record import RecordKind, decode_record, decode_records
from triomq.protocol.record.record_copy import pack_length, split_record
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.files.file_system import DiskSpace, FileSystem
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.record_copies import RecordCopy
from triomq.storage.store_writer import Appended, BatchEntry, RunEntry


def put_batch(store: MessageStore, entries: list[BatchEntry], **fields: int) -> list[tuple[int, int, int]]:
    appended = store.put_batch(
        store.queue("T", 0), entries, fields.get("sys_flag", 0), fields.get("born_timestamp", BORN), HOST, HOST
    )
    return [tuple(place) for place in appended]  # type: ignore[misc]  # three numbers each


def test_numbers_of_each_queue_are_gapless_and_grow_with_the_log(store: MessageStore) -> None:
    places = [(queue_id, put(store, "T", queue_id)) for queue_id in (0, 1, 0, 0, 1, 2, 0)]
    assert [place.queue_offset for queue_id, place in places if queue_id == 0] == [0, 1, 2, 3]
    assert [place.queue_offset for queue_id, place in places if queue_id == 1] == [0, 1]
    physical = [place.physical_offset for _, place in places]
    assert physical == sorted(set(physical))


def test_the_unit_carries_the_tags_code_it_was_given(store: MessageStore) -> None:
    place = put(store, "SCHEDULE_TOPIC_XXXX", 2, tags_code=1_800_000_123_456)
    unit = store.queue_units("SCHEDULE_TOPIC_XXXX", 2, 0, 1)[0]
    assert (unit.physical_offset, unit.tags_code) == (place.physical_offset, 1_800_000_123_456)


@pytest.mark.parametrize(("bits", "has_unit"), [(0, True), (4, False), (8, True), (12, False)])
def test_prepared_and_rolled_back_records_get_no_unit_and_no_number(
    store: MessageStore, bits: int, has_unit: bool
) -> None:
    put(store)
    put(store)
    place = put(store, sys_flag=bits | 1)
    assert place.queue_offset == (2 if has_unit else 0)
    assert store.max_offset_in_queue("T", 0) == (3 if has_unit else 2)
    assert store.look_message(place.physical_offset) is not None
    assert put(store).queue_offset == (3 if has_unit else 2)


def test_limits_name_themselves_and_store_nothing(maker: StoreMaker) -> None:
    store = maker(max_message_size_bytes=1000, commit_log_file_size_bytes=1024 * 1024)
    with pytest.raises(MessageIllegalError, match="body of 1001 bytes, at most 1000"):
        put(store, body=bytes(1001))
    with pytest.raises(MessageIllegalError, match="properties of 32768 bytes, at most 32767"):
        put(store, properties=bytes(32768))
    assert store.commit_log.max_offset == 0
    put(store, body=bytes(1000), properties=b"x" * 32767)
    assert store.max_offset_in_queue("T", 0) == 1


def test_a_batch_is_consecutive_records_with_one_store_time(store: MessageStore) -> None:
    put(store)
    entries = [(number, b"body %d" % number, b"a\x01%d" % number, number * 7) for number in range(5)]
    places = put_batch(store, entries)
    assert [place[1] for place in places] == [1, 2, 3, 4, 5]
    assert len({place[2] for place in places}) == 1
    units = store.queue_units("T", 0, 1, 5)
    assert [unit.tags_code for unit in units] == [0, 7, 14, 21, 28]
    for place, unit, following in zip(places, units, units[1:], strict=False):
        assert unit.physical_offset == place[0]
        assert following.physical_offset == unit.physical_offset + unit.size
    records = store.get_message(("T", 0), 1, 32).buffers
    assert [(m.flag, m.stored_body, m.properties) for view in records for m in decode_records(view)] == [
        (number, b"body %d" % number, {"a": str(number)}) for number in range(5)
    ]


def test_a_batch_that_does_not_fit_moves_as_a_whole(store: MessageStore) -> None:
    for _ in range(4):
        put(store, body=bytes(15_000))
    end = store.commit_log.max_offset
    places = put_batch(store, [(0, bytes(3000), b"", 0)] * 2)
    assert places[0][0] == 65536
    assert store.commit_log.check(end, check_crc=False).kind is RecordKind.BLANK


def test_a_batch_announces_itself_once(store: MessageStore) -> None:
    arrived: list[int] = []
    store.queue("T", 0).on_arrival = lambda queue: arrived.append(queue.max_offset)
    put_batch(store, [(0, b"x", b"", 0)] * 3)
    assert put_batch(store, []) == []
    assert arrived == [3]


def test_a_batch_fills_several_consume_queue_files(store: MessageStore) -> None:
    put_batch(store, [(0, b"%d" % number, b"", 0) for number in range(130)])
    assert bodies(store) == [b"%d" % number for number in range(130)]


def test_a_batch_with_one_bad_message_stores_none(maker: StoreMaker) -> None:
    store = maker(max_message_size_bytes=1000)
    put(store)
    end = store.commit_log.max_offset
    good = (0, b"good", b"", 0)
    for bad in ((2**31, b"x", b"", 0), (0, b"x", b"", 2**63), (0, bytes(1001), b"", 0), (0, b"x", bytes(32768), 0)):
        with pytest.raises(MessageIllegalError):
            put_batch(store, [good, bad, good])
    with pytest.raises(MessageIllegalError, match="batch for T"):
        put_batch(store, [good], born_timestamp=2**63)
    assert store.commit_log.max_offset == end
    assert not any(store.commit_log.files.files[0].view[end:])
    assert put(store).queue_offset == 1
    assert bodies(store) == [b"body", b"body"]


@pytest.mark.parametrize("bits", [4, 8, 12])
def test_a_batch_in_a_transaction_is_refused(store: MessageStore, bits: int) -> None:
    with pytest.raises(MessageIllegalError, match="transaction"):
        put_batch(store, [(0, b"x", b"", 0)], sys_flag=bits)


def test_a_batch_longer_than_a_file_is_refused(store: MessageStore) -> None:
    with pytest.raises(MessageIllegalError, match="more than a commit log file"):
        put_batch(store, [(0, bytes(30_000), b"", 0)] * 3)
    assert store.commit_log.max_offset == 0


def test_batches_of_ipv6_peers_have_longer_records(store: MessageStore) -> None:
    host = encode_host("2001:db8::7", 9)
    store.put_batch(store.queue("T", 0), [(0, b"a", b"", 0), (0, b"b", b"", 0)], 0, BORN, host, HOST)
    assert bodies(store) == [b"a", b"b"]
    view = store.look_message(0)
    assert view is not None
    assert decode_record(view).born_host == "[2001:db8::7]:9"


def copy_of(store: MessageStore, place: Appended, queue: ConsumeQueue, properties: bytes = b"TAGS\x01b") -> RecordCopy:
    record = store.look_message(place.physical_offset)
    assert record is not None
    head, rest, _ = split_record(record)
    return queue, 4711, head, rest, pack_length(len(properties)) + properties


def test_copies_are_the_same_messages_in_their_new_queues(store: MessageStore) -> None:
    places = [put(store, "SCHEDULE_TOPIC_XXXX", body=b"%d" % number, sys_flag=1) for number in range(4)]
    put(store, "U", 1, body=b"before")
    arrived: list[ConsumeQueue] = []
    targets = [store.queue("T", 0), store.queue("U", 1)]
    for queue in targets:
        queue.on_arrival = arrived.append
    copies = [copy_of(store, place, targets[number % 2]) for number, place in enumerate(places)]
    assert store.put_copies(copies) == 4
    assert arrived == targets
    assert (bodies(store, "T", 0), bodies(store, "U", 1)) == ([b"0", b"2"], [b"before", b"1", b"3"])
    unit = store.queue_units("U", 1, 2, 1)[0]
    record = store.look_message(unit.physical_offset, unit.size)
    assert record is not None
    message = decode_record(record)
    assert (message.topic, message.queue_id, message.queue_offset) == ("U", 1, 2)
    assert (message.physical_offset, unit.tags_code) == (unit.physical_offset, 4711)
    assert (message.encoded_properties, message.sys_flag, message.born_timestamp) == (b"TAGS\x01b", 1, BORN)
    check = store.commit_log.check(unit.physical_offset, check_crc=True)
    assert (check.kind, check.size) == (RecordKind.MESSAGE, unit.size)
    assert store.statistics().messages_put == 9


def test_copies_that_fill_a_file_are_left_for_the_next_call(store: MessageStore) -> None:
    place = put(store, body=bytes(20_000))
    copies = [copy_of(store, place, store.queue("U", 0)) for _ in range(5)]
    assert [store.put_copies(copies), store.put_copies(copies[3:])] == [3, 2]
    assert bodies(store, "U") == [bytes(20_000)] * 5
    offsets = [unit.physical_offset for unit in store.queue_units("U", 0, 0, 5)]
    assert [offset // 65536 for offset in offsets] == [1, 1, 1, 2, 2]


def test_copies_for_more_queues_than_are_mapped_for_sure_are_left_for_the_next_call(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triomq.storage.store_writer._MOST_QUEUES", 2)
    place = put(store)
    copies = [copy_of(store, place, store.queue("U", number // 2)) for number in range(6)]
    assert [store.put_copies(copies), store.put_copies(copies[4:])] == [4, 2]
    assert [bodies(store, "U", queue_id) for queue_id in range(3)] == [[b"body"] * 2] * 3


def test_a_copy_that_fits_nowhere_is_refused_when_its_turn_comes(store: MessageStore) -> None:
    place = put(store, body=bytes(33_000))
    good = copy_of(store, place, store.queue("U", 0))
    bad = copy_of(store, place, store.queue("U", 0), b"x" * 32_767)
    assert store.put_copies([good, bad]) == 1
    with pytest.raises(MessageIllegalError, match="fits into no file"):
        store.put_copies([bad])
    assert len(bodies(store, "U")) == 1


def test_copies_wait_for_the_disk_as_messages_do(maker: StoreMaker) -> None:
    store = maker(durability=Durability.SYNC)
    places = [put(store) for _ in range(4)]
    store.flush()
    store.put_copies([copy_of(store, place, store.queue("U", number % 2)) for number, place in enumerate(places)])
    assert [store.max_offset_in_queue("U", queue_id) for queue_id in (0, 1)] == [0, 0]
    store.flush()
    assert [store.max_offset_in_queue("U", queue_id) for queue_id in (0, 1)] == [2, 2]


def test_a_full_disk_refuses_all_copies(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    store = maker(file_system=faulty, reserve_step_bytes=1)
    copies = [copy_of(store, put(store), store.queue("U", number)) for number in range(2)]
    end = store.commit_log.max_offset
    faulty.fails = lambda number, name, path: name == "reserve" and path.parent.name == "1"
    with pytest.raises(StoreFullError):
        store.put_copies(copies)
    assert (store.commit_log.max_offset, bodies(store, "U", 0)) == (end, [])
    faulty.fails = lambda number, name, path: False
    assert store.put_copies(copies) == 2
    store.close()
    with pytest.raises(StoreClosedError):
        store.put_copies(copies)


def test_a_closed_store_takes_nothing(store: MessageStore) -> None:
    queue = store.queue("T", 0)
    put(store)
    store.close()
    with pytest.raises(StoreClosedError):
        store.put(queue, b"", b"", 0, 0, 0, 0, HOST, HOST)
    with pytest.raises(StoreClosedError):
        store.put_batch(queue, [], 0, 0, HOST, HOST)
    with pytest.raises(StoreClosedError):
        store.queue("T", 0)


def test_a_full_disk_refuses_the_message_and_lets_the_store_recover(
    maker: StoreMaker, faulty: FaultyFileSystem
) -> None:
    store = maker(file_system=faulty, reserve_step_bytes=4096, consume_queue_reserve_step_bytes=100)
    stored: list[bytes] = []
    refused = 0
    for number in range(300):
        faulty.fails = lambda number, name, path: name == "reserve"
        if number % 3 == 0:
            faulty.fails = lambda number, name, path: False
        body = b"%d" % number * 100
        try:
            put(store, body=body)
        except StoreFullError:
            refused += 1
        else:
            stored.append(body)
    assert refused > 20
    assert bodies(store) == stored
    faulty.fails = lambda number, name, path: False
    copy = maker(maker.killed_copy(store))
    assert bodies(copy) == stored
    assert copy.recovery is not None
    assert copy.recovery.truncated_bytes == 0


def scenario(store: MessageStore, stored: list[bytes]) -> None:
    """Put, batch, roll over both kinds of files and flush; note what was accepted."""
    for number in range(60):
        body = b"%d-" % number * (900 if number % 5 == 0 else 3)
        try:
            if number % 4 == 3:
                put_batch(store, [(0, body + b"a", b"", 0), (0, body + b"b", b"", 0)])
                stored += [body + b"a", body + b"b"]
            else:
                put(store, body=body)
                stored.append(body)
        except StoreError:
            continue


SETTINGS: Final[dict[str, Any]] = {
    "commit_log_file_size_bytes": 8192,
    "reserve_step_bytes": 4096,
    "consume_queue_reserve_step_bytes": 60,
    "consume_queue_file_size_bytes": 200,
}


def test_a_failure_of_any_single_call_loses_only_the_message_it_hits(maker: StoreMaker) -> None:
    counting = FaultyFileSystem()
    store = maker(maker.root / "counted", file_system=counting, **SETTINGS)
    before_puts = len(counting.calls)
    scenario(store, [])
    total = len(counting.calls)
    assert total - before_puts > 30
    for failing in range(before_puts + 1, total + 1, 8):
        faulty = FaultyFileSystem()
        faulty.fails = lambda number, name, path, failing=failing: number == failing  # type: ignore[misc]
        store = maker(maker.root / str(failing), file_system=faulty, **SETTINGS)
        stored: list[bytes] = []
        scenario(store, stored)
        assert len(stored) >= 73
        assert bodies(store) == stored
        copy = maker(maker.killed_copy(store), **SETTINGS)
        assert bodies(copy) == stored
        store.close()
        copy.close()
        assert bodies(maker(store.config.root, **SETTINGS)) == stored


def test_above_the_watermark_messages_are_refused_until_there_is_room(
    maker: StoreMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = DiskSpace(used_bytes=901, available_bytes=99)
    monkeypatch.setattr(FileSystem, "space", lambda self, path: space)
    store = maker()
    put(store)
    assert store.check_disk().used_percent == 91
    with pytest.raises(StoreFullError, match=r"91 % full, 99 bytes are free.*disk_full_ratio"):
        put(store)
    assert "disk_full_ratio" in store.statistics().refusal
    assert store.get_message(("T", 0), 0, 1).message_count == 1
    space = DiskSpace(used_bytes=900, available_bytes=100)
    assert store.check_disk().used_percent == 90
    put(store)


def test_a_delayed_message_is_due_its_delay_after_its_store_time(maker: StoreMaker) -> None:
    store = maker()
    due = store.delivery_time(3)
    for _ in range(2):
        maker.clock.now_ms += 7
        stored = put(store, "SCHEDULE_TOPIC_XXXX", 2, tags_code=due)
        (unit,) = store.queue_units("SCHEDULE_TOPIC_XXXX", 2, stored.queue_offset, 1)
        assert unit.tags_code == stored.store_timestamp + 10_000 == maker.clock.now_ms + 10_000


def test_a_delay_begins_now_though_store_times_are_ahead_of_a_clock_that_was_set_back(maker: StoreMaker) -> None:
    store = maker()
    ahead = put(store).store_timestamp
    maker.clock.now_ms -= 60_000
    stored = put(store, "SCHEDULE_TOPIC_XXXX", tags_code=store.delivery_time(1))
    assert stored.store_timestamp == ahead
    assert store.queue_units("SCHEDULE_TOPIC_XXXX", 0, 0, 1)[0].tags_code == maker.clock.now_ms + 1000


RUNS: Final = st.lists(
    st.tuples(st.integers(0, 2), st.binary(max_size=50), st.binary(max_size=30), st.integers(-(2**63), 2**63 - 1)),
    min_size=1,
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(messages=RUNS)
def test_a_run_leaves_the_same_bytes_as_its_messages_one_by_one(
    messages: list[tuple[int, bytes, bytes, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = []
    for as_run in (False, True):
        config = StoreConfig(root=tmp_path_factory.mktemp("store"), commit_log_file_size_bytes=64 * 1024)
        with MessageStore(config, clock_ms=lambda: BORN) as store:
            put(store)  # makes the files
            for queue_id in range(3):
                put(store, "T", queue_id)
            run: list[RunEntry] = [
                (store.queue("T", queue_id), body, properties, tags_code, 3, 1, BORN)
                for queue_id, body, properties, tags_code in messages
            ]
            places = store.put_run(run, HOST, HOST) if as_run else [store.put(*entry, HOST, HOST)[:2] for entry in run]
            assert places is not None
            queues = [(q.next_offset, q.max_offset, bytes(q.files.files[0].map)) for q in store.queues]
            files.append((places, store.commit_log.max_offset, bytes(store.commit_log.files.files[0].map), queues))
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "entry",
    [(bytes(1001), b"", 0), (b"", bytes(32768), 0), (b"", b"", 2**63)],
    ids=["body", "properties", "tags code"],
)
def test_a_run_with_one_message_above_a_limit_is_not_begun(maker: StoreMaker, entry: tuple[bytes, bytes, int]) -> None:
    store = maker(max_message_size_bytes=1000, commit_log_file_size_bytes=1024 * 1024)
    put(store)
    before = store.commit_log.max_offset
    run: list[RunEntry] = [(store.queue("T", 0), *each, 0, 0, BORN) for each in ((b"good", b"", 0), entry)]
    assert store.put_run(run, HOST, HOST) is None
    assert (store.commit_log.max_offset, store.max_offset_in_queue("T", 0)) == (before, 1)


def test_a_run_does_not_cross_the_end_of_a_file(store: MessageStore) -> None:
    def run() -> list[tuple[int, int]] | None:
        return store.put_run([(store.queue("T", 0), bytes(15_000), b"", 0, 0, 0, BORN)] * 2, HOST, HOST)

    put(store)
    taken = 0
    while (places := run()) is not None:
        taken += len(places)
    assert taken >= 2
    put(store, body=bytes(15_000))
    put(store, body=bytes(15_000))
    assert run() is not None
    assert store.get_message(("T", 0), taken, 32).buffers


def test_a_run_needs_no_other_way_where_the_log_was_not_filled_yet(maker: StoreMaker) -> None:
    store = maker(commit_log_file_size_bytes=1024 * 1024, consume_queue_file_size_bytes=20 * 1000)
    put(store)
    for _ in range(9):
        assert store.put_run([(store.queue("T", 0), bytes(10_000), b"", 0, 0, 0, BORN)] * 10, HOST, HOST) is not None


def test_a_process_killed_while_it_writes_a_run_leaves_none_of_it(store: MessageStore) -> None:
    put(store)
    log = store.commit_log
    end = log.max_offset
    before = bytes(log.files.files[0].map)
    assert store.put_run([(store.queue("T", 0), b"body", b"", 0, 0, 0, BORN)] * 3, HOST, HOST) is not None
    log.files.files[0].map[end : end + 8] = before[end : end + 8]  # what goes last
    assert log.check(end, check_crc=True).kind is not RecordKind.MESSAGE


def test_hosts_of_ipv6_and_a_closed_store_take_no_run(store: MessageStore) -> None:
    entry: RunEntry = (store.queue("T", 0), b"", b"", 0, 0, 0, BORN)
    put(store)
    assert store.put_run([entry], encode_host("::1", 1), HOST) is None
    assert store.put_run([entry], HOST, HOST) is not None
    store.close()
    assert store.put_run([entry], HOST, HOST) is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("call", ["reserve", "create_file", "rename"])
@pytest.mark.parametrize("kind", ["commitlog", "consumequeue"])
def test_a_bad_disk_names_path_room_and_setting_and_is_forgiven_when_it_is_good_again(
    maker: StoreMaker, faulty: FaultyFileSystem, code: int, call: str, kind: str
) -> None:
    store = maker(file_system=faulty, reserve_step_bytes=4096)
    put(store, body=b"before")
    faulty.code = code
    faulty.fails = lambda number, name, path: name == call and kind in path.parts
    errors = []
    for number in range(70):  # into the next file
        try:
            put(store, body=b"%02d" % number * 1000)
        except StoreError as exc:
            errors.append(exc)
    assert errors
    assert isinstance(errors[0], StoreFullError) == (code in {errno.ENOSPC, errno.EDQUOT})
    for part in (str(store.config.root / kind), os.strerror(code), "bytes are free", "StoreConfig.root (--store)"):
        assert part in str(errors[0])
    assert not store.has_failed
    known = bodies(store)
    assert len(known) == 1 + 70 - len(errors)
    faulty.fails = lambda number, name, path: False
    put(store, body=b"after")
    assert bodies(store) == [*known, b"after"]
    assert bodies(maker(maker.killed_copy(store))) == [*known, b"after"]


@pytest.mark.parametrize("way", ["put", "run", "batch"])
def test_zeros_that_the_disk_refuses_are_an_error_of_the_message_that_needs_them(
    maker: StoreMaker, faulty: FaultyFileSystem, way: str
) -> None:
    store = maker(file_system=faulty, commit_log_file_size_bytes=1024 * 1024)
    known = [b"before" * 20_000] * 2  # up to near the end of what is filled
    for body in known:
        put(store, body=body)
    end, body = store.commit_log.max_offset, b"refused" * 4000
    faulty.code = errno.EIO
    faulty.fails = lambda number, name, path: name == "zero"
    if way == "run":
        assert store.put_run([(store.queue("T", 0), body, b"", 0, 0, 0, BORN)], HOST, HOST) is None
    else:
        with pytest.raises(StoreError, match=r"cannot write zeros to .* bytes are free"):
            _ = put(store, body=body) if way == "put" else put_batch(store, [(0, body, b"", 0)])
    assert (store.commit_log.max_offset, store.queue("T", 0).next_offset) == (end, 2)
    faulty.fails = lambda number, name, path: False
    put(store, body=b"after")
    put(store, body=body)
    assert bodies(store) == [*known, b"after", body]
    assert bodies(maker(maker.killed_copy(store), commit_log_file_size_bytes=1024 * 1024)) == bodies(store)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(messages=RUNS)
def test_both_kinds_of_durability_leave_the_same_bytes(
    messages: list[tuple[int, bytes, bytes, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    logs = []
    for durability in Durability:
        root = tmp_path_factory.mktemp("store")
        config = StoreConfig(root=root, commit_log_file_size_bytes=64 * 1024, durability=durability)
        with MessageStore(config, clock_ms=lambda: BORN) as store:
            for queue_id, body, properties, tags_code in messages:
                put(store, "T", queue_id, body=body * 200, properties=properties, tags_code=tags_code)
                put_batch(store, [(1, body, properties, tags_code), (2, b"", b"", 0)])
                entry: RunEntry = (store.queue("T", queue_id), body, properties, tags_code, 3, 1, BORN)
                store.put_run([entry] * 3, HOST, HOST)
            logs.append([bytes(file.map) for file in store.commit_log.files.files])
    assert logs[0] == logs[1]
