"""Messages that wait: how a life stores and delivers them, as a broker does, and what must be left of them.

No message that waits may be forgotten: of each one either the saved progress says that it still waits, or the copy
that it was delivered with is in the log, or its topic was deleted after it came.  Copies may come twice.
"""

from collections.abc import Callable
from typing import Final

from tests.powercut.expected import Intent
from tests.powercut.model_disk import ModelDisk
from tests.powercut.sending import HOST, MAX_BODY, TOPICS, Sending
from triomq.broker.config import BrokerConfig
from triomq.broker.delayed.delivery import Delivery
from triomq.broker.delayed.levels import Schedule
from triomq.broker.delayed.timer import Timer
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.work import Signal
from triomq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.record import decode_record
from triomq.storage.append import entry
from triomq.storage.files.json_table import JsonTable

_LONGEST_MS: Final = 200_000
_UNIQUE: Final = 16
_WAITING: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)


class Delivering(Sending):
    """What a life can do with messages that wait.

    Attributes:
        disk: of the life.
        deleted: topics that were deleted, each with the end of the log then.
        schedule, timer: of the store that is open.
    """

    disk: ModelDisk
    deleted: dict[str, int]
    schedule: Schedule
    timer: Timer

    def open_delivery(self) -> None:
        """Load the progress of the store that was opened, and save it if it was lowered, as a broker does."""
        tables = self.config.root / "config"
        delivery = Delivery(self.store, BrokerStatistics(self.now_ms))
        self.schedule = Schedule(delivery, JsonTable(tables / "delayOffset.json", self.disk), Signal())
        config = BrokerConfig(store=self.config, timer_max_delay_s=_LONGEST_MS / 1000)
        self.timer = Timer(delivery, JsonTable(tables / "timerProgress.json", self.disk), Signal(), config)
        self.schedule.load()
        self.timer.load()
        self._write_progress()

    def put_timed(self) -> None:
        """Put a message with a delivery time."""
        due_ms = self.now_ms + self.random.randint(1, _LONGEST_MS)
        body, topic, queue_id = self._unique_body(), self.random.choice(TOPICS), self.random.randrange(2)
        self.intents = [Intent(TIMER_TOPIC, 0, body, 0)]
        queue = self.store.queue(topic, queue_id)
        place = self.timer.put(due_ms, entry(queue, body, b"", born_host=HOST, store_host=HOST))
        self._remember(place[0], 0)

    def put_delayed(self) -> None:
        """Put a message with a delay level."""
        level, topic, queue_id = self.random.randint(1, 3), self.random.choice(TOPICS), self.random.randrange(2)
        body = self._unique_body()
        self.intents = [Intent(SCHEDULE_TOPIC, level - 1, body, 0)]
        properties = b"DELAY\x01%d" % level
        queue = self.store.queue(topic, queue_id)
        place = self.schedule.put(level, entry(queue, body, properties, born_host=HOST, store_host=HOST))
        self._remember(place[0], 0)

    def deliver_due(self) -> None:
        """Deliver due messages."""
        begin = self.store.commit_log.max_offset
        waiting = [(stored, decode_record(stored.record)) for stored in self.history if stored.topic in _WAITING]
        self.intents = [
            Intent(message.properties["REAL_TOPIC"], int(message.properties["REAL_QID"]), message.stored_body, 0)
            for _, message in waiting
        ]
        self.schedule.deliver(self.now_ms)
        self.timer.deliver(self.now_ms)
        self.remember_since(begin)

    def save_progress(self) -> None:
        """Save the progress, but first the messages that it counts as delivered."""
        self._write_progress(self.flush_delivered)

    def _write_progress(self, flush: Callable[[], None] | None = None) -> None:
        tables = [table for table in (self.schedule.offsets, self.timer.progress) if table.is_dirty]
        contents = [list(table.pieces()) for table in tables]
        for table in tables:
            table.is_dirty = False
        if flush is not None:
            flush()
        for table, content in zip(tables, contents, strict=True):
            table.write(content)

    def flush_delivered(self) -> None:
        """Put the log on the disk."""
        self.flush()

    def flush(self) -> None:
        raise NotImplementedError

    def check_waiting(self) -> None:
        """Look for each message that has waited: among those that wait, or among those delivered."""
        delivered = {
            decode_record(stored.record).stored_body for stored in self.history if stored.topic not in _WAITING
        }
        waiting = {queue_offset for _, queue_offset in self.timer._waiting()}
        for stored in self.history:
            if stored.topic not in _WAITING or not stored.has_unit:
                continue
            if stored.topic == TIMER_TOPIC:
                still_waits = stored.queue_offset in waiting
            else:
                still_waits = stored.queue_offset >= self.schedule.offsets.get(stored.queue_id + 1)
            message = decode_record(stored.record)
            may_be_dropped = stored.physical_offset < self.deleted.get(message.properties["REAL_TOPIC"], 0)
            is_delivered = message.stored_body in delivered
            assert still_waits or is_delivered or may_be_dropped, f"neither waits nor was delivered: {stored}"

    def _unique_body(self) -> bytes:
        return (self.random.randbytes(_UNIQUE) + self._body())[:MAX_BODY]
