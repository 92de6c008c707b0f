"""A store directory that our broker wrote, served by an unmodified Apache 4.9.7 broker."""

from pathlib import Path
from typing import Final

import pytest

from tests.interop.kit_driver import ApacheBrokers
from tests.interop.store_exchange import Row, apache_on, file_size, read_all, row, within
from tests.interop.suite_tools import Inbox, fresh, push_consumer
from tests.processes import start_triomq
from triomq.client import Admin, Message, Producer, PullConsumer

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC: Final = "handed-over"
GROUP: Final = "half-way"
COUNT: Final = 400
CONSUMED: Final = 100
SMALL_FILES: Final = (  # so that all roll over
    *("--commit-log-file-size", "131072", "--consume-queue-file-size", "2000"),
    *("--index-slots", "50", "--index-units", "150"),
)


def messages() -> list[Message]:
    """Bodies of several sizes; every tenth is large enough to be compressed."""
    return [
        Message(
            TOPIC,
            b"%d " % number * (2000 if number % 10 == 0 else 1 + number % 7),
            tags=f"Tag{number % 3}" if number % 4 else None,
            keys=[f"key-{number}", "ключ"],
            properties={"number": str(number)},
        )
        for number in range(COUNT)
    ]


async def fill(namesrv: str) -> None:
    """Single messages, batches, and a group that has consumed some of them."""
    sent = messages()
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(TOPIC, queues=3)
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        for message in sent[: COUNT // 2]:
            await producer.send(message)
        for begin in range(COUNT // 2, COUNT, 50):
            await producer.send_batch(sent[begin : begin + 50])
        for waiting in ({"delay_s": 3600.0}, {"delay_level": 18}):  # they stay where they are
            await producer.send(Message(TOPIC, b"later", **waiting))
    async with PullConsumer(GROUP, namesrv=namesrv) as pull:
        for queue in await pull.queues(TOPIC):
            await pull.commit(queue, min(CONSUMED // 3, await pull.max_offset(queue)))


async def find_all(namesrv: str) -> list[list[Row]]:
    """What is found by each key and by each producer's id."""
    found = []
    async with Admin(namesrv=namesrv) as admin:
        for number in range(COUNT):
            (message,) = await admin.find_messages(TOPIC, f"key-{number}")
            (again,) = await admin.find_messages(TOPIC, message.message_id, unique=True)
            found.append([row(message), row(again)])
        newest = await admin.find_messages(TOPIC, "ключ")
        middle = newest[len(newest) // 2].store_timestamp
        older = await admin.find_messages(TOPIC, "ключ", end_ms=middle)
    assert len(newest) == 64
    return [*found, list(map(row, newest)), list(map(row, older))]


async def consume_rest(namesrv: str, count: int) -> list[Row]:
    """What the group that stopped half-way gets."""
    inbox = Inbox()
    async with push_consumer(namesrv, TOPIC, inbox.take, group=GROUP):
        await inbox.wait_count(count)
    return [row(message) for message in inbox.messages]


async def send_one_more(namesrv: str) -> list[int]:
    """Offsets of one more message in each queue."""
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        queues = await producer.publish_queues(TOPIC)
        return [(await producer.send(Message(TOPIC, b"more"), queue=queue)).queue_offset for queue in queues]


def test_apache_delivers_every_message_of_our_store(tmp_path: Path, apache_brokers: ApacheBrokers) -> None:
    with start_triomq(tmp_path, *SMALL_FILES) as ours:
        within(60, fill, ours.namesrv)
        expected = within(60, read_all, ours.namesrv, TOPIC)
        found = within(60, find_all, ours.namesrv)
    assert len(expected) == COUNT
    assert len(list(Path(ours.store, "index").iterdir())) > 5
    assert not Path(ours.store, "abort").exists()
    assert len(list(Path(ours.store, "commitlog").iterdir())) > 1

    store = Path(ours.store)
    settings = {
        "mappedFileSizeCommitLog": file_size((store / "commitlog").iterdir()),
        "mappedFileSizeConsumeQueue": file_size((store / "consumequeue").glob("*/*/*")),
        "maxHashSlotNum": 50,
        "maxIndexNum": 150,
    }
    index = {path.name: path.read_bytes() for path in (store / "index").iterdir()}
    with apache_on(apache_brokers, store, settings) as apache:
        assert within(60, read_all, apache.namesrv, TOPIC) == expected
        assert within(60, find_all, apache.namesrv) == found
        assert {path.name: path.read_bytes() for path in (apache.folder / "store-broker" / "index").iterdir()} == index
        rest = [place for place in expected if place.queue_offset >= CONSUMED // 3]
        assert sorted(within(60, consume_rest, apache.namesrv, len(rest))) == sorted(rest)
        ends = [
            1 + max(place.queue_offset for place in expected if place.queue_id == queue_id) for queue_id in range(3)
        ]
        assert within(60, send_one_more, apache.namesrv) == ends
