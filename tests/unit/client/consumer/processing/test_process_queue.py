from tests.unit.client.consumer.fake_cluster import make_message, offsets_of
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.message_queue import MessageQueue

QUEUE = MessageQueue("T", "b", 0)


def test_the_committed_offset_waits_for_the_lowest_message() -> None:
    """C.2 scenario 44."""
    queue = ProcessQueue(QUEUE)
    ten, eleven, twelve = (make_message(queue_offset) for queue_offset in (10, 11, 12))
    queue.put([ten, eleven, twelve])
    queue.remove(eleven)
    queue.remove(twelve)
    assert queue.consumed_offset() == 10
    queue.remove(ten)
    assert queue.consumed_offset() == 13


def test_a_new_queue_has_nothing_to_commit() -> None:
    queue = ProcessQueue(QUEUE)
    assert queue.consumed_offset() is None
    queue.remove(make_message(3))
    assert queue.consumed_offset() is None


def test_bytes_and_messages_are_counted_until_consumed() -> None:
    queue = ProcessQueue(QUEUE)
    messages = [make_message(queue_offset, b"x" * 100) for queue_offset in range(3)]
    queue.put(messages)
    assert queue.cached_bytes == sum(message.store_size for message in messages)
    queue.remove(messages[0])
    queue.remove(messages[0])
    assert (queue.cached_messages, queue.cached_bytes) == (2, 2 * messages[0].store_size)


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


def test_taken_messages_are_committed_or_come_again_in_order() -> None:
    queue = ProcessQueue(QUEUE)
    queue.put([make_message(queue_offset) for queue_offset in range(4)])
    taken = queue.take(3)
    assert (len(queue.taken_offsets), queue.cached_messages, queue.consumed_offset()) == (3, 4, 0)
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
    assert (queue.consumed_offset(), len(queue.taken_offsets), queue.cached_bytes) == (1, 2, 3 * first.store_size)
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


def test_repr_shows_the_state() -> None:
    queue = ProcessQueue(QUEUE)
    queue.put([make_message(7)])
    queue.dropped = True
    assert repr(queue) == "<ProcessQueue T@b:0 cached=1 next=7 dropped>"


def test_removing_several_messages_keeps_others_and_their_size() -> None:
    queue = ProcessQueue(QUEUE)
    messages = [make_message(offset) for offset in range(5)]
    queue.put(messages)
    asked: list[int] = []
    queue.on_removal = lambda: asked.append(queue.cached_messages)
    queue.remove_all([*messages[1:3], make_message(77)])
    assert (queue.cached_messages, queue.cached_bytes) == (3, 3 * messages[0].store_size)
    assert (queue.consumed_offset(), asked) == (0, [3])
    queue.remove_all(messages)
    assert (queue.cached_messages, queue.cached_bytes, queue.consumed_offset()) == (0, 0, 5)


def test_last_started_offset_is_highest_not_waiting() -> None:
    queue = ProcessQueue(QUEUE)
    queue.put([make_message(queue_offset) for queue_offset in (1, 3, 5, 7)])
    queue.remove(make_message(5))
    assert queue.last_begun({1, 3, 7}) == 5
    assert queue.last_begun({1, 3}) == 7
    assert queue.last_begun({1, 3, 5, 7}) == -1
