"""Reports of the process queue; ``tests/property/test_process_queue.py`` compares it with a model."""

from tests.unit.client.consumer.fake_cluster import make_message
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.message_queue import MessageQueue

QUEUE = MessageQueue("T", "b", 0)


def test_each_removal_is_reported_once() -> None:
    queue = ProcessQueue(QUEUE)
    heard: list[int] = []
    messages = [make_message(queue_offset) for queue_offset in range(6)]
    queue.put(messages)
    queue.on_removal = lambda: heard.append(queue.cached_messages)
    queue.take(2)
    for _ in range(2):
        queue.finish(messages[0])
        queue.remove(messages[5])
    assert heard == [5, 4]
    queue.commit()
    queue.remove_all(messages[2:4])
    assert heard == [5, 4, 3, 1]


def test_last_started_offset_is_highest_not_waiting() -> None:
    queue = ProcessQueue(QUEUE)
    queue.put([make_message(queue_offset) for queue_offset in (1, 3, 5, 7)])
    queue.remove(make_message(5))
    assert queue.last_begun({1, 3, 7}) == 5
    assert queue.last_begun({1, 3}) == 7
    assert queue.last_begun({1, 3, 5, 7}) == -1
