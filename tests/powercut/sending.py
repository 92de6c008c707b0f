"""The ways in which a life puts messages, each with its record for the comparison."""

from random import Random
from typing import Final

from tests.powercut.expected import Intent, Stored, stored_record
from triomq.protocol.host import encode_host
from triomq.protocol.java import tags_code
from triomq.protocol.names import OP_HALF_TOPIC, SCHEDULE_TOPIC
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import RecordKind, decode_record
from triomq.storage.append import Entry, entry
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.message_store import MessageStore

HOST: Final = encode_host("127.0.0.1", 10911)
TOPICS: Final = ("T", "U", "%RETRY%g")
TAGS: Final = ("", "A", "polygenelubricants")
MAX_BODY: Final = 1500
OPERATION_CODE: Final = tags_code("d")
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
        message = entry(
            queue, body, properties, tags_code=tags_code(tag), sys_flag=bits, born_host=HOST, store_host=HOST
        )
        ((physical_offset, _),) = self.store.append([message])
        self._remember(physical_offset, tags_code(tag))

    def put_batch(self) -> None:
        """Put a batch with enough short messages that units of a queue lie across borders of sectors."""
        topic, queue_id, tag = self.random.choice(TOPICS), self.random.randrange(2), self.random.choice(TAGS)
        if self.random.random() < _MANY_SHARE:
            bodies = [b"%d" % number for number in range(self.random.randint(1, _MOST_SHORT))]
        else:
            bodies = [self._body() for _ in range(self.random.randint(1, _MOST_AT_ONCE))]
        code, properties = tags_code(tag), encode_properties({"TAGS": tag})
        self.intents = [Intent(topic, queue_id, body, code) for body in bodies]
        queue = self.store.queue(topic, queue_id)
        entries = [entry(queue, body, properties, tags_code=code, born_host=HOST, store_host=HOST) for body in bodies]
        for physical_offset, _ in self.store.append(entries):
            self._remember(physical_offset, code)

    def put_run(self) -> None:
        """Put messages of several queues with one copy, as the broker does with those of one read."""
        run, codes = [], []
        for number in range(self.random.randint(1, _MOST_AT_ONCE)):
            topic, queue_id, tag = self.random.choice(TOPICS), self.random.randrange(2), self.random.choice(TAGS)
            queue, code = self.store.queue(topic, queue_id), tags_code(tag)
            properties = encode_properties({"TAGS": tag})
            body = b"%d" % number + self._body()  # two with one body could not be distinguished
            run.append(entry(queue, body, properties, tags_code=code, born_host=HOST, store_host=HOST))
            codes.append(code)
        self.intents = [
            Intent(message.queue.topic, message.queue.queue_id, message.body, code)
            for message, code in zip(run, codes, strict=True)
        ]
        for (physical_offset, _), code in zip(self.store.append(run), codes, strict=True):
            self._remember(physical_offset, code)

    def deliver(self) -> None:
        """Put delayed messages that consumers may see into real queues, as the broker does when they are due."""
        visible = self.store.commit_log.max_offset
        if self.config.durability is Durability.SYNC:
            visible = self.store.commit_log.flushed_offset
        waiting = [stored for stored in self.history if stored.topic == SCHEDULE_TOPIC and stored.end <= visible]
        if not waiting:
            return
        copies: list[Entry] = []
        self.intents = []
        for stored in self.random.choices(waiting, k=self.random.randint(1, _MOST_AT_ONCE)):
            queue = self.store.queue("T", self.random.randrange(2))
            message = decode_record(stored.record)
            copies.append(
                entry(
                    queue,
                    message.stored_body,
                    message.encoded_properties,
                    sys_flag=message.sys_flag,
                    born_host=message.encoded_born_host,
                    store_host=message.encoded_store_host,
                )
            )
            self.intents.append(Intent("T", queue.queue_id, message.stored_body, 0))
        for physical_offset, _ in self.store.append(copies, are_copies=True):
            self._remember(physical_offset, 0)

    def _body(self) -> bytes:
        length = self.random.choice((0, 10, 100, 500, self.random.randrange(MAX_BODY)))
        return self.random.randbytes(length)

    def _remember(self, physical_offset: int, code: int) -> None:
        record = self.store.commit_log.look_message(physical_offset)
        assert record is not None
        self.history.append(stored_record(self.config.delay_levels, self.now_ms, physical_offset, bytes(record), code))
        self.intents.pop(0)

    def remember_since(self, begin: int) -> None:
        """Remember all records from an offset on: of messages that broker code has put."""
        log = self.store.commit_log
        while begin < log.max_offset:
            found = log.check(begin, check_crc=True)
            assert found.kind is not RecordKind.BAD, found
            if (record := log.look_message(begin)) is not None:
                code = OPERATION_CODE if found.topic == OP_HALF_TOPIC else 0
                self.history.append(stored_record(self.config.delay_levels, self.now_ms, begin, bytes(record), code))
            begin += found.size
        self.intents = []
