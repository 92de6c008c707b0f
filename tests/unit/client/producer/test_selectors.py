import pytest

from triomq.client.producer.selectors import select_by_hash, select_by_random
from triomq.protocol.errors import MessageIllegalError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message

QUEUES = tuple(MessageQueue("T", "a", number) for number in range(7))
MESSAGE = Message("T", b"x")


@pytest.mark.parametrize(
    ("key", "java_hash_code"),
    [
        ("", 0),
        ("order-17", 1234255109),
        ("Aa", 2112),
        ("BB", 2112),
        (17, 17),
        (-17, -17),
        (2**31 - 1, 2**31 - 1),
        (-(2**31), -(2**31)),
        (2**31, -(2**31)),
        (2**40 + 5, 261),
        (-(2**40), -256),
    ],
)
def test_a_key_chooses_the_queue_that_java_chooses(key: object, java_hash_code: int) -> None:
    """Hash codes of String, Integer and Long; Math.abs(hash % 7)."""
    assert select_by_hash(QUEUES, MESSAGE, key).queue_id == abs(java_hash_code) % 7


def test_without_a_key_the_sharding_key_counts() -> None:
    message = Message("T", b"x", sharding_key="Aa")
    assert select_by_hash(QUEUES, message, None) == select_by_hash(QUEUES, MESSAGE, "Aa")
    assert select_by_hash(QUEUES, message, "order-17") == select_by_hash(QUEUES, MESSAGE, "order-17")


@pytest.mark.parametrize("key", [None, 1.5, b"bytes", True, 2**63, -(2**63) - 1])
def test_a_key_without_a_known_hash_is_refused(key: object) -> None:
    with pytest.raises(MessageIllegalError, match="select_by_hash needs key="):
        select_by_hash(QUEUES, MESSAGE, key)


def test_random_choice_reaches_all_queues() -> None:
    assert {select_by_random(QUEUES, MESSAGE, None) for _ in range(500)} == set(QUEUES)
