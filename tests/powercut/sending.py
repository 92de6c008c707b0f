"""The ways in which a life puts messages, each with what it has to remember of them."""

from random import Random
from typing import Final

from tests.powercut.expected import Intent, Stored, stored_record
from triomq.protocol.host import encode_host
from triomq.protocol.java import tags_code
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record
from triomq.protocol.record.record_copy import split_record
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.delay_levels import SCHEDULE_TOPIC
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.record_copies import RecordCopy

HOST: Final = encode_host("127.0.0.1", 10911)
TOPICS: Final = ("T", "U", "%RETRY%g")
TAGS: Final = ("", "A", "polygenelubricants")
MAX_BODY: Final = 1500
_MOST_AT_ONCE: Final = 4
_MOST_SHORT: Final = 60
_MANY_SHARE: Final = 0.5


class Sending:
    """What a life can do to add messages.

    Attributes:
        random, config, store, now_ms: of the life.
        history: messages that were put, as they must be found again.
        intents: messages that are being put.
    """

    random: Random
    config: StoreConfig
    store: MessageStore
    now_ms: int
    history: list[Stored]
    intents: list[Intent]

    def put(self) -> None:
        topic, queue_id, tag = self.random.choice(TOPICS), self.random.randrange(2), self.random.choice(TAGS)
        bits = self.random.choice((0, 0, 0, 0, 4, 8, 12))
        body = self._body()
        self.intents = [Intent(topic, queue_id, body, tags_code(tag))]
        queue = self.store.queue(topic, queue_id)
        keys = " ".join(self.random.choices("kl", k=self.random.randrange(4)))
        properties = encode_properties({"TAGS": tag, "KEYS": keys})
        place = self.store.put(queue, body, properties, tags_code(tag), 0, bits, 0, HOST, HOST)
        self._remember(place.physical_offset, tags_code(tag))

    def put_batch(self) -> None:
        """Put a batch; of short messages so many that units of a queue lie across borders of the disk's sectors."""
        topic, queue_id, tag = self.random.choice(TOPICS), self.random.randrange(2), self.random.choice(TAGS)
        if self.random.random() < _MANY_SHARE:
            bodies = [b"%d" % number for number in range(self.random.randint(1, _MOST_SHORT))]
        else:
            bodies = [self._body() for _ in range(self.random.randint(1, _MOST_AT_ONCE))]
        code, properties = tags_code(tag), encode_properties({"TAGS": tag})
        self.intents = [Intent(topic, queue_id, body, code) for body in bodies]
        entries = [(0, body, properties, code) for body in bodies]
        for place in self.store.put_batch(self.store.queue(topic, queue_id), entries, 0, 0, HOST, HOST):
            self._remember(place.physical_offset, code)

    def put_run(self) -> None:
        """Put messages of several queues with one copy, as the broker does with those of one read."""
        run, codes = [], []
        for _ in range(self.random.randint(1, _MOST_AT_ONCE)):
            topic, queue_id, tag = self.random.choice(TOPICS), self.random.randrange(2), self.random.choice(TAGS)
            body, code = self._body(), tags_code(tag)
            run.append((self.store.queue(topic, queue_id), body, encode_properties({"TAGS": tag}), code, 0, 0, 0))
            codes.append(code)
        self.intents = [Intent(queue.topic, queue.queue_id, body, code) for queue, body, _, code, *_ in run]
        places = self.store.put_run(run, HOST, HOST)
        for (physical_offset, _), code in zip(places or (), codes, strict=places is not None):
            self._remember(physical_offset, code)
        self.intents = []

    def deliver(self) -> None:
        """Put delayed messages that consumers may see into real queues, as the broker does when they are due."""
        visible = self.store.commit_log.max_offset
        if self.config.durability is Durability.SYNC:
            visible = self.store.commit_log.flushed_offset
        waiting = [stored for stored in self.history if stored.topic == SCHEDULE_TOPIC and stored.end <= visible]
        if not waiting:
            return
        copies: list[RecordCopy] = []
        self.intents = []
        for stored in self.random.choices(waiting, k=self.random.randint(1, _MOST_AT_ONCE)):
            queue = self.store.queue("T", self.random.randrange(2))
            copies.append((queue, 0, *split_record(memoryview(stored.record))))
            self.intents.append(Intent("T", queue.queue_id, decode_record(stored.record).stored_body, 0))
        numbers = {queue: queue.next_offset for queue, *_ in copies}
        for queue, *_ in copies[: self.store.put_copies(copies)]:
            unit = queue.unit(numbers[queue])
            assert unit is not None
            numbers[queue] += 1
            self._remember(unit.physical_offset, 0)
        self.intents = []

    def _body(self) -> bytes:
        length = self.random.choice((0, 10, 100, 500, self.random.randrange(MAX_BODY)))
        return self.random.randbytes(length)

    def _remember(self, physical_offset: int, code: int) -> None:
        record = self.store.commit_log.look_message(physical_offset)
        assert record is not None
        self.history.append(stored_record(self.config.delay_levels, self.now_ms, physical_offset, bytes(record), code))
        self.intents.pop(0)
