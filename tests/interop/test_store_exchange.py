"""Store directories that go to and fro between our broker and an unmodified Apache 4.9.7 one.

Scenario: store.md 10, checks 25, 26 and 29.
"""

import hashlib
import json
import lzma
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.interop.kit_driver import ApacheBrokers
from tests.interop.store_exchange import COMMIT_LOG_FILE_SIZE, FIXTURE_SIZES, Row, apache_on, gaps, read_all, within
from tests.processes import start_triomq
from triomq.client import Admin, Message, Producer, SendResult
from triomq.protocol.errors import TriomqError
from triomq.protocol.record.layout import MESSAGE_MAGIC

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

FIXTURES: Final = Path(__file__).parents[1] / "fixtures" / "store-4.9.7"
TOPIC: Final = "FixtureTopic"
SENDERS: Final = 8
LIMIT_S: Final = 60
BODY_AT: Final = 88  # in a record: Apache's broker would deliver one with another topic


def unpack(name: str, folder: Path) -> Path:
    """Lay a store that Apache wrote into ``folder``; its files count as new, or they would expire."""
    folder.mkdir()
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for path in folder.glob("store/commitlog/*"):
        os.utime(path)
    return folder / "store"


def told_by_apache(name: str) -> list[dict[str, Any]]:
    """The records of the topic, as Apache's own classes read them from this store."""
    with lzma.open(FIXTURES / "expected.json.xz") as file:
        content = json.load(file)
    return [record for record in content[name]["commitLog"] if record.get("topic") == TOPIC]


def places(records: Iterable[dict[str, Any]]) -> set[tuple[object, ...]]:
    return {
        (r["queueId"], r["queueOffset"], r["commitLogOffset"], r["uniqKey"], r["tags"], r["bodySha256"])
        for r in records
        if not r["sysFlag"] & 1  # for a compressed body, the stored size
    }


def places_of(rows: Iterable[Row]) -> set[tuple[object, ...]]:
    return {
        (r.queue_id, r.queue_offset, r.physical_offset, r.message_id, r.tags, hashlib.sha256(r.body).hexdigest())
        for r in rows
    }


def messages(writer: str) -> Iterable[Message]:
    """Bodies of several sizes, some large enough to be compressed."""
    number = 0
    while True:
        body = b"%d of %s " % (number, writer.encode()) * (300 if number % 20 == 0 else 1 + number % 30)
        tags = f"Tag{number % 3}" if number % 4 else None
        yield Message(TOPIC, body, tags=tags, keys=[f"{writer}-{number}", "common"], properties={"number": str(number)})
        number += 1


async def write(namesrv: str, writer: str, count: int, end: Callable[[], object]) -> dict[str, SendResult]:
    """Send with several tasks until ``count`` messages are acknowledged, then ``end`` the broker while they continue.

    Returns the acknowledged messages by message id.
    """
    acknowledged: dict[str, SendResult] = {}
    source = iter(messages(writer))
    enough = trio.Event()

    async def send(producer: Producer) -> None:
        for message in source:
            try:
                result = await producer.send(message)
            except TriomqError:  # the broker is gone
                assert enough.is_set()
                return
            acknowledged[result.message_id] = result
            if len(acknowledged) >= count:
                enough.set()

    async with Producer("store-exchange", namesrv=namesrv) as producer, trio.open_nursery() as nursery:
        for _ in range(SENDERS):
            nursery.start_soon(send, producer)
        await enough.wait()
        await trio.to_thread.run_sync(end)
        nursery.cancel_scope.cancel()
    return acknowledged


async def write_quietly(namesrv: str, writer: str, count: int) -> dict[str, SendResult]:
    """The same with a broker that keeps running, so that every message is acknowledged."""
    source = iter(messages(writer))
    async with Producer("store-exchange", namesrv=namesrv) as producer:
        results = [await producer.send(next(source)) for _ in range(count)]
    return {result.message_id: result for result in results}


def check(found: list[Row], before: Iterable[Row], acknowledged: dict[str, SendResult]) -> None:
    """All that was there is there, unchanged and without gap, and so is all that was acknowledged since."""
    assert not set(before) - set(found)
    assert gaps(found) == []
    by_place = {(row.queue_id, row.queue_offset): row.message_id for row in found}
    assert len(by_place) == len(found), "no place is there twice"
    for message_id, result in acknowledged.items():
        assert by_place.get((result.queue.queue_id, result.queue_offset)) == message_id


@pytest.mark.parametrize(
    ("name", "kill"),
    [("store-normal", False), ("store-crash", True), ("store-powerloss", True), ("store-trimmed", False)],
)
def test_store_survives_exchange_with_apache_both_ways(
    name: str, kill: bool, tmp_path: Path, apache_brokers: ApacheBrokers
) -> None:
    """Each broker delivers all that the one before it wrote, and writes on; all end in order, or all are killed."""
    store = unpack(name, tmp_path / "ours")
    with start_triomq(store.parent, *FIXTURE_SIZES) as ours:
        first = within(LIMIT_S, read_all, ours.namesrv, TOPIC)
        told = told_by_apache(name)
        assert places(told) <= places_of(first)
        assert len(first) >= len(told)
        sent = within(LIMIT_S, write, ours.namesrv, "ours", 150, ours.kill if kill else ours.stop)
    with apache_on(apache_brokers, store) as apache:
        second = within(LIMIT_S, read_all, apache.namesrv, TOPIC)
        check(second, first, sent)
        end = partial(apache_brokers.stop_broker, apache.folder, kill=kill)
        sent |= within(LIMIT_S, write, apache.namesrv, "apache", 150, end)
        (apache.folder / "store-broker").rename(store)
    with start_triomq(store.parent, *FIXTURE_SIZES) as ours:
        third = within(LIMIT_S, read_all, ours.namesrv, TOPIC)
        check(third, second, sent)
        sent |= within(LIMIT_S, write_quietly, ours.namesrv, "again", 20)
        check(within(LIMIT_S, read_all, ours.namesrv, TOPIC), third, sent)


def test_delayed_messages_survive_topic_deletion_by_apache(tmp_path: Path, apache_brokers: ApacheBrokers) -> None:
    """It then deletes the queues of all topics that the table does not name, and the table was Apache's."""
    store = unpack("store-normal", tmp_path / "ours")
    with start_triomq(store.parent, *FIXTURE_SIZES) as ours:
        within(LIMIT_S, send_later, ours.namesrv)
    queue = "consumequeue/rmq_sys_wheel_timer/0/00000000000000000000"
    waiting = (store / queue).read_bytes()
    with apache_on(apache_brokers, store) as apache:
        within(LIMIT_S, make_and_delete_a_topic, apache.namesrv)
        assert (apache.folder / "store-broker" / queue).read_bytes() == waiting


async def send_later(namesrv: str) -> None:
    async with Producer("store-exchange", namesrv=namesrv) as producer:
        await producer.send(Message(TOPIC, b"later", delay_s=3600.0))


async def make_and_delete_a_topic(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("deleted-at-once")
        await admin.delete_topic("deleted-at-once")


def damage(store: Path, row: Row, at: int, content: bytes) -> None:
    """Overwrite a part of a record."""
    start = row.physical_offset - row.physical_offset % COMMIT_LOG_FILE_SIZE
    with (store / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(row.physical_offset - start + at)
        file.write(content)


def test_apache_delivers_all_intact_messages_of_repaired_store(tmp_path: Path, apache_brokers: ApacheBrokers) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    with start_triomq(folder, *FIXTURE_SIZES) as ours:
        within(LIMIT_S, write, ours.namesrv, "ours", 900, ours.kill)
    store = Path(ours.store)
    with start_triomq(folder, *FIXTURE_SIZES) as ours:
        before = within(LIMIT_S, read_all, ours.namesrv, TOPIC)
        ours.kill()
    by_place = sorted(before, key=lambda row: row.physical_offset)
    third = len(by_place) // 3
    hurt = [by_place[third], *by_place[2 * third : 2 * third + 3]]  # one, and three in a row
    in_first_file = [row for row in by_place if row.queue_id == 0 and row.physical_offset < COMMIT_LOG_FILE_SIZE]
    hurt += [*in_first_file[:2], *in_first_file[4:7]]  # where RocketMQ passes by more than a blank unit
    magic = MESSAGE_MAGIC.to_bytes(4, signed=True)
    kinds = [(BODY_AT, b"rotten"), (0, bytes(60)), (4, magic[::-1]), (20, b"\xff" * 30)]
    for row, (at, content) in zip(hurt, cycle(kinds)):
        damage(store, row, at, content)
    with start_triomq(folder, *FIXTURE_SIZES) as ours:
        healed = within(LIMIT_S, read_all, ours.namesrv, TOPIC)
        assert Counter(before) - Counter(healed) == Counter(hurt)
        assert len(before) - len(healed) == len(hurt)
    with apache_on(apache_brokers, store) as apache:
        found = within(LIMIT_S, read_all, apache.namesrv, TOPIC)
        assert set(found) == set(healed)
        assert max(Counter(found).values()) == 4, "three in a row that are lost: the next one comes four times"
        tagged = within(LIMIT_S, read_all, apache.namesrv, TOPIC, "Tag0 || Tag1 || Tag2")
        assert Counter(tagged) == Counter(row for row in healed if row.tags is not None)
        sent = within(LIMIT_S, write_quietly, apache.namesrv, "apache", 20)
        more = within(LIMIT_S, read_all, apache.namesrv, TOPIC)
        assert {row.message_id for row in more} - {row.message_id for row in found} == set(sent)
