"""Transactions: how a life stores half messages, decides and checks them, as a broker does, and what must be left.

Each transaction is in one state: undecided, committed, rolled back or given up.  A decision whose records are on the
disk holds.  One that the cut has interrupted holds as a whole or not at all; then the transaction is undecided again.
A committed message is in the log once, and no other is.
"""

from collections import Counter, defaultdict
from math import inf
from typing import Final, NamedTuple

from tests.powercut.delivering import Delivering
from tests.powercut.expected import Intent
from tests.powercut.sending import HOST, OPERATION_CODE
from triomq.broker.config import BrokerConfig
from triomq.broker.delayed.delivery import real_queue
from triomq.broker.groups.tables import ConsumerOffsetTable
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.transactions.undecided import Decision, Undecided
from triomq.protocol.names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record
from triomq.protocol.transactions import checks_of
from triomq.storage.append import entry
from triomq.storage.files.json_table import JsonTable

_TOPIC: Final = "transactions"
_COMMIT: Final = 8
_ROLLBACK: Final = 12
_GIVE_UP: Final = -1
_MAX_CHECKS: Final = 1
_INTERVAL_MS: Final = 2000
_MOST_AT_ONCE: Final = 3
_MAX_HALF: Final = 1000


class Decided(NamedTuple):
    """How a transaction was decided, and the end of the records that say so."""

    kind: int
    end: float


class Deciding(Delivering):
    """What a life can do with transactions.

    Attributes:
        durable_end: of the life.
        undecided: of the store that is open.
        decided: how each transaction was decided, by body; those that are missing are undecided.
    """

    durable_end: int
    undecided: Undecided
    decided: dict[bytes, Decided]

    def open_transactions(self) -> None:
        """Find the undecided transactions of the store that was opened, as a broker does."""
        table = JsonTable(self.config.root / "config" / "transactionOffset.json", self.disk)
        config = BrokerConfig(
            store=self.config, transaction_timeout_s=1.0, transaction_check_interval_s=_INTERVAL_MS / 1000
        )
        self._settled = ConsumerOffsetTable(table, clock_ms=lambda: self.now_ms)
        self._settled.load()
        self._settled.restrict(self.store.reader.max_offset_in_queue)
        for half in self._halves():  # a start may settle any of them, or store it again
            self.intents += [_operation(half.queue_offset), Intent(HALF_TOPIC, 0, half.stored_body, 0)]
        self.undecided = Undecided(
            self.store, self._settled, BrokerStatistics(self.now_ms), config, lambda: self.now_ms
        )
        begin = self.store.commit_log.max_offset
        self.undecided.load()
        if self.store.commit_log.max_offset > begin:
            self.store.flush()
        self.save_transactions()

    def put_half(self) -> None:
        body = self._unique_body()[:_MAX_HALF]
        queue = self.store.queue(_TOPIC, self.random.randrange(2))
        properties = {"TRAN_MSG": "true", "REAL_TOPIC": _TOPIC, "REAL_QID": str(queue.queue_id)}
        if self.random.random() < 0.5:
            properties["UNIQ_KEY"] = body.hex()[:16]
        self.intents = [Intent(HALF_TOPIC, 0, body, 0)]
        message = entry(
            queue, body, encode_properties(properties), born_timestamp=self.now_ms, born_host=HOST, store_host=HOST
        )
        begin = self.store.commit_log.max_offset
        self.undecided.put(message)
        self.remember_since(begin)

    def decide(self) -> None:
        """Decide some transactions, also those that are decided already, by any of their half messages."""
        if not (halves := self._halves()):
            return
        chosen = {half.stored_body: half for half in self.random.choices(halves, k=_MOST_AT_ONCE)}
        decisions, entries, self.intents = [], [], []
        for body, half in chosen.items():
            live = self.undecided.find(half)
            assert (live is None) == (body in self.decided), f"found {live}, but it is {self.decided.get(body)}: {half}"
            if live is None:
                continue
            kind = self.random.choice((_COMMIT, _COMMIT, _ROLLBACK))
            queue = real_queue(self.store, half.encoded_properties) if kind == _COMMIT else None
            if queue is not None:
                self.intents.append(Intent(queue.topic, queue.queue_id, body, 0))
            self.intents.append(_operation(live))
            self.decided[body] = Decided(kind, inf)
            decisions.append(decision := Decision(half, live, kind, queue))
            entries += self.undecided.entries(decision)
        begin = self.store.commit_log.max_offset
        self.store.append(entries, are_copies=True)
        for decision in decisions:
            self.undecided.decided(decision)
        self.remember_since(begin)
        for decision in decisions:
            self._answered(decision.half)

    def check_due(self) -> None:
        """Check due transactions as if a producer were asked, and give up those with too many checks."""
        if self.random.random() < 0.5:
            self.now_ms = max(self.now_ms, self.undecided.next_due_ms() or 0)
        for queue_offset in self.undecided.take_due(self.now_ms, _MOST_AT_ONCE):
            half = self.undecided.read(queue_offset)
            if half is None:
                assert all(half.queue_offset != queue_offset for half in self._halves())
                self.undecided.drop(queue_offset)
                continue
            body, begin = half.stored_body, self.store.commit_log.max_offset
            assert body not in self.decided, f"checked, but it is {self.decided[body]}: {half}"
            if checks_of(half) < _MAX_CHECKS:
                self.intents = [Intent(HALF_TOPIC, 0, body, 0), _operation(queue_offset)]
                self.undecided.copy(half, checks_of(half) + 1, self.now_ms + _INTERVAL_MS)
                self.remember_since(begin)
            else:
                self.intents = [Intent(CHECK_MAX_TOPIC, 0, body, 0), _operation(queue_offset)]
                self.decided[body] = Decided(_GIVE_UP, inf)
                self.undecided.give_up(half)
                self.remember_since(begin)
                self._answered(half)
        self.undecided.save_offsets()

    def save_transactions(self) -> None:
        """Save the offsets up to which transactions are decided."""
        if self._settled.is_dirty:
            self._settled.is_dirty = False
            self._settled.write(list(self._settled.pieces()))

    def check_transactions(self) -> None:
        """Compare the state of each transaction with its records in the log."""
        stored = Counter(
            (message.topic, message.stored_body)
            for message in map(decode_record, (stored.record for stored in self.history))
            if message.topic in {_TOPIC, CHECK_MAX_TOPIC}
        )
        for (topic, body), count in stored.items():
            if topic == _TOPIC:
                found = self.decided.get(body)
                assert found is not None, f"delivered undecided: {body!r}"
                assert (found.kind, count) == (_COMMIT, 1), f"delivered {count} times, but it is {found}: {body!r}"
        halves = defaultdict(list)
        for half in self._halves():
            halves[half.stored_body].append(half.queue_offset)
        for body, offsets in halves.items():
            decided = self.decided.get(body)
            if waiting := [*filter(self.undecided.is_undecided, offsets)]:
                assert waiting == [max(offsets)], f"undecided are {waiting} of {offsets}: {body!r}"
                assert decided is None or decided.end > self.durable_end, f"decision lost, {decided}: {body!r}"
                assert not stored[_TOPIC, body], f"delivered, but undecided: {body!r}"
                self.decided.pop(body, None)
            else:
                assert decided is not None, f"neither undecided nor decided: {body!r}"
                assert stored[_TOPIC, body] == (decided.kind == _COMMIT), f"settled without its message: {body!r}"
                assert decided.kind != _GIVE_UP or stored[CHECK_MAX_TOPIC, body], f"given up without a copy: {body!r}"
                self.decided[body] = decided._replace(end=0)

    def _answered(self, half: MessageExt) -> None:
        body = half.stored_body
        self.decided[body] = self.decided[body]._replace(end=self.store.commit_log.max_offset)

    def _halves(self) -> list[MessageExt]:
        return [decode_record(stored.record) for stored in self.history if stored.topic == HALF_TOPIC]


def _operation(queue_offset: int) -> Intent:
    return Intent(OP_HALF_TOPIC, 0, b"%d" % queue_offset, OPERATION_CODE)
