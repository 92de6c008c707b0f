"""A slave's store beside its master's: the log comes in pieces that are cut anywhere, the slave stops and is killed."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from triomq.protocol.host import encode_host
from triomq.protocol.java import tags_code
from triomq.protocol.record.consume_queue_unit import ConsumeQueueUnit
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.wire.ha import start_of
from triomq.storage.append import entry
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import Work, finish

FILE: Final = 4096
HOSTS: Final = (encode_host("127.0.0.1", 10911), encode_host("2001:db8::1", 10911))
TOPICS: Final = ("T", "U", "%RETRY%g")
QUEUES: Final = [(topic, queue_id) for topic in TOPICS for queue_id in range(2)]
QUEUE: Final = st.sampled_from(QUEUES)
BODIES: Final = st.builds(lambda byte, length: bytes((byte,)) * length, st.integers(0, 255), st.integers(0, 1500))
HALF: Final = 4


class ReplicaMachine(RuleBasedStateMachine):
    """Two stores; what one appends the other copies."""

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp(prefix="replica-machine-"))
        self.now_ms = 1_800_000_000_000
        self.work: Work[int] | None = None
        self.copies = self.keys = 0
        self.deleted: set[str] = set()  # topics that were deleted at the master, which the slave does not know

    def open(self, name: str) -> MessageStore:
        config = StoreConfig(
            root=self.parent / name,
            commit_log_file_size_bytes=FILE,
            consume_queue_file_size_bytes=100,
            index_slots=5,
            index_units=9,
            durability=self.durability,
            reserve_step_bytes=1,
            consume_queue_reserve_step_bytes=1,
        )
        store = MessageStore(config, clock_ms=lambda: self.now_ms, is_replica=name != "master")
        store.open()
        return store

    @initialize(durability=st.sampled_from(Durability), bodies=st.lists(BODIES, max_size=12))
    def start(self, durability: Durability, bodies: list[bytes]) -> None:
        self.durability = durability
        self.master = self.open("master")
        for body in bodies:
            self.put(QUEUES[0], body, "A", 0, HOSTS[0])
        self.slave = self.open("0")

    @rule(
        queue=QUEUE, body=BODIES, tag=st.sampled_from(["", "A"]), bits=st.sampled_from([0, 0, 0, HALF]),
        host=st.sampled_from(HOSTS),
    )  # fmt: skip
    def put(self, queue: tuple[str, int], body: bytes, tag: str, bits: int, host: bytes) -> None:
        self.keys += 1
        properties = encode_properties({"KEYS": f"k{self.keys}"} | ({"TAGS": tag} if tag else {}))
        message = entry(
            self.master.queue(*queue), body, properties,
            tags_code=tags_code(tag), sys_flag=bits, born_host=host, store_host=HOSTS[0],
        )  # fmt: skip
        self.master.append([message])

    @rule(queue=QUEUE, bodies=st.lists(BODIES.map(lambda body: body[:300]), min_size=1, max_size=6))
    def put_batch(self, queue: tuple[str, int], bodies: list[bytes]) -> None:
        target = self.master.queue(*queue)
        self.master.append([entry(target, body, b"", born_host=HOSTS[1], store_host=HOSTS[0]) for body in bodies])

    @rule(topic=st.sampled_from(TOPICS), is_known_to_slave=st.booleans())
    def delete_topic(self, topic: str, *, is_known_to_slave: bool) -> None:
        self.master.delete_topic(topic)
        self.deleted.add(topic)
        if is_known_to_slave:
            self.catch_up()
            self.slave.delete_topic(topic)
            self.deleted.discard(topic)

    @rule(milliseconds=st.integers(-100_000, 100_000))
    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(sizes=st.lists(st.integers(1, 700), max_size=20))
    def copy(self, sizes: list[int]) -> None:
        for size in sizes:
            self.copy_piece(size)

    def copy_piece(self, size: int) -> bool:
        """Send the next bytes as a master does; return whether there were some."""
        log, replica = self.master.commit_log, self.slave.replica
        offset = replica.end or start_of(0, log.max_offset, FILE)
        piece = log.piece(offset, size)
        if piece:
            replica.append(offset, piece)
            assert replica.end == offset + len(piece)
        return bool(piece)

    @rule(steps=st.integers(1, 5))
    def dispatch(self, steps: int) -> None:
        for _ in range(steps):
            self.work = self.work or self.slave.replica.dispatching()
            if next(self.work, None) is None:
                self.work = None

    @rule()
    def flush(self) -> None:
        self.slave.flush()
        assert self.slave.replica.durable_end <= self.slave.replica.end

    @rule()
    def stop_and_start(self) -> None:
        end = self.slave.replica.end
        self.work = None
        self.slave.close()
        self.slave = self.open(str(self.copies))
        report = self.slave.recovery
        assert report is not None
        assert report.clean
        assert not any((report.truncated_bytes, report.units_added, report.repaired_queues))
        assert self.slave.replica.end <= end

    @rule()
    def kill_and_start(self) -> None:
        end = self.slave.replica.end
        self.work = None
        self.copies += 1
        shutil.copytree(self.slave.config.root, self.parent / str(self.copies))
        self.slave.close()
        self.slave = self.open(str(self.copies))
        report = self.slave.recovery
        assert report is not None
        assert not any((report.damage, report.repaired_queues, report.ignored_records))
        assert self.slave.replica.end <= end

    @rule()
    def catch_up(self) -> None:
        while self.copy_piece(32 * 1024):
            pass
        self.work = None
        finish(self.slave.replica.dispatching())
        self.everything_is_equal()

    @invariant()
    def only_whole_records_are_visible(self) -> None:
        if not hasattr(self, "slave"):
            return
        for queue in self.slave.queues:
            unit = queue.unit(queue.max_offset - 1)
            assert unit is None or self.slave.commit_log.look_message(unit.physical_offset, unit.size) is not None

    def everything_is_equal(self) -> None:
        log, copy = self.master.commit_log, self.slave.commit_log
        assert copy.max_offset in {log.max_offset, 0}
        assert copy.store_timestamp in {log.store_timestamp, 0}
        for file in copy.files.files:
            original = log.files.file_at(file.start)
            assert original is not None
            assert file.view == original.view
        for topic, queue_id in QUEUES:
            units = self.units(self.master, topic, queue_id)
            wanted = {number: unit for number, unit in units.items() if unit.physical_offset >= copy.files.start}
            if wanted or topic not in self.deleted:
                assert self.units(self.slave, topic, queue_id) == wanted
        for _ in range(1000):
            if not finish(self.slave.index.follow()):
                break

    @staticmethod
    def units(store: MessageStore, topic: str, queue_id: int) -> dict[int, ConsumeQueueUnit]:
        queue = store.queue(topic, queue_id)
        numbers = range(queue.min_offset, queue.next_offset)
        return {number: unit for number in numbers if (unit := queue.unit(number)) is not None}

    def teardown(self) -> None:
        if hasattr(self, "slave"):
            self.catch_up()
            self.slave.close()
            self.master.close()
        shutil.rmtree(self.parent)


TestReplicaMachine = ReplicaMachine.TestCase
TestReplicaMachine.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
