"""Random lives of a store beside a model that is a dict of lists.

Files are tiny, so that nearly every put rolls one; each reopening and kill must keep all messages.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from triomq.protocol.host import encode_host
from triomq.protocol.java import tags_code
from triomq.protocol.record.record import decode_records
from triomq.storage.append import entry
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.get_message import GetMessageStatus

HOSTS: Final = (encode_host("127.0.0.1", 10911), encode_host("2001:db8::1", 10911))
TAGS: Final = ("", "A", "B", "polygenelubricants")
TOPICS: Final = st.sampled_from(["T", "U", "%RETRY%g"])
QUEUE_IDS: Final = st.integers(0, 2)
BODIES: Final = st.builds(lambda byte, length: bytes((byte,)) * length, st.integers(0, 255), st.integers(0, 2000))
Key = tuple[str, int]
Stored = tuple[bytes, str]  # body and tag


class StoreMachine(RuleBasedStateMachine):
    """One store, opened, used, closed and killed."""

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.copies = 0
        self.root = self.parent / "0"
        self.now_ms = 1_800_000_000_000
        self.visible: dict[Key, list[Stored]] = {}
        self.waiting: list[tuple[Key, Stored]] = []

    @initialize(durability=st.sampled_from(Durability), step=st.sampled_from([1, 4096]))
    def start(self, durability: Durability, step: int) -> None:
        self.durability = durability
        self.step = step
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            root=self.root,
            commit_log_file_size_bytes=4096,
            consume_queue_file_size_bytes=100,
            durability=self.durability,
            reserve_step_bytes=self.step,
            consume_queue_reserve_step_bytes=self.step,
        )
        self.store = MessageStore(config, clock_ms=lambda: self.now_ms)
        report = self.store.open()
        assert report.truncated_bytes == report.ignored_records == report.units_added == 0
        assert not report.repaired_queues
        self.show_waiting()

    def show_waiting(self) -> None:
        for key, stored in self.waiting:
            self.visible.setdefault(key, []).append(stored)
        self.waiting.clear()

    def accept(self, key: Key, stored: Stored) -> None:
        self.waiting.append((key, stored))
        if self.durability is Durability.ASYNC:
            self.show_waiting()

    def count(self, key: Key) -> int:
        return len(self.visible.get(key, [])) + sum(waiting == key for waiting, _ in self.waiting)

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, body=BODIES, tag=st.sampled_from(TAGS), host=st.sampled_from(HOSTS))
    def put(self, topic: str, queue_id: int, body: bytes, tag: str, host: bytes) -> None:
        queue = self.store.queue(topic, queue_id)
        properties = b"TAGS\x01" + tag.encode() if tag else b""
        message = entry(queue, body, properties, tags_code=tags_code(tag), born_host=host, store_host=HOSTS[0])
        ((_, queue_offset),) = self.store.append([message])
        assert queue_offset == self.count((topic, queue_id))
        self.accept((topic, queue_id), (body, tag))

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, bodies=st.lists(BODIES, max_size=5))
    def put_batch(self, topic: str, queue_id: int, bodies: list[bytes]) -> None:
        if sum(map(len, bodies)) + 120 * len(bodies) + 8 > 4096:
            bodies = bodies[:1]
        queue = self.store.queue(topic, queue_id)
        places = self.store.append(
            [entry(queue, body, b"", born_host=HOSTS[0], store_host=HOSTS[0]) for body in bodies]
        )
        first = self.count((topic, queue_id))
        assert [queue_offset for _, queue_offset in places] == list(range(first, first + len(bodies)))
        for body in bodies:
            self.accept((topic, queue_id), (body, ""))

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, bits=st.sampled_from([4, 12]))
    def put_invisible(self, topic: str, queue_id: int, bits: int) -> None:
        queue = self.store.queue(topic, queue_id)
        half = entry(queue, b"half", b"", sys_flag=bits, born_host=HOSTS[0], store_host=HOSTS[0])
        ((physical_offset, queue_offset),) = self.store.append([half])
        assert queue_offset == 0
        assert self.store.commit_log.look_message(physical_offset) is not None
        assert self.store.reader.is_durable(physical_offset) == (self.durability is Durability.ASYNC)
        self.store.flush()
        assert self.store.reader.is_durable(physical_offset)
        self.show_waiting()

    @rule(milliseconds=st.integers(-100_000, 100_000))
    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.show_waiting()

    @rule()
    def flush_in_steps(self) -> None:
        for make_plan in (self.store.flush_plan, self.store.flush_consume_queues_plan):
            if (plan := make_plan(1)) is not None:
                plan.run()
                self.store.flush_done(plan)

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.store.delete_topic(topic)
        self.visible = {key: stored for key, stored in self.visible.items() if key[0] != topic}
        self.waiting = [(key, stored) for key, stored in self.waiting if key[0] != topic]

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        assert not (self.root / "abort").exists()
        self.open()

    @rule()
    def kill_and_open(self) -> None:
        self.copies += 1
        copy = self.parent / str(self.copies)
        shutil.copytree(self.root, copy)
        self.store.close()
        shutil.rmtree(self.root)
        self.root = copy
        self.open()

    @precondition(lambda self: self.visible)
    @rule(
        data=st.data(),
        most=st.integers(1, 100),
        tag=st.sampled_from([None, *TAGS[1:]]),
        max_bytes=st.none() | st.integers(-1, 100_000),
    )
    def read(self, data: st.DataObject, most: int, tag: str | None, max_bytes: int | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.visible)))
        stored = self.visible[key]
        offset = data.draw(st.integers(-1, len(stored) + 1))
        found = self.store.reader.get_message(
            key, offset, most, frozenset({tags_code(tag)}) if tag else None, max_bytes
        )
        if max_bytes is not None:
            assert found.size_bytes <= max(max_bytes, 0) or found.message_count == 1
        messages = [message for view in found.buffers for message in decode_records(view)]
        assert [message.stored_body for message in messages] == [stored[m.queue_offset][0] for m in messages]
        assert all(tag is None or stored[message.queue_offset][1] == tag for message in messages)
        if 0 <= offset < len(stored):
            looked_at = range(offset, found.next_begin_offset)
            wanted = [n for n in looked_at if tag is None or stored[n][1] == tag]
            assert [message.queue_offset for message in messages] == wanted
            assert found.next_begin_offset > offset
        else:
            assert found.status not in {GetMessageStatus.FOUND, GetMessageStatus.MESSAGE_WAS_REMOVING}

    @invariant()
    def queues_are_as_long_as_in_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        for topic in ("T", "U", "%RETRY%g"):
            for queue_id in range(3):
                stored = self.visible.get((topic, queue_id), [])
                assert self.store.reader.max_offset_in_queue(topic, queue_id) == len(stored)
                assert self.store.reader.min_offset_in_queue(topic, queue_id) == 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.everything_is_readable()
            self.store.close()
        shutil.rmtree(self.parent)

    def everything_is_readable(self) -> None:
        for key, stored in self.visible.items():
            bodies: list[bytes] = []
            while len(bodies) < len(stored):
                found = self.store.reader.get_message(key, len(bodies), 32)
                assert found.status is GetMessageStatus.FOUND
                bodies += [message.stored_body for view in found.buffers for message in decode_records(view)]
            assert bodies == [body for body, _ in stored]


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
