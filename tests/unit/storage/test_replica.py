"""What a slave's store takes and shows; the property test in tests/property/test_replica.py has the usual lives."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.unit.storage.making import FaultyFileSystem, StoreMaker, bodies, body, filled, matches, put, run
from triomq.protocol.errors import StoreClosedError, StoreError, StoreFullError, StoreLayoutError
from triomq.protocol.record.layout import BLANK_HEAD, BLANK_MAGIC, MESSAGE_MAGIC
from triomq.storage.config import Durability
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish
from triomq.storage.retention import Retention

FILE: Final = 65536


@pytest.fixture
def slave(maker: StoreMaker, tmp_path: Path, faulty: FaultyFileSystem) -> MessageStore:
    return maker(tmp_path / "slave", is_replica=True, file_system=faulty)


def content(master: MessageStore) -> bytearray:
    """The log of a store that begins at 0, as it is sent."""
    log = master.commit_log
    return bytearray(b"".join(file.view for file in log.files.files)[: log.max_offset])


def copy(slave: MessageStore, log: bytes | bytearray, start: int = 0, end: int | None = None) -> int:
    """Send a part of a log in pieces and return how many messages that gave."""
    end = len(log) if end is None else end
    while start < end:
        stop = min(start + 1000, end, start - start % FILE + FILE)
        slave.replica.append(start, memoryview(log)[start:stop])
        start = stop
    return finish(slave.replica.dispatching())


def test_message_visible_with_its_last_byte(maker: StoreMaker, slave: MessageStore) -> None:
    master = maker()
    put(master, body=b"first")
    put(master, body=b"second", tags="A")
    log = content(master)
    queue = slave.queue("T", 0)
    arrived: list[ConsumeQueue] = []
    queue.on_arrival = arrived.append
    copy(slave, log, 0, len(log) - 1)
    assert bodies(slave) == [b"first"]
    assert slave.replica.end == len(log) - 1 > slave.commit_log.max_offset
    assert copy(slave, log, len(log) - 1) == 1
    assert bodies(slave) == [b"first", b"second"]
    assert arrived == [queue, queue]
    assert slave.commit_log.store_timestamp == master.commit_log.store_timestamp


@pytest.mark.parametrize("name", ["store-normal", "store-trimmed"])
def test_copy_of_apaches_log_has_apaches_queues(
    maker: StoreMaker, slave: MessageStore, unpack: Callable[[str], Path], name: str
) -> None:
    master = maker(unpack(name))
    log, replica = master.commit_log, slave.replica
    assert log.files.file_size == FILE
    while piece := log.piece(max(replica.end, log.min_offset), 777):
        replica.append(max(replica.end, log.min_offset), piece)
    finish(replica.dispatching())
    queues = [queue for queue in master.queues if queue.files.files]
    assert queues
    for queue in queues:
        numbers = range(queue.min_offset, queue.next_offset)
        mirrored = slave.queue(queue.topic, queue.queue_id)
        assert [mirrored.unit(number) for number in numbers] == [queue.unit(number) for number in numbers]
        assert mirrored.next_offset == queue.next_offset


def test_bytes_that_do_not_continue_log_refused(maker: StoreMaker, slave: MessageStore) -> None:
    log = content(filled(maker, 20))
    copy(slave, log, 0, 5000)
    for offset in (4999, 5001, 0, FILE, -1):
        with pytest.raises(StoreLayoutError, match=rf"from {offset}, but this log ends at 5000"):
            slave.replica.append(offset, bytes(log[5000:5100]))
    slave.replica.append(5000, b"")
    copy(slave, log, 5000)
    assert content(slave) == log


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (FILE + 4096, b"abc"),
        (-FILE, b"abc"),
        (0, bytes(FILE + 1)),
        (0, BLANK_HEAD.pack(FILE // 2, BLANK_MAGIC)),
        (FILE, BLANK_HEAD.pack(2 * FILE, BLANK_MAGIC)),
    ],
)
def test_log_with_other_file_size_refused(slave: MessageStore, offset: int, data: bytes) -> None:
    with pytest.raises(StoreLayoutError, match="must have one size"):
        slave.replica.append(offset, data)


def test_file_without_whole_record_counts_as_none(maker: StoreMaker, slave: MessageStore) -> None:
    log = content(filled(maker))
    copy(slave, log, 0, 900)
    killed = maker.killed_copy(slave)
    slave.close()
    again = maker(killed, is_replica=True)
    assert again.replica.end == 0
    copy(again, log, FILE)
    assert again.commit_log.min_offset == FILE
    assert bodies(again, "T")[-1] == body(198)


def test_record_with_damaged_body_skipped_once(
    maker: StoreMaker, slave: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    master = maker()
    places = [put(master, body=b"%d" % number * 50).physical_offset for number in range(4)]
    log = content(master)
    log[places[1] + 100] ^= 1
    copy(slave, log)
    for _ in range(2):
        assert bodies(slave) == [b"0" * 50, b"2" * 50, b"3" * 50]
    assert slave.reader.max_offset_in_queue("T", 0) == 4
    assert content(slave) == log
    assert [record.message for record in caplog.records if "damaged" in record.message] == [
        f"message skipped, its record is damaged file={slave.commit_log.files.files[0].path} offset={places[1]}"
        " reason=the body does not match its CRC"
    ]


@pytest.mark.parametrize("start", [bytes(8), b"\xff" * 8, BLANK_HEAD.pack(FILE, MESSAGE_MAGIC)])
def test_records_after_false_start_appear_with_file_end(maker: StoreMaker, slave: MessageStore, start: bytes) -> None:
    master = filled(maker)
    log = content(master)
    wanted = bodies(master)
    unit = master.queue("T", 0).unit(5)
    assert unit is not None
    damaged = unit.physical_offset
    log[damaged : damaged + 8] = start
    copy(slave, log, 0, FILE - 1)
    assert bodies(slave) == wanted[:5]
    copy(slave, log, FILE - 1)
    assert content(slave) == log
    assert bodies(slave) == wanted[:5] + wanted[6:]


def test_failed_write_loses_nothing(maker: StoreMaker, slave: MessageStore, faulty: FaultyFileSystem) -> None:
    master = filled(maker)
    log = content(master)
    copy(slave, log, 0, 5000)
    faulty.fails = lambda number, name, path: name == "create_file" and "commitlog" in path.parts
    copy(slave, log, 5000, FILE)
    with pytest.raises(StoreFullError):
        slave.replica.append(FILE, bytes(log[FILE : FILE + 10]))
    assert slave.replica.end == FILE
    faulty.fails = lambda number, name, path: name == "create_file" and "consumequeue" in path.parts
    faulty.code = errno.EIO
    with pytest.raises(StoreError):
        copy(slave, log, FILE)
    faulty.fails = lambda number, name, path: False
    copy(slave, log, slave.replica.end)
    assert content(slave) == log
    assert bodies(slave) == bodies(master)
    assert bodies(slave, "U") == bodies(master, "U")


def test_dispatch_ends_while_more_arrives(maker: StoreMaker, slave: MessageStore) -> None:
    """With durability sync, a flush and a report of the copied bytes follow it, also while a slave catches up."""
    master = filled(maker)
    log = bytes(content(master))
    slave.replica.append(0, log[:5000])
    work = slave.replica.dispatching()
    next(work)
    slave.replica.append(5000, log[5000:FILE])
    with pytest.raises(StopIteration) as ended:
        next(work)
    assert 0 < ended.value.value < finish(slave.replica.dispatching())
    assert slave.commit_log.max_offset == slave.replica.end


def test_messages_before_failed_unit_are_readable(
    maker: StoreMaker, slave: MessageStore, faulty: FaultyFileSystem
) -> None:
    """Their units exist: readers must not take their records for lost."""
    master = maker()
    for topic in "TUTU":
        put(master, topic)
    faulty.fails = lambda _number, name, path: name == "create_file" and "U" in path.parts
    with pytest.raises(StoreFullError):
        copy(slave, content(master))
    assert bodies(slave) == bodies(master)[: slave.reader.max_offset_in_queue("T", 0)] != []
    faulty.fails = lambda number, name, path: False
    assert finish(slave.replica.dispatching()) == 3
    assert bodies(slave) + bodies(slave, "U") == bodies(master) + bodies(master, "U")
    assert slave.commit_log.max_offset == master.commit_log.max_offset


def test_store_takes_its_own_messages_or_masters(maker: StoreMaker, slave: MessageStore) -> None:
    master = maker()
    with pytest.raises(StoreError, match="takes no log of a master"):
        _ = master.replica
    with pytest.raises(StoreError, match="copies the log of a master"):
        put(slave)
    replica = slave.replica
    assert slave.refused.error() is None
    slave.close()
    with pytest.raises(StoreClosedError):
        replica.append(0, b"abc")


def test_keys_and_retention_follow_log_beginning_late(maker: StoreMaker, slave: MessageStore) -> None:
    master = maker()
    for number in range(200):
        put(master, body=body(number), properties=b"KEYS\x01k%d" % number)
    log = content(master)
    copy(slave, log, FILE)
    assert matches(slave, "T", "k199").offsets == matches(master, "T", "k199").offsets != []
    assert not matches(slave, "T", "k0").offsets
    first = slave.reader.min_offset_in_queue("T", 0)
    assert first > 0
    slave.flush()
    maker.clock.now_ms += 1000 * 3_600_000
    retention = Retention(slave)
    retention.request()
    assert run(retention)
    assert slave.reader.min_offset_in_queue("T", 0) > first
    assert bodies(slave) == bodies(master)[slave.reader.min_offset_in_queue("T", 0) :]


def test_durable_end_is_what_disk_has(maker: StoreMaker, tmp_path: Path) -> None:
    master = maker()
    put(master)
    put(master)
    log = content(master)
    slave = maker(tmp_path / "slave", is_replica=True, durability=Durability.SYNC)
    copy(slave, log, 0, len(log) - 1)
    assert slave.replica.durable_end == 0
    slave.flush()
    assert slave.replica.durable_end == len(log) - 1
    copy(slave, log, len(log) - 1)
    assert slave.replica.durable_end == len(log) // 2
    slave.flush()
    assert slave.replica.durable_end == len(log)
