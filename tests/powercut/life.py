"""Random lives of a store on a disk that loses power, beside a model that remembers what must survive.

One life is a seed: it decides settings, operations and the boundaries at which the power is cut, also during the
recovery from the cut before.  After each cut the store is opened and compared with the model:

* every record that was acknowledged (a flush that covers it was completed, or the store was closed) is there, equal
  byte by byte, and readable through its queue at its number;
* every record in the log is one that was put, at its place, but for those that fill a hole the power cut has left;
* files of the log that were deleted for certain are gone, and only those that were to be deleted;
* consume queues hold exactly the units of the records in the log;
* the index, once it has gone on to the end of the log, holds each key of the records in the log once, in their order;
* no message that waits, for its level or for its delivery time, is forgotten (``delivering``);
* transactions are undecided or decided as a whole, and committed messages occur once (``deciding``);
* stored consumer offsets are readable, were written once, and after the broker's correction end within their queue;
* another power cut right after the recovery loses nothing, and the recovery from it changes nothing.
"""

from collections.abc import Callable
from math import inf
from pathlib import Path
from random import Random
from typing import Final

from tests.powercut.deciding import Decided, Deciding
from tests.powercut.expected import DeletedFiles, Intent, Stored, records_of, stored_record
from tests.powercut.model_disk import ModelDisk, PowerCutError
from tests.powercut.sending import MAX_BODY, TOPICS
from tests.unit.storage.making import run
from triomq.broker.groups.tables import ConsumerOffsetTable
from triomq.protocol.codes import TRANSACTION_MASK, MessageSysFlag
from triomq.protocol.record.index_unit import key_hash
from triomq.protocol.record.record import decode_record
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish
from triomq.storage.retention import Reason, Retention

GROUP: Final = "g"
FILE_SIZE: Final = 8192
_MOST_OPERATIONS: Final = 40
_ALL_CUTS: Final = 3
Key = tuple[str, int]


class Life(Deciding):
    """One seed.  ``run`` raises ``AssertionError`` for the first thing that is not as it must be.

    Attributes:
        cuts: how often the power was cut.
        acknowledged: records that had to be there after a cut, over all cuts.
        boundaries: places at which it could have been cut.
        disk_delay: how probable it is that something more is done while the disk syncs.
    """

    def __init__(self, seed: int, base: Path, *, first_cut: int | None = None) -> None:
        """``first_cut`` is the boundary of the first cut; without it the seed decides."""
        self.random = Random(seed)
        self._first_cut = first_cut
        self.disk_delay = self.random.choice((0.3, 0.3, 0.8))
        self.cuts = self.acknowledged = self.boundaries = 0
        self.was_cut = False
        self.root = base / "store"
        self.root.mkdir(parents=True, exist_ok=True)  # for the lock, which is a real one
        self.disk = ModelDisk(base, self.random)
        self.now_ms = 1_800_000_000_000
        self.history: list[Stored] = []
        self.durable_end = 0
        self.decided: dict[bytes, Decided] = {}
        self.deleted_files = DeletedFiles()
        self.deleted: dict[str, int] = {}
        self.intents: list[Intent] = []
        self.deleting: str | None = None
        self.offset_tables: list[dict[Key, int]] = [{}]  # the last one written for certain, and what may be there
        self.config = StoreConfig(
            root=self.root,
            commit_log_file_size_bytes=FILE_SIZE,
            consume_queue_file_size_bytes=self.random.choice((100, 400, 4000)),
            max_message_size_bytes=MAX_BODY,
            durability=self.random.choice((Durability.SYNC, Durability.SYNC, Durability.ASYNC)),
            reserve_step_bytes=self.random.choice((1, 4096)),
            consume_queue_reserve_step_bytes=4096,
            index_slots=self.random.choice((1, 7)),
            index_units=self.random.choice((2, 5, 40)),
            disk_full_ratio=100,
            retention_bytes=self.random.choice((None, FILE_SIZE, 2 * FILE_SIZE)),
        )

    def run(self) -> "Life":
        """Live through some power cuts."""
        self._open()
        for number in range(1 if self._first_cut is not None else self.random.randint(1, _ALL_CUTS)):
            self.disk.cut_later(self._first_cut if self._first_cut is not None else self._some_boundary())
            try:
                operations = self.random.choice((OPERATIONS, OPERATIONS, ON_TRANSACTIONS))
                for _ in range(self.random.randint(1, _MOST_OPERATIONS)):
                    self.random.choice(operations)(self)
            except PowerCutError:
                self.was_cut = True
            self._turn_off()
            self._come_back(interrupted=number if self._first_cut is None else 0)
        self.store.close()
        return self

    def release(self) -> None:
        """Let the store be opened again, as if the process had ended."""
        self.store._directory.release()

    # Operations

    def flush(self) -> None:
        """Flush the log as group commit does: other work may be done before the disk has answered."""
        plan = self.store.flush_plan()
        if plan is None:
            return
        while self.random.random() < self.disk_delay:
            self.random.choice(DURING_FLUSHES)(self)
        plan.run()
        self.store.flush_done(plan)
        self.store.dispatch_flushed()
        self.durable_end = self.store.commit_log.flushed_offset

    def flush_queues(self) -> None:
        plan = self.store.flush_consume_queues_plan(self.random.choice((0, 1)))
        if plan is not None:
            while self.random.random() < self.disk_delay:
                self.random.choice(DURING_FLUSHES)(self)
            plan.run()
            self.store.flush_done(plan)

    def index(self) -> None:
        """Let the index follow the log."""
        self.store.index.catch_up()

    def write_offsets(self) -> None:
        """Store what consumers may have consumed: as far as messages are visible."""
        table = self._offsets(self.disk)
        offsets = {
            (queue.topic, queue.queue_id): self.random.randint(0, queue.max_offset) for queue in self.store.queues
        }
        for (topic, queue_id), offset in offsets.items():
            table.commit(GROUP, topic, queue_id, offset)
        self.offset_tables.append(offsets)
        table.write(list(table.pieces()))
        self.offset_tables = [offsets]

    def delete_topic(self) -> None:
        self.deleting = self.random.choice(TOPICS)
        end = self.store.commit_log.max_offset
        self.store.delete_topic(self.deleting)
        self.deleted[self.deleting] = end
        self.deleting = None

    def delete_old_files(self) -> None:
        """Delete files by length, age or disk usage."""
        retention = Retention(self.store)
        reason = self.random.choice(list(Reason))
        if reason is Reason.AGE:
            retention.request()
        elif reason is Reason.DISK:
            self.disk.capacity_bytes = self.store.check_disk().used_bytes * 10 // 9
        files = self.store.commit_log.files.files
        self.deleted_files.going = files[len(retention.plan())].start if files else 0
        run(retention)
        self.disk.capacity_bytes = 1024**4
        for queue in self.store.queues:
            first = queue.unit(queue.min_offset)
            assert first is None or first.physical_offset >= self.store.commit_log.min_offset, queue
        self.history = self.deleted_files.expire(self.history, self.store.commit_log.min_offset, self.durable_end)

    def restart(self) -> None:
        end = self.store.commit_log.max_offset
        self.store.close()
        self.durable_end = max(self.durable_end, end)
        self._open()
        report = self.store.recovery
        assert report is not None
        assert report.clean
        assert not report.truncated_bytes
        assert not report.units_added
        assert not report.units_removed
        self._compare_all()

    def kill(self) -> None:
        """Let the process die and start again: the operating system has everything."""
        self.release()
        self._open()
        report = self.store.recovery
        assert report is not None
        assert not report.truncated_bytes
        assert not report.units_added
        assert not report.units_removed
        self.durable_end = self.store.commit_log.max_offset
        self._compare_all()

    def pass_time(self) -> None:
        self.now_ms += self.random.choice((-86_400_000, -10_000, 1, 1, 10, 5_000, 100_000, 86_300_000))

    # The cut

    def _some_boundary(self) -> int:
        return 1 + int(self.random.expovariate(1 / 60))

    def _turn_off(self) -> None:
        self.cuts += 1
        self.boundaries += self.disk.boundaries
        self.store._directory.release()
        self.disk = self.disk.after_power_cut(self.random)

    def _come_back(self, interrupted: int) -> None:
        for _ in range(interrupted):
            self.disk.cut_later(1 + int(self.random.expovariate(1 / 8)))
            try:
                self._open()
            except PowerCutError:
                self._turn_off()
                continue
            self.disk.cut_at = inf
            self._turn_off()
        self._open()
        self.acknowledged += sum(stored.end <= self.durable_end for stored in self.history)
        self._learn()
        self._compare_all()
        self._check_offsets()
        self.check_waiting()
        is_flushed = self.random.random() < 0.5
        if is_flushed:
            self.store.flush()
        before = self._content()
        self.store._directory.release()
        self.disk = self.disk.after_power_cut(self.random, keep=0.0)
        self._open()
        report = self.store.recovery
        assert report is not None
        assert not report.truncated_bytes
        assert not (is_flushed and report.units_added), "else they are rebuilt once more"
        assert not report.units_removed
        assert self._content() == before
        self._compare_all()
        self.durable_end = self.store.commit_log.max_offset

    def _open(self) -> None:
        self.store = MessageStore(self.config, file_system=self.disk, clock_ms=lambda: self.now_ms)
        self.store.open()
        self.open_delivery()
        self.open_transactions()

    def _content(self) -> dict[Path, bytes]:
        names = ("commitlog", "consumequeue")
        return {
            path: content
            for path, content in self.disk.content().items()
            if path.relative_to(self.root).parts[0] in names
        }

    # The model

    def _learn(self) -> None:
        """Take over what the store has found: all that was acknowledged, and of the rest what survived."""
        self.history = self.deleted_files.expire(self.history, self.store.commit_log.min_offset, self.durable_end)
        found = dict(records_of(self.store))
        for stored in self.history:
            if stored.end <= self.durable_end:
                assert found.get(stored.physical_offset) == stored.record, f"lost or changed: {stored}"
        known = {stored.physical_offset: stored for stored in self.history}
        learnt = []
        for offset, record in found.items():
            is_known = offset in known and known[offset].record == record
            learnt.append(known[offset] if is_known else self._of_an_intent(offset, record))
        self.history = learnt
        self.intents = []
        if self.deleting is not None:
            queues = [queue for queue in self.store.queues if queue.topic == self.deleting]
            if not any(queue.max_offset for queue in queues):
                self.deleted[self.deleting] = self.store.commit_log.max_offset
            self.deleting = None
        self.deleted = {topic: min(end, self.store.commit_log.max_offset) for topic, end in self.deleted.items()}

    def _of_an_intent(self, offset: int, record: bytes) -> Stored:
        message = decode_record(record)
        for intent in self.intents:
            if (intent.topic, intent.queue_id, intent.body) == (message.topic, message.queue_id, message.stored_body):
                return stored_record(self.config.delay_levels, self.now_ms, offset, record, intent.tags_code)
        raise AssertionError(f"a record at {offset} that nobody has put: {message}")

    def _compare_all(self) -> None:
        """Compare every queue with the records in the log."""
        wanted: dict[Key, dict[int, Stored]] = {}
        for stored in self.history:
            if stored.has_unit and stored.physical_offset >= self.deleted.get(stored.topic, 0):
                wanted.setdefault((stored.topic, stored.queue_id), {})[stored.queue_offset] = stored
        for queue in self.store.queues:
            units = wanted.pop((queue.topic, queue.queue_id), {})
            if units or not self.deleted_files.gone:
                assert queue.max_offset == max(units, default=-1) + 1, f"{queue}: {sorted(units)}"
            else:
                assert queue.min_offset == queue.max_offset, f"{queue}: all its messages have expired"
            lost = set(range(queue.min_offset, queue.max_offset)) - set(units)
            assert all((unit := queue.unit(number)) and unit.is_lost for number in lost), f"{queue}: {lost}"
            for number, stored in units.items():
                unit = queue.unit(number)
                assert unit is not None
                assert unit[:2] == (stored.physical_offset, len(stored.record)), f"{queue}: unit {number}"
                assert unit.tags_code in stored.tags_codes, f"{queue}: unit {number}"
                found = self.store.reader.get_message(queue, number, 1)
                assert [bytes(view) for view in found.buffers] == [stored.record], f"{queue}: message {number}"
        assert not wanted, f"queues are missing: {sorted(wanted)}"
        self._compare_index()
        self.check_transactions()

    def _compare_index(self) -> None:
        while self.store.index.catch_up():
            pass
        messages = [(stored.physical_offset, decode_record(stored.record)) for stored in self.history]
        wanted = [
            (key_hash(message.topic, key), offset)
            for offset, message in sorted(messages)
            if message.sys_flag & TRANSACTION_MASK != MessageSysFlag.TRANSACTION_ROLLBACK
            for key in (*filter(None, [message.properties.get("UNIQ_KEY")]), *message.keys)
        ]
        files = self.store.index.files.all
        units = [file.unit(number)[:2] for file in files for number in range(1, file.header.index_count)]
        assert [unit for unit in units if unit[1] >= self.deleted_files.gone] == wanted, (
            "the index is not that of the log"
        )

    def _offsets(self, disk: ModelDisk) -> ConsumerOffsetTable:
        table = JsonTable(self.root / "config" / "consumerOffset.json", disk)
        return ConsumerOffsetTable(table, clock_ms=lambda: self.now_ms)

    def _check_offsets(self) -> None:
        table = self._offsets(self.disk)
        table.load()
        saved = {
            (topic, queue_id): offset
            for topic, by_id in finish(table.of_group(GROUP)).items()
            for queue_id, offset in by_id.items()
        }
        assert saved in self.offset_tables, f"offsets nobody wrote: {saved}"
        self.offset_tables = [saved]
        for (topic, queue_id), offset in saved.items():
            if self.config.durability is Durability.SYNC and topic not in self.deleted:
                end = max(
                    self.store.reader.max_offset_in_queue(topic, queue_id),
                    self.deleted_files.ends.get((topic, queue_id), 0),
                )
                assert offset <= end, "consumed, but lost"
        table.restrict(self.store.reader.max_offset_in_queue)
        for topic, by_id in finish(table.of_group(GROUP)).items():
            assert all(
                offset <= self.store.reader.max_offset_in_queue(topic, queue_id) for queue_id, offset in by_id.items()
            )


DURING_FLUSHES: Final[tuple[Callable[[Life], None], ...]] = (
    *[Life.put] * 3,
    Life.put_delayed,
    Life.put_half,
    Life.decide,
    Life.check_due,
    Life.deliver_due,
)
OPERATIONS: Final[tuple[Callable[[Life], None], ...]] = (
    *[Life.put] * 8,
    *[Life.put_delayed] * 2,
    *[Life.put_batch] * 3,
    *[Life.put_run] * 3,
    *[Life.put_timed] * 2,
    *[Life.deliver] * 2,
    *[Life.deliver_due] * 3,
    *[Life.save_progress] * 2,
    *[Life.put_half] * 4,
    *[Life.decide] * 4,
    *[Life.check_due] * 3,
    *[Life.save_transactions] * 2,
    *[Life.flush] * 4,
    *[Life.flush_queues] * 2,
    *[Life.index] * 3,
    *[Life.pass_time] * 2,
    Life.write_offsets,
    Life.delete_topic,
    Life.delete_old_files,
    Life.delete_old_files,
    Life.restart,
    Life.kill,
)
ON_TRANSACTIONS: Final[tuple[Callable[[Life], None], ...]] = (
    *[Life.put_half] * 5,
    *[Life.decide] * 5,
    *[Life.check_due] * 5,
    *[Life.pass_time] * 5,
    *[Life.flush] * 2,
    *[Life.save_transactions] * 2,
    Life.put,
    Life.delete_old_files,
    Life.restart,
    Life.kill,
)
