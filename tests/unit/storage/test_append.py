import errno
import os
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.storage.making import BORN, FaultyFileSystem, StoreMaker, bodies, message, put
from triomq.protocol.errors import MessageIllegalError, StoreError, StoreFullError
from triomq.protocol.record.record import RecordKind, decode_records
from triomq.storage.append import Entry
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.message_store import MessageStore


def batch(store: MessageStore, *messages: tuple[int, bytes, bytes, int], **fields: Any) -> list[Entry]:
    """Messages for one queue, each of flag, body, properties and tags code."""
    return [
        message(store, body=body, flag=flag, properties=properties, tags_code=code, **fields)
        for flag, body, properties, code in messages
    ]


@pytest.mark.parametrize(("bits", "has_unit"), [(0, True), (4, False), (8, True), (12, False)])
def test_prepared_and_rolled_back_records_get_no_unit(store: MessageStore, bits: int, has_unit: bool) -> None:
    put(store)
    put(store)
    place = put(store, sys_flag=bits | 1)
    assert place.queue_offset == (2 if has_unit else 0)
    assert store.reader.max_offset_in_queue("T", 0) == (3 if has_unit else 2)
    assert store.commit_log.look_message(place.physical_offset) is not None
    assert put(store).queue_offset == (3 if has_unit else 2)


def test_limits_name_themselves_and_store_nothing(maker: StoreMaker) -> None:
    store = maker(max_message_size_bytes=1000, commit_log_file_size_bytes=1024 * 1024)
    with pytest.raises(MessageIllegalError, match="body of 1001 bytes, at most 1000"):
        put(store, body=bytes(1001))
    with pytest.raises(MessageIllegalError, match="properties of 32768 bytes, at most 32767"):
        put(store, properties=bytes(32768))
    assert store.commit_log.max_offset == 0
    put(store, body=bytes(1000), properties=b"x" * 32767)
    assert store.reader.max_offset_in_queue("T", 0) == 1


def test_batch_is_consecutive_records_with_one_store_time(store: MessageStore) -> None:
    put(store)
    entries = [(number, b"body %d" % number, b"a\x01%d" % number, number * 7) for number in range(5)]
    places = store.append(batch(store, *entries))
    assert [queue_offset for _, queue_offset in places] == [1, 2, 3, 4, 5]
    units = store.reader.queue_units("T", 0, 1, 5)
    assert [unit.tags_code for unit in units] == [0, 7, 14, 21, 28]
    for place, unit, following in zip(places, units, units[1:], strict=False):
        assert unit.physical_offset == place[0]
        assert following.physical_offset == unit.physical_offset + unit.size
    records = store.reader.get_message(("T", 0), 1, 32).buffers
    messages = [decoded for view in records for decoded in decode_records(view)]
    assert [(each.flag, each.stored_body, each.properties) for each in messages] == [
        (number, b"body %d" % number, {"a": str(number)}) for number in range(5)
    ]
    assert {each.store_timestamp for each in messages} == {store.commit_log.store_timestamp}


def test_batch_announces_itself_once(store: MessageStore) -> None:
    arrived: list[int] = []
    store.queue("T", 0).on_arrival = lambda queue: arrived.append(queue.max_offset)
    store.append([message(store)] * 3)
    assert store.append([]) == []
    assert arrived == [3]


def test_batch_with_one_bad_message_stores_none(maker: StoreMaker) -> None:
    store = maker(max_message_size_bytes=1000)
    put(store)
    end = store.commit_log.max_offset
    good = (0, b"good", b"", 0)
    for bad in ((2**31, b"x", b"", 0), (0, b"x", b"", 2**63), (0, bytes(1001), b"", 0), (0, b"x", bytes(32768), 0)):
        with pytest.raises(MessageIllegalError):
            store.append(batch(store, good, bad, good))
    with pytest.raises(MessageIllegalError, match="message for T"):
        store.append(batch(store, good, born_timestamp=2**63))
    assert store.commit_log.max_offset == end
    assert not any(store.commit_log.files.files[0].view[end:])
    assert put(store).queue_offset == 1
    assert bodies(store) == [b"body", b"body"]


def test_copies_ignore_limits_for_new_messages(maker: StoreMaker) -> None:
    store = maker(max_message_size_bytes=1000, commit_log_file_size_bytes=1024 * 1024)
    large = message(store, body=bytes(1001))
    with pytest.raises(MessageIllegalError, match="body of 1001 bytes"):
        store.append([large])
    assert len(store.append([large], are_copies=True)) == 1


def test_batch_for_more_queues_than_can_mapped_rejected(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.storage.append._MAX_QUEUES", 2)
    store = maker()
    entries = [message(store, "U", number // 2) for number in range(6)]
    with pytest.raises(MessageIllegalError, match="messages for 3 queues, at most 2"):
        store.append(entries)
    assert store.commit_log.max_offset == 0
    assert len(store.append(entries[:4])) == 4
    assert [bodies(store, "U", queue_id) for queue_id in range(3)] == [[b"body"] * 2, [b"body"] * 2, []]


def scenario(store: MessageStore, stored: list[bytes]) -> None:
    """Put, batch, roll over both kinds of files and flush; note the accepted bodies."""
    for number in range(60):
        body = b"%d-" % number * (900 if number % 5 == 0 else 3)
        try:
            if number % 4 == 3:
                store.append([message(store, body=body + b"a"), message(store, body=body + b"b")])
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


def test_any_single_failing_call_loses_only_its_message(maker: StoreMaker) -> None:
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


def test_delayed_message_due_delay_after_store_time(maker: StoreMaker) -> None:
    store = maker()
    due = store.config.delay_levels.due_time(3)
    for _ in range(2):
        maker.clock.now_ms += 7
        stored = put(store, "SCHEDULE_TOPIC_XXXX", 2, tags_code=due)
        (unit,) = store.reader.queue_units("SCHEDULE_TOPIC_XXXX", 2, stored.queue_offset, 1)
        assert unit.tags_code == stored.store_timestamp + 10_000 == maker.clock.now_ms + 10_000


def test_delay_starts_at_clock_that_was_set_back(maker: StoreMaker) -> None:
    store = maker()
    ahead = put(store).store_timestamp
    maker.clock.now_ms -= 3000
    stored = put(store, "SCHEDULE_TOPIC_XXXX", tags_code=store.config.delay_levels.due_time(1))
    assert stored.store_timestamp == ahead
    assert store.reader.queue_units("SCHEDULE_TOPIC_XXXX", 0, 0, 1)[0].tags_code == maker.clock.now_ms + 1000


RUNS: Final = st.lists(
    st.tuples(st.integers(0, 2), st.binary(max_size=50), st.binary(max_size=30), st.integers(-(2**63), 2**63 - 1)),
    min_size=1,
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(messages=RUNS)
def test_run_writes_same_bytes_as_single_messages(
    messages: list[tuple[int, bytes, bytes, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = []
    for as_run in (False, True):
        config = StoreConfig(root=tmp_path_factory.mktemp("store"), commit_log_file_size_bytes=64 * 1024, index=False)
        with MessageStore(config, clock_ms=lambda: BORN) as store:
            put(store)  # makes the files
            for queue_id in range(3):
                put(store, "T", queue_id)
            run = [
                message(store, "T", queue_id, body, properties=properties, tags_code=tags_code, flag=3, sys_flag=1)
                for queue_id, body, properties, tags_code in messages
            ]
            places = store.append(run) if as_run else [store.append([each])[0] for each in run]
            queues = [(q.next_offset, q.max_offset, bytes(q.files.files[0].map)) for q in store.queues]
            files.append((places, store.commit_log.max_offset, bytes(store.commit_log.files.files[0].map), queues))
    assert files[0] == files[1]


def test_process_killed_while_writing_run_leaves_none_of(store: MessageStore) -> None:
    put(store)
    log = store.commit_log
    end = log.max_offset
    before = bytes(log.files.files[0].map)
    store.append([message(store)] * 3)
    log.files.files[0].map[end : end + 8] = before[end : end + 8]  # what goes last
    assert log.check(end, check_crc=True).kind is not RecordKind.MESSAGE


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("call", ["reserve", "create_file", "rename"])
@pytest.mark.parametrize("kind", ["commitlog", "consumequeue"])
def test_disk_error_names_path_space_and_setting(
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


@pytest.mark.parametrize("count", [1, 2])
def test_failed_zero_fill_fails_only_message_needing_it(
    maker: StoreMaker, faulty: FaultyFileSystem, count: int
) -> None:
    store = maker(file_system=faulty, commit_log_file_size_bytes=1024 * 1024)
    known = [b"before" * 20_000] * 2  # up to near the end of the filled part
    for body in known:
        put(store, body=body)
    end, body = store.commit_log.max_offset, b"refused" * 4000
    faulty.code = errno.EIO
    faulty.fails = lambda number, name, path: name == "zero"
    with pytest.raises(StoreError, match=r"cannot write zeros to .* bytes are free"):
        store.append([message(store, body=body)] * count)
    assert (store.commit_log.max_offset, store.queue("T", 0).next_offset) == (end, 2)
    faulty.fails = lambda number, name, path: False
    put(store, body=b"after")
    put(store, body=body)
    assert bodies(store) == [*known, b"after", body]
    assert bodies(maker(maker.killed_copy(store), commit_log_file_size_bytes=1024 * 1024)) == bodies(store)


def test_flush_shows_messages_in_order_and_notifies_once(maker: StoreMaker) -> None:
    store = maker(durability=Durability.SYNC)
    queue = store.queue("T", 0)
    arrived: list[int] = []
    queue.on_arrival = lambda queue: arrived.append(queue.max_offset)
    places = [put(store).physical_offset for _ in range(3)]
    for flushed_to, shown, notified in ((places[1] - 1, 0, []), (places[2], 2, [2]), (2**40, 3, [2, 3])):
        store.commit_log.flushed_offset = flushed_to
        store.dispatch_flushed()
        assert (queue.max_offset, arrived) == (shown, notified)
