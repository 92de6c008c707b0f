"""Runs paged reads: work on the store that takes several steps, some of which may have to wait for the disk."""

from collections.abc import Sequence
from io import BytesIO
from typing import TypeVar

import trio

from triomq.protocol.bodies.json_body import json_pieces
from triomq.protocol.errors import StoreError
from triomq.storage.files.file_system import DiskWork
from triomq.storage.reading.cold_read import ColdRange, PagedRead, read_ranges

Found = TypeVar("Found")


def encode(value: object) -> PagedRead[bytes]:
    """Return the JSON of a value, with bodies anywhere in it, of any length."""
    text = BytesIO()
    for piece in json_pieces(value):
        text.write(piece)
        yield ()
    return text.getvalue()


async def run_paged_read(read: PagedRead[Found]) -> Found:
    """Run a paged read of the broker itself to its end; what it must read is read in a worker thread.

    The ``StoreError`` of a failed read is thrown into it.
    """
    try:
        ranges = next(read)
        while True:
            error = await load(ranges)
            if not ranges:
                await trio.lowlevel.checkpoint()
            ranges = next(read) if error is None else read.throw(error)
    except StopIteration as done:
        found: Found = done.value
        return found


async def load(
    ranges: Sequence[ColdRange | DiskWork], limiter: trio.CapacityLimiter | None = None
) -> StoreError | None:
    """Read what a paged read needs in memory, in a worker thread; return the error that is to be thrown into it."""
    if ranges:
        try:
            await trio.to_thread.run_sync(read_ranges, ranges, limiter=limiter)
        except StoreError as exc:
            return exc
    return None
