"""Transactions as the half topic and the operation topic hold them.

A half message waits for its producer's decision.  A check stores it again, so that one transaction has a chain of half
messages; the last one counts.  An operation message names a half message that needs no decision any more: its
transaction is settled, or it was stored again.

Source: behaviour.md A.6, store.md 5.8; TransactionalMessageServiceImpl.java.
"""

from typing import Final

from triomq.protocol.names import CHECK_MAX_TOPIC, HALF_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName, get_property, set_property

OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d"
"""Properties of an operation message."""
MOVED_OP_PROPERTIES: Final = OP_PROPERTIES + b"\x02MOVED\x01true"
"""Ours: those of an operation message for a half message that was stored again; its transaction is not settled.

Apache's brokers write none: they save the offset behind it instead.
"""
COPIED_OP_PROPERTIES: Final = OP_PROPERTIES + b"\x02COPIED\x01true"
"""Ours: those of an operation message behind the committed message, or behind that given up, in one append."""
_MOVED: Final = b"MOVED"
_COPIED: Final = b"COPIED"
_CHECKS: Final = PropertyName.TRANSACTION_CHECK_TIMES.encode()
_ROOT: Final = PropertyName.TRANSACTION_PREPARED_QUEUE_OFFSET.encode()
_REAL_TOPIC: Final = PropertyName.REAL_TOPIC.encode()
_WAITING: Final = (HALF_TOPIC, CHECK_MAX_TOPIC)
_UNIQUE_KEY: Final = PropertyName.UNIQUE_KEY.encode()
_MAX_DIGITS: Final = 18


def transaction_key(half: MessageExt) -> bytes:
    """Return the key that only the half messages of one transaction share.

    Clients choose unique keys and times.  The topic keeps those who may not send to it away from its transactions.
    """
    properties = half.encoded_properties
    unique_key = get_property(properties, _UNIQUE_KEY)
    topic = get_property(properties, _REAL_TOPIC) or b"" if half.topic in _WAITING else half.topic.encode()
    if unique_key is None:
        return b"%b@@%d" % (topic, _root(half, properties))
    # The time, because one message object sent in two transactions has one unique key.
    return b"%b@%b@%d" % (topic, unique_key, half.born_timestamp)


def has_own_key(message: MessageExt) -> bool:
    """Whether ``transaction_key`` of a message does not depend on where it is stored."""
    return any(get_property(message.encoded_properties, name) is not None for name in (_UNIQUE_KEY, _ROOT))


def checks_of(half: MessageExt) -> int:
    """Return the number of checks of a half message."""
    return _number(get_property(half.encoded_properties, _CHECKS), 0)


def is_stored_again(half: MessageExt) -> bool:
    """Whether a half message is not the first one of its transaction."""
    return any(get_property(half.encoded_properties, name) is not None for name in (_CHECKS, _ROOT))


def properties_of_copy(half: MessageExt, checks: int | None) -> bytes:
    """Return the properties of a half message that is stored again.

    Args:
        half: the message.
        checks: number of checks to store; ``None`` if it does not change.
    """
    properties = half.encoded_properties
    if checks is None or get_property(properties, _UNIQUE_KEY) is None:
        properties = set_property(properties, _ROOT, b"%d" % _root(half, properties))
    return properties if checks is None else set_property(properties, _CHECKS, b"%d" % checks)


def _root(half: MessageExt, properties: bytes) -> int:
    return _number(get_property(properties, _ROOT), half.queue_offset)


def _number(text: bytes | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) <= _MAX_DIGITS else otherwise


def is_behind_copy(operation: MessageExt) -> bool:
    """Whether an operation message was stored in one append with the message that its half message became, after it."""
    return get_property(operation.encoded_properties, _COPIED) is not None


def settled_offsets(operation: MessageExt) -> list[int]:
    """Return the queue offsets of the half messages that an operation message names; 5.x brokers name several."""
    return [int(text) for text in operation.body.split(b",") if text.isdigit() and len(text) <= _MAX_DIGITS]


class Replay:
    """Finds the undecided transactions among half messages and operation messages.

    Feed the half messages in the order of their queue, then the operation messages.  An operation message decides all
    half messages of a transaction, also those that an Apache broker stores later because it missed it.  Only an
    administrator who resumes a transaction opens it again; its checks are counted from 0 then.
    """

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}  # queue offset of the last half message
        self._opened: dict[bytes, int] = {}  # physical offset of the last message that says so
        self._decided: dict[bytes, int] = {}  # physical offset of the last operation message

    def add_half(self, half: MessageExt) -> None:
        """Add a half message."""
        key = transaction_key(half)
        self._last[key] = half.queue_offset
        if not checks_of(half):
            self._opened[key] = half.physical_offset

    def add_operation(self, half: MessageExt, operation: MessageExt) -> None:
        """Add an operation message that names the queue offset of ``half``.

        One that is in front of it in the log concerns an earlier message, which a power cut has lost.
        """
        if operation.physical_offset < half.physical_offset:
            return
        key = transaction_key(half)
        is_moved = get_property(operation.encoded_properties, _MOVED) is not None  # so it was undecided then
        times = self._opened if is_moved else self._decided
        times[key] = max(times.get(key, -1), operation.physical_offset)

    def undecided(self) -> dict[int, bytes]:
        """Return the last half message of each undecided transaction: queue offset to key, in the queue's order."""
        opened, decided = self._opened, self._decided
        found = {
            queue_offset: key
            for key, queue_offset in self._last.items()
            if key not in decided or decided[key] < opened.get(key, -1)
        }
        return dict(sorted(found.items()))
