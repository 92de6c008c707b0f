"""message_queue: the name of a queue."""

from triomq.protocol.message_queue import MessageQueue


def test_queues_sort_by_topic_then_broker_then_number() -> None:
    ordered = [
        MessageQueue("A", "b", 10),
        MessageQueue("A", "c", 2),
        MessageQueue("A", "c", 10),
        MessageQueue("B", "a", 0),
    ]
    assert sorted([ordered[2], ordered[0], ordered[3], ordered[1]]) == ordered


def test_equal_members_make_equal_keys() -> None:
    assert {MessageQueue("T", "b", 0): 5}[MessageQueue("T", "b", 0)] == 5


def test_text_names_all_parts() -> None:
    assert str(MessageQueue("T", "b", 3)) == "T@b:3"
