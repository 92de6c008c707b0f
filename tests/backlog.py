"""Write stores with a long backlog without a broker: 300,000 messages per second."""

from pathlib import Path
from typing import Final

from triomq.protocol.host import encode_host
from triomq.storage.append import entry
from triomq.storage.config import StoreConfig
from triomq.storage.message_store import MessageStore

_HOST: Final = encode_host("127.0.0.1", 10911)
_BATCH: Final = 1000
_NUMBER_BYTES: Final = 8


def write_backlog(root: Path, topic: str, queues: int, messages: int, body_bytes: int = 100) -> None:
    """Store ``messages`` in each queue of a new topic; a broker that opens the store registers the topic.

    A body is the queue offset in 8 digits, then zero bytes.  There are no keys; start the broker with ``--no-index``,
    otherwise it searches the whole log for them.
    """
    padding = bytes(body_bytes - _NUMBER_BYTES)
    with MessageStore(StoreConfig(root=root, index=False, disk_full_ratio=100)) as store:
        for queue in (store.queue(topic, queue_id) for queue_id in range(queues)):
            for begin in range(0, messages, _BATCH):
                end = min(begin + _BATCH, messages)
                store.append(
                    [
                        entry(
                            queue,
                            b"%08d" % number + padding,
                            b"",
                            born_timestamp=store.now_ms(),
                            born_host=_HOST,
                            store_host=_HOST,
                        )
                        for number in range(begin, end)
                    ]
                )
