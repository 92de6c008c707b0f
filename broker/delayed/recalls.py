"""Delayed messages that were taken back: which ones are not to be delivered.

A request to take a message back is itself a delayed message, and waits with the others until shortly before the one
that it names.  Then it is remembered here, until that one has been passed over.

Source: RocketMQ 5.5.0 TimerMessageStore.java, buildDeleteKey, dequeue.
"""

from collections.abc import Iterator
from typing import Final

from triomq.protocol.record.message_id import delete_key
from triomq.protocol.record.properties import PropertyName, get_property
from triomq.storage.delays import RECALL_LEAD_MS, stored_time

_DELETES: Final = PropertyName.TIMER_DELETE_UNIQUE_KEY.encode()
_UNIQUE_KEY: Final = PropertyName.UNIQUE_KEY.encode()


class Recalls:
    """The requests whose messages are due now."""

    def __init__(self) -> None:
        self._due: dict[bytes, tuple[int, int]] = {}  # by key: the time of the message, and the request's queue offset

    def __bool__(self) -> bool:
        return bool(self._due)

    def offsets(self) -> Iterator[int]:
        """Yield the queue offsets of the requests."""
        return (queue_offset for _, queue_offset in self._due.values())

    def add(self, properties: bytes, queue_offset: int) -> bool:
        """Remember a waiting message if it takes another one back; return whether it does."""
        key = get_property(properties, _DELETES) if _DELETES in properties else None
        if key is None:
            return False
        self._due[key] = stored_time(properties) + RECALL_LEAD_MS, queue_offset
        return True

    def take(self, topic: str, properties: bytes) -> bool:
        """Whether a message that is due was taken back: one of this id and, within a second, this time.

        RocketMQ before 5.3 names it by its id alone.
        """
        message_id = get_property(properties, _UNIQUE_KEY)
        if message_id is None:
            return False
        keys = delete_key(topic, message_id.decode("utf-8", "replace")).encode(), message_id
        due_ms = stored_time(properties)
        return any(abs(self._due[key][0] - due_ms) < RECALL_LEAD_MS for key in keys if key in self._due)

    def forget_before(self, done_ms: int) -> None:
        """Forget the requests whose messages were delivered or passed over by now."""
        for key in [key for key, (due_ms, _) in self._due.items() if due_ms + RECALL_LEAD_MS < done_ms]:
            del self._due[key]
