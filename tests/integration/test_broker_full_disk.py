"""A broker on a file system of a few megabytes: it rejects messages that do not fit and keeps acknowledged ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.integration.broker_wire import Wire, broker_port, connected, pull_fields, running, send_fields
from tests.integration.mounts import mounted
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.record.record import decode_records
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability

DISK_BYTES: Final = 8 * 1024**2
BODY_BYTES: Final = 10_000
STORE: Final = {"commit_log_file_size_bytes": 1024 * 1024, "reserve_step_bytes": 256 * 1024, "disk_full_ratio": 100}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 8 MiB."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "triomq-test") as path:
        yield path


async def send(wire: Wire, number: int) -> RemotingCommand:
    body = b"%06d" % number + bytes(BODY_BYTES)
    return await wire.ask(RequestCode.SEND_MESSAGE_V2, send_fields(), body)


async def fill(wire: Wire) -> tuple[list[int], RemotingCommand]:
    """Send until a message is refused; return the numbers of the acknowledged ones, and the refusal."""
    stored: list[int] = []
    for number in range(2 * DISK_BYTES // BODY_BYTES):
        response = await send(wire, number)
        if response.code != ResponseCode.SUCCESS:
            return stored, response
        stored.append(number)
    raise AssertionError("the disk does not get full")


async def read_all(wire: Wire) -> list[int]:
    numbers: list[int] = []
    while True:
        response = await wire.ask(RequestCode.PULL_MESSAGE, pull_fields(queue_offset=len(numbers)))
        if response.code != ResponseCode.SUCCESS:
            return numbers
        numbers += [int(message.stored_body[:6]) for message in decode_records(response.body)]


@pytest.mark.parametrize("durability", list(Durability))
async def test_full_disk_rejects_and_freed_space_resumes(small_disk: Path, durability: Durability) -> None:
    settings = {**STORE, "durability": durability}
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * 1024**2))
    with trio.fail_after(30):
        async with running(small_disk / "store", settings) as broker, connected(broker_port(broker)) as wire:
            stored, refused = await fill(wire)
            assert len(stored) > 100
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert refused.remark is not None
            for part in (str(small_disk / "store" / "commitlog"), "bytes are free", "StoreConfig.root (--store)"):
                assert part in refused.remark
            assert await read_all(wire) == stored
            assert (await send(wire, 7)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            ballast.unlink()
            for number in range(900_000, 900_100):
                assert (await send(wire, number)).code == ResponseCode.SUCCESS
                stored.append(number)
            assert await read_all(wire) == stored
        async with running(small_disk / "store", settings) as broker, connected(broker_port(broker)) as wire:
            assert await read_all(wire) == stored
