"""Opening the store when a broker starts: in a worker thread, as it may take minutes."""

import trio

from triomq.storage.commit_log.log_scan import ProgressLog
from triomq.storage.config import StoreConfig
from triomq.storage.message_store import MessageStore


async def open_store(config: StoreConfig) -> MessageStore:
    """Return the open store; cancelled, it gives up where it is, and the next start does it again.

    Raises:
        StoreLockedError, StoreLayoutError, StoreError: as ``MessageStore.open``.
    """
    store = MessageStore(config)
    tell = ProgressLog()

    def progress(done_bytes: int, most_bytes: int) -> None:
        trio.from_thread.check_cancelled()
        tell(done_bytes, most_bytes)

    await trio.to_thread.run_sync(store.open, progress)
    return store
