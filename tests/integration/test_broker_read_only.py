"""A file system that is or becomes read-only: sends fail, acknowledged messages stay."""

import sys
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.integration.mounts import mounted, remount, skip_without
from tests.processes import Broker, start_triomq
from triomq.client import Message, Producer, PullConsumer
from triomq.protocol.errors import TriomqError

IMAGE_BYTES: Final = 32 * 1024**2
OPTIONS: Final = ("--durability", "sync", "--commit-log-file-size", str(1024 * 1024))
COUNT: Final = 50
LIMIT_S: Final = 60


async def send(broker: Broker, numbers: range) -> None:
    """Send a message for each number; returns when all are acknowledged."""
    async with Producer("P", namesrv=broker.namesrv) as producer:
        for number in numbers:
            await producer.send(Message("T", b"%d" % number))


async def read_all(broker: Broker) -> list[int]:
    found: list[int] = []
    async with PullConsumer("G", namesrv=broker.namesrv) as pull:
        for queue in await pull.queues("T"):
            offset = 0
            while offset < await pull.max_offset(queue):
                result = await pull.pull(queue, offset)
                found += [int(message.body) for message in result.messages]
                offset = result.next_begin_offset
    return sorted(found)


async def test_disk_turning_read_only_loses_no_acked_message(tmp_path: Path) -> None:
    image, store = tmp_path / "image", tmp_path / "store"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    skip_without("mkfs.ext4", "-q", "-F", str(image))
    with trio.fail_after(LIMIT_S):
        with mounted(store, "-o", "loop", str(image)), start_triomq(tmp_path, *OPTIONS) as broker:
            await send(broker, range(COUNT))
            remount(store, "abort")  # what the kernel does when a disk has failed
            with pytest.raises(TriomqError):
                await send(broker, range(COUNT, COUNT + 1))
            await trio.to_thread.run_sync(broker.process.communicate)
            broker.stopped = True
            assert broker.process.returncode != 0
            for part in ("Read-only file system", str(store / "commitlog"), "StoreConfig.root (--store)"):
                assert part in broker.tail()
        with mounted(store, "-o", "loop", str(image)), start_triomq(tmp_path, *OPTIONS) as broker:
            found = await read_all(broker)
            assert found[:COUNT] == list(range(COUNT))
            await send(broker, range(100, 101))
            assert await read_all(broker) == [*found, 100]


async def test_store_on_read_only_disk_is_rejected_unchanged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with mounted(store, "-t", "tmpfs", "-o", "size=16m", "triomq-test"), trio.fail_after(LIMIT_S):
        with start_triomq(tmp_path, *OPTIONS) as broker:
            await send(broker, range(COUNT))
        before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
        remount(store, "ro")
        command = [sys.executable, "-m", "triomq.cli", "broker", "--listen", "127.0.0.1:0", "--store", str(store)]
        refused = await trio.run_process(
            [*command, "--namesrv-listen", "127.0.0.1:0", *OPTIONS], check=False, capture_stderr=True
        )
        assert refused.returncode != 0
        assert b"Read-only file system" in refused.stderr
        assert str(store).encode() in refused.stderr
        assert b"Traceback" not in refused.stderr
        assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
        remount(store, "rw")
        with start_triomq(tmp_path, *OPTIONS) as broker:
            assert await read_all(broker) == list(range(COUNT))
