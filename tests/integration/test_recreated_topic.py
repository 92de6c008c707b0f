"""A topic is deleted and created again under running consumers: each gets the new topic from its first message."""

import errno
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.integration.broker_wire import broker_config, namesrv_address, running, wait_for
from triomq.broker import open_broker
from triomq.client import (
    Admin,
    ClientConfig,
    ConsumerConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PushConsumer,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.storage.files.file_system import FileSystem
from triomq.storage.reading.cold_read import finish

OLD, NEW = 20, 30
QUEUE: Final = MessageQueue("T", "broker-a", 0)
KINDS: Final[dict[str, dict[str, Any]]] = {
    "concurrent": {},
    "orderly": {"orderly": True},
    "broadcasting": {"model": MessageModel.BROADCASTING},
    "lite": {},
    "lite broadcasting": {"model": MessageModel.BROADCASTING},
}


class Seen(list[str]):
    """The bodies of the messages that a consumer got."""

    def add(self, message: MessageExt) -> None:
        self.append(message.body.decode())


@asynccontextmanager
async def consuming(
    kind: str, namesrv: str, seen: Seen, folder: Path
) -> AsyncGenerator[PushConsumer | LitePullConsumer]:
    """Run a member of group G, which would skip the first messages of a topic that it takes for an old one."""
    if not kind.startswith("lite"):

        async def on_message(message: MessageExt) -> None:
            seen.add(message)

        async with PushConsumer(
            "G",
            namesrv=namesrv,
            on_message=on_message,
            subscriptions={"T": "*"},
            start="latest",
            settings=ConsumerConfig(local_offset_dir=folder),
            **KINDS[kind],
        ) as consumer:
            await consumer.wait_assigned()
            yield consumer
        return
    async with (
        LitePullConsumer(
            "G", namesrv=namesrv, start="latest", settings=LitePullConfig(local_offset_dir=folder), **KINDS[kind]
        ) as lite,
        trio.open_nursery() as nursery,
    ):
        await lite.subscribe("T")

        async def poll() -> None:
            while True:
                for message in await lite.poll():
                    seen.add(message)

        nursery.start_soon(poll)
        yield lite
        await lite.commit()
        nursery.cancel_scope.cancel()


async def send(producer: Producer, name: str, count: int) -> list[str]:
    bodies = [f"{name}{number}" for number in range(count)]
    for body in bodies:
        await producer.send(Message("T", body.encode(), keys=["K"]))
    return bodies


def hide(consumer: PushConsumer | LitePullConsumer, *, hidden: bool) -> None:
    """Stop a consumer's pulls, or resume them."""
    if isinstance(consumer, PushConsumer):
        (consumer.suspend if hidden else consumer.resume)()
    else:
        (consumer.pause if hidden else consumer.resume)(consumer.assignment())


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "between two pulls"])
@pytest.mark.parametrize("kind", KINDS)
async def test_recreated_topic_is_consumed_from_first_message(kind: str, is_seen: bool, tmp_path: Path) -> None:
    seen = Seen()
    async with (
        running(tmp_path / "broker") as broker,
        Admin(namesrv=namesrv_address(broker)) as admin,
        Producer("P", namesrv=namesrv_address(broker)) as producer,
    ):
        await admin.create_topic("T", 1)
        async with consuming(kind, namesrv_address(broker), seen, tmp_path) as consumer:
            old = await send(producer, "old", OLD)
            await wait_for(lambda: sorted(seen) == sorted(old))
            hide(consumer, hidden=not is_seen)
            await admin.delete_topic("T")
            await admin.create_topic("T", 1)
            new = await send(producer, "new", NEW)
            hide(consumer, hidden=False)
            await wait_for(lambda: len(seen) >= OLD + NEW)
        assert sorted(seen) == sorted([*old, *new])
        if "broadcasting" not in kind:
            assert finish(broker.groups.offsets.of_topic("T")) == {"G": {0: NEW}}
        async with consuming(kind, namesrv_address(broker), seen, tmp_path):
            last = await send(producer, "last", 1)
            await wait_for(lambda: len(seen) > OLD + NEW)
    assert sorted(seen) == sorted([*old, *new, *last])


async def test_nothing_of_deleted_topic_is_in_new_one(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "broker") as broker,
        Admin(namesrv=namesrv_address(broker)) as admin,
        Producer("P", namesrv=namesrv_address(broker)) as producer,
    ):
        for name in ("old", "new"):
            await admin.create_topic("T", 1)
            await send(producer, name, 2)
            await producer.send(Message("T", f"{name} delayed".encode(), keys=["K"], delay_level=1), queue=QUEUE)
            if name == "old":
                await admin.delete_topic("T")
        await wait_for(lambda: broker.store.reader.max_offset_in_queue("T", 0) == 3)  # the old one was due before
        found = await admin.find_messages("T", "K")
    assert [message.body for message in found] == [b"new0", b"new1", b"new delayed"]


class WaitingDisk(FileSystem):
    """A disk whose syncs of directories wait while they are held, and fail after a while.

    Attributes:
        is_held: whether they wait.
        waiting: the directories of those that have waited, in order.
        go: releases one of them.
    """

    def __init__(self) -> None:
        self.is_held = False
        self.waiting: list[str] = []
        self.go = threading.Semaphore(0)

    def sync_directory(self, path: Path) -> None:
        if self.is_held:
            self.waiting.append(path.name)
            if not self.go.acquire(timeout=20):
                raise OSError(errno.EIO, "nothing else went on")
        super().sync_directory(path)


async def test_clients_are_served_while_a_deletion_is_synced(tmp_path: Path) -> None:
    disk = WaitingDisk()
    served = 0
    deleted = trio.Event()

    def is_waiting() -> bool:
        return len(disk.waiting) > served or deleted.is_set()

    async def delete() -> None:
        await admin.delete_topic("T")
        deleted.set()

    async with (
        open_broker(broker_config(tmp_path / "broker"), file_system=disk) as broker,
        Admin(namesrv=namesrv_address(broker), config=ClientConfig(api_timeout_s=60)) as admin,
        Admin(namesrv=namesrv_address(broker)) as other,
        Producer("P", namesrv=namesrv_address(broker)) as producer,
        trio.open_nursery() as nursery,
    ):
        for topic in ("T", "U"):
            await admin.create_topic(topic, 1)
            await producer.send(Message(topic, b"0"))
        disk.is_held = True
        nursery.start_soon(delete)
        while not deleted.is_set():
            await wait_for(is_waiting, 30)
            await other.topic_config("U")
            served += 1
            disk.go.release()
        disk.is_held = False
        disk.go.release(100)
    assert {"config", "consumequeue"} <= set(disk.waiting)
