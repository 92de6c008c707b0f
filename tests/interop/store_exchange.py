"""What the tests share that hand a store directory from one broker to the other."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import trio

from tests.interop.kit_driver import ApacheBroker, ApacheBrokers
from triomq.client import MessageExt, PullConsumer

COMMIT_LOG_FILE_SIZE: Final = 65536  # the sizes of the fixtures: small, so that all files roll over
FIXTURE_SIZES: Final = (
    *("--commit-log-file-size", str(COMMIT_LOG_FILE_SIZE)),
    *("--consume-queue-file-size", "1000", "--index-slots", "50", "--index-units", "150"),
)
"""Options of our broker."""

APACHE_FIXTURE_SIZES: Final = {
    "mappedFileSizeCommitLog": COMMIT_LOG_FILE_SIZE,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 50,
    "maxIndexNum": 150,
}
"""The same as settings of Apache's broker."""

Outcome = TypeVar("Outcome")


class Row(NamedTuple):
    """What must be the same of a message whichever broker delivers it, place in queue and log included."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    message_id: str
    number: str | None


def row(message: MessageExt) -> Row:
    """Pick these fields."""
    return Row(
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        message.body,
        message.tags,
        message.keys,
        message.message_id,
        message.properties.get("number"),
    )


async def read_all(namesrv: str, topic: str, tags: str = "*") -> list[Row]:
    """Every message of every queue of ``topic``, or those with ``tags``, by pulling from begin to end."""
    rows: list[Row] = []
    async with PullConsumer("store-exchange-reader", namesrv=namesrv) as pull:
        for queue in await pull.queues(topic):
            offset = await pull.min_offset(queue)
            while offset < await pull.max_offset(queue):
                result = await pull.pull(queue, offset, tags)
                rows.extend(map(row, result.messages))
                offset = result.next_begin_offset
    return rows


def gaps(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """Queue and queue offset of each message that is missing between the first and the last of its queue."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for each in rows:
        found[each.queue_id].add(each.queue_offset)
    return [
        (queue_id, offset)
        for queue_id, offsets in sorted(found.items())
        for offset in range(min(offsets), max(offsets))
        if offset not in offsets
    ]


def file_size(files: Iterable[Path]) -> int:
    """The one size that all files have: Apache's broker refuses a store with another."""
    (size,) = {path.stat().st_size for path in files}
    return size


def within(limit_s: float, action: Callable[..., Awaitable[Outcome]], *arguments: object) -> Outcome:
    """Run a coroutine function to its end."""

    async def limited() -> Outcome:
        with trio.fail_after(limit_s):
            return await action(*arguments)

    return trio.run(limited)


@contextmanager
def apache_on(
    brokers: ApacheBrokers, store: Path, settings: Mapping[str, object] = APACHE_FIXTURE_SIZES
) -> Iterator[ApacheBroker]:
    """Run Apache's broker on a store, which is moved below its folder and deleted at the end."""
    folder = store.with_name("apache")
    folder.mkdir()
    store.rename(folder / "store-broker")
    try:
        yield brokers.start("4.9.7", folder, settings)
    finally:
        brokers.stop(folder)
