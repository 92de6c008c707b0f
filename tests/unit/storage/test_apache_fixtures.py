"""Directories that Apache 4.9.7 wrote: the same records, queues, reads and recovery as with its own classes."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest

from tests.unit.storage.making import SMALL, FaultyFileSystem, StoreMaker, matches, put
from triomq.protocol.errors import StoreLayoutError
from triomq.protocol.filters.filter_types import TagFilter
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import RecordKind, decode_record, decode_records
from triomq.storage.commit_log.log_scan import LogScan
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish
from triomq.storage.reading.get_message import GetMessageResult

ARCHIVES: Final = ("store-normal", "store-crash", "store-powerloss", "store-trimmed")
Unpack = Callable[[str], Path]
Expected = Mapping[str, Any]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def key(text: str) -> tuple[str, int]:
    topic, _, queue_id = text.rpartition(":")
    return topic, int(queue_id)


@pytest.fixture(params=ARCHIVES)
def archive(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(archive: str, unpack: Unpack, maker: StoreMaker) -> MessageStore:
    return maker(unpack(archive))


@pytest.fixture
def told(archive: str, expected: Expected) -> Mapping[str, Any]:
    found: Mapping[str, Any] = expected[archive]
    return found


def test_commit_log_begins_and_ends_where_apache_says(opened: MessageStore, told: Expected) -> None:
    assert opened.commit_log.min_offset == told["minPhyOffset"]
    assert opened.commit_log.max_offset == told["maxPhyOffset"]


def test_walk_over_log_finds_exactly_apaches_records(opened: MessageStore, told: Expected) -> None:
    log = opened.commit_log
    wanted = [record for record in told["commitLog"] if "blank" not in record]
    walked = list(LogScan(log, log.min_offset, stop=log.max_offset))
    assert [(offset, record.size) for offset, record in walked] == [
        (record["commitLogOffset"], record["size"]) for record in wanted
    ]
    for (offset, check), record in zip(walked, wanted, strict=True):
        view = log.look_message(offset, check.size)
        assert view is not None
        assert_message(decode_record(view), record)


def assert_message(message: MessageExt, record: Mapping[str, Any]) -> None:
    body = message.stored_body
    assert message.topic == record["topic"]
    assert message.queue_id == record["queueId"]
    assert message.queue_offset == record["queueOffset"]
    assert message.physical_offset == record["commitLogOffset"]
    assert message.flag == record["flag"]
    assert message.sys_flag == record["sysFlag"]
    assert message.body_crc == record["bodyCRC"] == crc32(body) & 0x7FFFFFFF
    assert hashlib.sha256(body).hexdigest() == record["bodySha256"]
    assert message.born_timestamp == record["bornTimestamp"]
    assert message.store_timestamp == record["storeTimestamp"]
    assert message.reconsume_times == record["reconsumeTimes"]
    assert message.prepared_transaction_offset == record["preparedTransactionOffset"]
    assert message.properties == record["properties"]
    assert message.offset_message_id == record["msgId"]


def test_blank_records_stand_where_apache_found_them(opened: MessageStore, told: Expected) -> None:
    for record in told["commitLog"]:
        if "blank" in record:
            found = opened.commit_log.check(record["commitLogOffset"], check_crc=False)
            assert (found.kind, found.size) == (RecordKind.BLANK, record["size"])
            assert (record["commitLogOffset"] + found.size) % SMALL["commit_log_file_size_bytes"] == 0


def test_queues_have_apaches_offsets_and_units(opened: MessageStore, told: Expected) -> None:
    for name, queue in told["queues"].items():
        topic, queue_id = key(name)
        assert opened.reader.min_offset_in_queue(topic, queue_id) == queue["minOffset"], name
        assert opened.reader.max_offset_in_queue(topic, queue_id) == queue["maxOffset"], name
        units = opened.reader.queue_units(topic, queue_id, queue["minOffset"], queue["maxOffset"])
        assert [tuple(unit) for unit in units] == [
            (unit["commitLogOffset"], unit["size"], unit["tagsCode"]) for unit in queue["units"]
        ], name
    with_units = {f"{queue.topic}:{queue.queue_id}" for queue in opened.queues if queue.max_offset}
    assert with_units == set(told["queues"])


def test_every_read_ends_as_with_apache(opened: MessageStore, told: Expected) -> None:
    reads = [(key(name), read) for name, reads in told["getMessage"].items() for read in reads]
    assert reads
    for queue, read in reads:
        codes = TagFilter.parse(read["subscription"]).codes if read["subscription"] is not None else None
        found = opened.reader.get_message(queue, read["offset"], read["maxMsgNums"], codes)
        assert described(found) == {
            name: read[name]
            for name in ("status", "nextBeginOffset", "minOffset", "maxOffset", "bufferTotalSize", "queueOffsets")
        }, read
        assert found.message_count == len(read["queueOffsets"])


def described(found: GetMessageResult) -> dict[str, Any]:
    return {
        "status": found.status.name,
        "nextBeginOffset": found.next_begin_offset,
        "minOffset": found.min_offset,
        "maxOffset": found.max_offset,
        "bufferTotalSize": found.size_bytes,
        "queueOffsets": [message.queue_offset for buffer in found.buffers for message in decode_records(buffer)],
    }


@pytest.mark.parametrize("name", ["store-normal", "store-crash", "store-trimmed"])
def test_time_lookups_match_apache_with_genuine_file_times(
    name: str, unpack: Unpack, maker: StoreMaker, expected: Expected
) -> None:
    store = maker(unpack(name))
    for queue_name, queue in expected[name]["queues"].items():
        for lookup in queue["offsetByTime"]:
            assert finish(store.reader.offset_by_time(*key(queue_name), lookup["timestamp"])) == lookup["offset"], (
                queue_name,
                lookup,
            )


def test_cleanly_closed_directory_opens_and_closes_unchanged(unpack: Unpack, maker: StoreMaker) -> None:
    root = unpack("store-normal")
    before = contents(root)
    store = maker(root)
    assert store.recovery is not None
    assert store.recovery.clean
    assert (root / "abort").exists()
    store.close()
    after = contents(root)
    assert {name for name in before | after if before.get(name) != after.get(name)} <= {"checkpoint"}
    assert not (root / "abort").exists()


@pytest.mark.parametrize("name", ["store-normal", "store-trimmed"])
def test_queues_rebuilt_from_log_apaches_byte_for_byte(name: str, unpack: Unpack, maker: StoreMaker) -> None:
    root = unpack(name)
    before = contents(root / "consumequeue")
    shutil.rmtree(root / "consumequeue")
    maker(root).close()
    assert contents(root / "consumequeue") == before


def test_killed_broker_store_gains_unit_without_empty_file(unpack: Unpack, maker: StoreMaker) -> None:
    root = unpack("store-crash")
    index = contents(root / "index")
    report = maker(root).recovery
    assert report is not None
    assert not report.clean
    assert report.scan_start == 131072  # the last file whose first record the checkpoint covers
    assert report.log_end == 271552
    assert report.units_added == 1
    assert report.truncated_bytes == 0
    assert report.removed_files == 1
    assert not (root / "commitlog" / "00000000000000327680").exists()
    newest = max(index)
    assert report.removed_index_files == (newest,)  # it ends after the time of the checkpoint
    assert contents(root / "index") == {name: content for name, content in index.items() if name != newest}


def test_every_key_is_found_where_apache_finds_it(opened: MessageStore, told: Expected) -> None:
    """Only that RocketMQ indexes one message twice after a crash: store.md 4.4, 11."""
    assert told["indexQueries"]
    for name, offsets in told["indexQueries"].items():
        topic, _, key = name.rpartition("#")
        once = list(dict.fromkeys(offsets))
        assert matches(opened, topic, key, most=32).offsets[-len(once) :] == once, name
        assert once == offsets or told["abortFilePresent"]


@pytest.mark.parametrize("name", ["store-normal", "store-trimmed"])
def test_index_rebuilt_from_log_matches_apache_bytewise(name: str, unpack: Unpack, maker: StoreMaker) -> None:
    root = unpack(name)
    before = contents(root / "index")
    shutil.rmtree(root / "index")
    maker(root).close()
    assert list(contents(root / "index").values()) == list(before.values())


def test_power_loss_keeps_everything_before_torn_message(unpack: Unpack, maker: StoreMaker, expected: Expected) -> None:
    root = unpack("store-powerloss")
    store = maker(root)
    report = store.recovery
    assert report is not None
    assert report.log_end == 264202
    assert [store.reader.max_offset_in_queue("FixtureTopic", queue_id) for queue_id in range(4)] == [126, 68, 65, 95]
    delayed = store.reader.queue_units("SCHEDULE_TOPIC_XXXX", 17, 0, 10)
    wanted = expected["store-powerloss"]["queues"]["SCHEDULE_TOPIC_XXXX:17"]["units"]
    assert [unit.tags_code for unit in delayed] == [unit["tagsCode"] for unit in wanted]
    assert report.truncated_bytes > 0
    last = (root / "commitlog" / "00000000000000262144").read_bytes()
    assert not any(last[264202 - 262144 :])


def test_messages_put_into_apaches_directory_follow_its_own(unpack: Unpack, maker: StoreMaker) -> None:
    root = unpack("store-normal")
    store = maker(root)
    assert put(store, "FixtureTopic", 0, b"ours").queue_offset == 71
    assert put(store, "FixtureTopic", 2, b"ours").queue_offset == 10
    assert put(store, "FixtureTopic", 2, b"ours").physical_offset > 162916
    store.close()
    again = maker(root)
    found = again.reader.get_message(("FixtureTopic", 0), 70, 32)
    bodies = [message.stored_body for buffer in found.buffers for message in decode_records(buffer)]
    assert len(bodies) == 2
    assert bodies[1] == b"ours"


def test_consume_queue_extensions_are_rejected_without_change(
    unpack: Unpack, maker: StoreMaker, faulty: FaultyFileSystem
) -> None:
    root = unpack("store-ext")
    before = contents(root)
    with pytest.raises(StoreLayoutError, match="enableConsumeQueueExt"):
        maker(root, file_system=faulty)
    assert contents(root) == before
    assert {name for name, _ in faulty.calls} <= {"make_directories", "sync_directory"}
