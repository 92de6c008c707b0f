"""Runs paged reads: reads of the store that may have to wait for the disk."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from triomq.protocol.errors import StoreError
from triomq.storage.reading.cold_read import ColdRange, PagedRead, read_ranges

Found = TypeVar("Found")


async def run_paged_read(
    read: PagedRead[Found],
    ranges: Sequence[ColdRange] | None = None,
    *,
    limiter: trio.CapacityLimiter | None = None,
    check: Callable[[], None] | None = None,
) -> Found:
    """Run a paged read to its end; what it must read is read in a worker thread.

    Args:
        read: the ``StoreError`` of a failed read is thrown into it.
        ranges: what a paged read that has begun yielded last; ``None``: it has not begun.
        limiter: of the worker threads.
        check: called before each step after the first; what it raises ends the read.
    """
    try:
        if ranges is None:
            ranges = next(read)
        while True:
            error = await _read(ranges, limiter)
            if check is not None:
                check()
            ranges = next(read) if error is None else read.throw(error)
    except StopIteration as done:
        found: Found = done.value
        return found


async def _read(ranges: Sequence[ColdRange], limiter: trio.CapacityLimiter | None) -> StoreError | None:
    if not ranges:
        await trio.lowlevel.checkpoint()
        return None
    try:
        await trio.to_thread.run_sync(read_ranges, ranges, limiter=limiter)
    except StoreError as exc:
        return exc
    return None
