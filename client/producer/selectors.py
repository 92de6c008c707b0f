"""Ways to choose the queue of a message by a key, so that messages with equal keys keep their order.

Source: behaviour.md B.3; SelectMessageQueueByHash.java.
"""

from collections.abc import Callable, Sequence

from triomq.client.environment import RANDOM
from triomq.protocol.errors import MessageIllegalError
from triomq.protocol.java import java_hash
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message

#: Gets all queues of the topic, sorted, the message and the key given to ``send``; returns one of the queues.
QueueSelector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]


def select_by_hash(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
    """Choose by the hash that Java has of the key, so that producers in both languages agree.

    The key is text or an integer; without one the message's ``sharding_key`` is taken.  Equal keys get the same
    queue as long as the number of queues stays the same.

    Raises:
        MessageIllegalError: there is no key, or Java's hash of its type is not known.
    """
    remainder = abs(_hash_code(message.sharding_key if key is None else key)) % len(queues)
    return queues[remainder]


def select_by_random(queues: Sequence[MessageQueue], _message: Message, _key: object) -> MessageQueue:
    """Choose any queue; all are equally likely."""
    return RANDOM.choice(queues)


def _hash_code(key: object) -> int:
    if isinstance(key, str):
        return java_hash(key)
    if isinstance(key, int) and not isinstance(key, bool):
        if -(2**31) <= key < 2**31:
            return key  # Integer.hashCode
        if -(2**63) <= key < 2**63:
            bits = (key ^ key >> 32) & 0xFFFFFFFF  # Long.hashCode; the sign is not part of the lower half
            return bits - 2**32 if bits >= 2**31 else bits
    raise MessageIllegalError(
        f"key {key!r}: select_by_hash needs key=, text or an integer of 64 bits (or the message's sharding_key)"
    )
