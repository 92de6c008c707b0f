"""WriteQueue: by example, and against the simplest model of it, a bytes."""

import mmap
from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from triomq.protocol.wire.write_queue import MAX_CHUNKS, WriteQueue


def test_chunks_are_written_in_order_without_copying() -> None:
    first, second = b"first", memoryview(b"second")
    queue = WriteQueue()
    queue.put(first)
    queue.put(second)
    assert queue
    assert queue.pending_bytes == 11
    chunks = queue.chunks()
    assert chunks[0] is first
    assert chunks[1] is second
    queue.written(1)
    rest = queue.chunks()[0]
    assert isinstance(rest, memoryview)
    assert rest.obj is first
    assert bytes(rest) == b"irst"


def _mapped(chunk: bytes) -> memoryview:
    """A view of a mapping, as those of store files are."""
    mapped = mmap.mmap(-1, 64)
    mapped.write(chunk)
    return memoryview(mapped)[: len(chunk)]


class WriteQueueModel(RuleBasedStateMachine):
    """The queue is a stream: what goes in comes out, whatever the socket takes at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WriteQueue()
        self.expected = b""

    @rule(chunk=st.binary(max_size=40), kind=st.sampled_from([bytes, memoryview, _mapped]))
    def put(self, chunk: bytes, kind: Callable[[bytes], bytes | memoryview]) -> None:
        self.queue.put(kind(chunk))
        self.expected += chunk

    @rule(count=st.integers(2, 300))
    def put_many_small_ones(self, count: int) -> None:
        for number in range(count):
            self.queue.put(bytes([number % 256]))
        self.expected += bytes(number % 256 for number in range(count))

    @precondition(lambda self: self.expected)
    @rule(percent=st.integers(1, 99))
    def socket_takes_some(self, percent: int) -> None:
        offered = b"".join(self.queue.chunks())
        taken = len(offered) * percent // 100
        assert self.expected.startswith(offered)
        self.queue.written(taken)
        self.expected = self.expected[taken:]

    @rule()
    def socket_takes_all_it_is_offered(self) -> None:
        taken = sum(len(chunk) for chunk in self.queue.chunks())
        self.queue.written(taken)
        self.expected = self.expected[taken:]

    @rule()
    def connection_is_gone(self) -> None:
        self.queue.clear()
        self.expected = b""

    @invariant()
    def queue_holds_what_the_model_holds(self) -> None:
        chunks = self.queue.chunks()
        offered = b"".join(chunks)
        assert self.queue.pending_bytes == len(self.expected)
        assert bool(self.queue) == bool(self.expected)
        assert self.expected.startswith(offered)
        assert offered == self.expected or len(chunks) == MAX_CHUNKS
        assert all(len(chunk) for chunk in chunks)
        owned = [
            len(chunk)
            for chunk in self.queue._chunks
            if not (isinstance(chunk, memoryview) and isinstance(chunk.obj, mmap.mmap))
        ]
        assert sum(owned) <= self.queue.held_bytes <= sum(owned) + 100 * len(owned)


TestWriteQueueModel = WriteQueueModel.TestCase
TestWriteQueueModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
