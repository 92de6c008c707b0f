from tests.unit.client.consumer.fake_cluster import make_message, offsets_of
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.message_queue import MessageQueue

QUEUE = MessageQueue("T", "b", 0)


def test_span_is_what_a_crash_would_repeat() -> None:
    queue = ProcessQueue(QUEUE)
    messages = [make_message(queue_offset) for queue_offset in (5, 9, 20)]
    assert queue.span == 0
    queue.put(messages)
    queue.remove(messages[2])
    assert queue.span == 15
    queue.remove(messages[0])
    assert queue.span == 11
    queue.remove(messages[1])
    assert queue.span == 0


def test_a_message_that_comes_twice_counts_once() -> None:
    queue = ProcessQueue(QUEUE)
    queue.put([make_message(4), make_message(5)])
    queue.put([make_message(5), make_message(3)])
    assert queue.cached_messages == 3
    assert queue.first_offset == 3


def test_taken_messages_are_committed_or_redelivered_in_order() -> None:
    queue = ProcessQueue(QUEUE)
    queue.put([make_message(queue_offset) for queue_offset in range(4)])
    taken = queue.take(3)
    assert (queue.cached_messages, queue.consumed_offset()) == (4, 0)
    queue.requeue(taken[1:])
    queue.commit()
    assert (queue.consumed_offset(), queue.cached_messages) == (1, 3)
    queue.commit()
    assert queue.cached_messages == 3
    assert offsets_of(queue.take(9)) == [1, 2, 3]
    queue.rollback()
    assert queue.consumed_offset() == 1


def test_finishing_taken_message_advances_to_next_taken_one() -> None:
    queue = ProcessQueue(QUEUE)
    heard: list[int] = []
    queue.put([make_message(queue_offset) for queue_offset in range(4)])
    queue.on_removal = lambda: heard.append(queue.cached_messages)
    first, second, _ = queue.take(3)
    queue.finish(first)
    queue.finish(first)
    assert (queue.consumed_offset(), queue.cached_bytes) == (1, 3 * first.store_size)
    assert heard == [3]
    queue.finish(second)
    queue.rollback()
    assert offsets_of(queue.take(9)) == [2, 3]


def test_who_waits_for_room_hears_of_each_removal() -> None:
    queue = ProcessQueue(QUEUE)
    heard: list[int] = []
    messages = [make_message(queue_offset) for queue_offset in range(2)]
    queue.put(messages)
    queue.on_removal = lambda: heard.append(queue.cached_messages)
    queue.remove(messages[1])
    queue.remove(messages[1])
    assert heard == [1]


def test_last_started_offset_is_highest_not_waiting() -> None:
    queue = ProcessQueue(QUEUE)
    queue.put([make_message(queue_offset) for queue_offset in (1, 3, 5, 7)])
    queue.remove(make_message(5))
    assert queue.last_begun({1, 3, 7}) == 5
    assert queue.last_begun({1, 3}) == 7
    assert queue.last_begun({1, 3, 5, 7}) == -1
