"""The process queue against a plain model: two dictionaries and sorting."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.client.consumer.fake_cluster import make_message
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

#: Made once: records are slow to make, and messages are never changed.
MESSAGES = [make_message(queue_offset, b"x" * (queue_offset % 7)) for queue_offset in range(200)]
NO_OFFSET = -1


class ProcessQueueMachine(RuleBasedStateMachine):
    """Runs the queue and the model side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(MessageQueue("T", "b", 0))
        self.cache: dict[int, MessageExt] = {}
        self.taken: dict[int, MessageExt] = {}
        self.highest = NO_OFFSET
        self.next_pull = 0

    @rule(gaps=st.lists(st.integers(1, 3), max_size=8))
    def pull(self, gaps: list[int]) -> None:
        """Messages come in order; gaps are those filtered away."""
        offsets = []
        for gap in gaps:
            self.next_pull += gap
            if self.next_pull < len(MESSAGES):
                offsets.append(self.next_pull)
        self._put(offsets)

    @rule(offsets=st.lists(st.integers(0, len(MESSAGES) - 1), max_size=5))
    def pull_anything(self, offsets: list[int]) -> None:
        """A broker that sends any answer."""
        self._put(offsets)

    def _put(self, offsets: list[int]) -> None:
        self.queue.put([MESSAGES[queue_offset] for queue_offset in offsets])
        for queue_offset in offsets:
            if queue_offset not in self.taken:
                self.cache.setdefault(queue_offset, MESSAGES[queue_offset])
            self.highest = max(self.highest, queue_offset)

    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        """Handlers end in any order."""
        if self.cache:
            queue_offset = data.draw(st.sampled_from(sorted(self.cache)))
            self.queue.remove(MESSAGES[queue_offset])
            del self.cache[queue_offset]

    @rule(queue_offset=st.integers(0, len(MESSAGES) - 1))
    def consume_unknown(self, queue_offset: int) -> None:
        if queue_offset not in self.cache:
            self.queue.remove(MESSAGES[queue_offset])

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        taken = self.queue.take(count)
        expected = sorted(self.cache)[:count]
        assert [message.queue_offset for message in taken] == expected
        for queue_offset in expected:
            self.taken[queue_offset] = self.cache.pop(queue_offset)

    @rule()
    def commit(self) -> None:
        self.queue.commit()
        self.taken.clear()

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Some of the taken messages became dead letters."""
        if self.taken:
            some = data.draw(st.lists(st.sampled_from(sorted(self.taken)), unique=True))
            for queue_offset in some:
                self.queue.finish(MESSAGES[queue_offset])
                del self.taken[queue_offset]

    @rule()
    def rollback(self) -> None:
        self.queue.rollback()
        self.cache |= self.taken
        self.taken.clear()

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        if self.taken:
            some = data.draw(st.lists(st.sampled_from(sorted(self.taken)), unique=True))
            self.queue.requeue([MESSAGES[queue_offset] for queue_offset in some])
            for queue_offset in some:
                self.cache[queue_offset] = self.taken.pop(queue_offset)

    @invariant()
    def counts_agree(self) -> None:
        held = [*self.cache.values(), *self.taken.values()]
        assert self.queue.cached_messages == len(held)
        assert self.queue.cached_bytes == sum(message.store_size for message in held)

    @invariant()
    def the_offset_to_commit_is_the_first_that_is_not_consumed(self) -> None:
        held = [*self.cache, *self.taken]
        expected = min(held) if held else None if self.highest == NO_OFFSET else self.highest + 1
        assert self.queue.consumed_offset() == expected

    @invariant()
    def span_is_what_a_crash_would_repeat(self) -> None:
        assert self.queue.span == (self.highest - min(self.cache) if self.cache else 0)
        assert self.queue.first_offset == (min(self.cache) if self.cache else None)


ProcessQueueMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
test_process_queue_behaves_like_its_model = ProcessQueueMachine.TestCase
