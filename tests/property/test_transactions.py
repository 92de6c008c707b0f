"""Transactions as a whole: any order of half messages, decisions, checks, restarts and kills."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from tests.commands import make_command
from tests.unit.broker.processors.test_client import heartbeat
from tests.unit.broker.recording import Clock, Peer
from triomq.broker.config import BrokerConfig
from triomq.broker.server import Broker
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.names import CHECK_MAX_TOPIC, HALF_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.record import decode_record, decode_records
from triomq.protocol.requests.messages import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from triomq.storage.append import Entry
from triomq.storage.config import StoreConfig
from triomq.storage.message_store import MessageStore

COMMIT, ROLLBACK = 8, 12
TIMEOUT_S, INTERVAL_S, MAX_CHECKS = 6, 20, 3


@dataclass(eq=False)
class Transaction:
    """What the model knows of a transaction."""

    body: bytes
    offsets: list[tuple[int, int]]  # commit log and half queue offsets of its half messages
    born_ms: int
    immunity_s: int
    decision: int = 0
    checked_ms: list[int] = field(default_factory=list)


class Transactions(RuleBasedStateMachine):
    transactions = Bundle("transactions")

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self._clock = Clock()
        self._known: dict[bytes, Transaction] = {}
        self._runs = 0
        self._is_online = True
        self._open(Path(self._folder.name) / "0")

    def _open(self, root: Path) -> None:
        config = StoreConfig(
            root=root, commit_log_file_size_bytes=64 * 1024, consume_queue_file_size_bytes=20 * 50, index=False
        )
        self._store = MessageStore(config, clock_ms=self._clock)
        self._store.open()
        settings = BrokerConfig(
            store=config,
            transaction_timeout_s=TIMEOUT_S,
            transaction_check_interval_s=INTERVAL_S,
            transaction_check_max=MAX_CHECKS,
        )
        self._broker = Broker(settings, self._store, self._clock, self._clock, elapsed_clock_ms=self._clock)
        self._broker.load()
        self._peer = Peer(self._broker)
        if self._is_online:
            self.producer_comes()

    def teardown(self) -> None:
        self._store.close()
        self._folder.cleanup()

    @rule()
    def producer_comes(self) -> None:
        heartbeat(self._peer, "c", producers=("P",), topics=())
        self._is_online = True

    @rule()
    def producer_leaves(self) -> None:
        self._broker.groups.producers.forget(self._peer.as_connection)
        self._is_online = False

    @rule(
        target=transactions, has_id=st.booleans(), immunity_s=st.sampled_from([0, 0, 50, 400]), is_plain=st.booleans()
    )
    def send(self, *, has_id: bool, immunity_s: int, is_plain: bool) -> Transaction:
        number = len(self._known)
        properties = "TRAN_MSG\x01true\x02PGROUP\x01P"
        if has_id:
            properties += f"\x02UNIQ_KEY\x01id{number}"
        if immunity_s:
            properties += f"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{immunity_s}"
        body = b"%d" % number
        fields = {
            "a": "P",
            "b": "T",
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "4",
            "g": f"{self._clock.now_ms}",
            "h": "0",
        }
        if is_plain:
            self._peer.read(make_command(RequestCode.SEND_MESSAGE_V2, 1, 0, {**fields, "i": properties}, body))
            response = self._peer.sent.pop()
        else:
            response = self._peer.put("T", body, i=properties, g=self._clock.now_ms)
        assert response.code == ResponseCode.SUCCESS
        place = parse_offset_message_id(response.ext_fields["msgId"])[2], int(response.ext_fields["queueOffset"])
        sent = self._known[body] = Transaction(body, [place], self._clock.now_ms, immunity_s or TIMEOUT_S)
        return sent

    @rule(
        sent=transactions,
        which=st.integers(0, 9),
        decision=st.sampled_from([COMMIT, ROLLBACK]),
        oneway=st.integers(0, 2),
    )
    def decide(self, sent: Transaction, which: int, decision: int, oneway: int = 0) -> None:
        """Decide by a request, perhaps after decisions that want no answer."""
        physical_offset, queue_offset = sent.offsets[which % len(sent.offsets)]
        header = EndTransactionRequestHeader(
            producer_group="P",
            tran_state_table_offset=QueueOffset(queue_offset),
            commit_log_offset=PhysicalOffset(physical_offset),
            commit_or_rollback=decision,
            msg_id="",
        )
        self._peer.read(*[make_command(RequestCode.END_TRANSACTION, 1, 2, header.encode())] * oneway)
        response = self._peer.get(RequestCode.END_TRANSACTION, header)
        if not sent.decision and sent.body not in self._given_up():
            assert response.code == ResponseCode.SUCCESS
            sent.decision = decision
        elif decision != sent.decision:
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert response.remark is not None
            assert "settled" in response.remark

    @rule(seconds=st.sampled_from([1, TIMEOUT_S, INTERVAL_S]))
    def time_passes(self, seconds: int) -> None:
        self._clock.now_ms += seconds * 1000
        self._peer.sent.clear()

        async def check() -> None:
            while await self._broker.transactions._turn():
                pass

        trio.run(check)
        self._broker.transactions.undecided.save_offsets()
        for command in self._peer.sent:
            self._take_check(decode_record(bytes(command.body)), command.ext_fields)

    def _take_check(self, message: MessageExt, fields: dict[str, str]) -> None:
        header = CheckTransactionStateRequestHeader.decode(fields)
        checked = self._known[message.body]
        assert (message.topic, checked.decision) == ("T", 0)
        assert self._clock.now_ms - checked.born_ms >= checked.immunity_s * 1000
        if checked.checked_ms:
            assert self._clock.now_ms - checked.checked_ms[-1] >= INTERVAL_S * 1000
        checked.checked_ms.append(self._clock.now_ms)
        assert message.properties["TRANSACTION_CHECK_TIMES"] == f"{len(checked.checked_ms)}"
        assert len(checked.checked_ms) <= MAX_CHECKS
        checked.offsets.append((header.commit_log_offset, header.tran_state_table_offset))

    @rule()
    def restart(self) -> None:
        self._broker.save_tables()
        self._store.close()
        self._open(self._store.config.root)

    @rule(saves=st.booleans())
    def kill(self, *, saves: bool) -> None:
        if saves:
            self._store.flush()
            self._broker.save_tables()
        self._runs += 1
        root = Path(self._folder.name) / str(self._runs)
        shutil.copytree(self._store.config.root, root)
        self._store.close()
        self._open(root)

    @rule(sent=transactions)
    def kill_between_message_and_operation(self, sent: Transaction) -> None:
        if sent.decision or sent.body in self._given_up():
            return
        append = self._store.append

        def append_first(entries: Sequence[Entry], *, are_copies: bool = False) -> list[tuple[int, int]]:
            return append(entries[:1], are_copies=are_copies)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._store, "append", append_first)
            self.decide(sent, 0, COMMIT)
        self.kill(saves=False)

    def _given_up(self) -> Counter[bytes]:
        return Counter(message.body for message in self._messages(CHECK_MAX_TOPIC))

    def _messages(self, topic: str) -> list[MessageExt]:
        reader = self._store.reader
        count = reader.max_offset_in_queue(topic, 0)
        units = reader.queue_units(topic, 0, 0, count)
        views = [self._store.commit_log.view(unit.physical_offset, unit.size) for unit in units]
        return decode_records(b"".join(view for view in views if view is not None))

    @invariant()
    def all_committed_messages_are_delivered_once_and_no_others(self) -> None:
        committed = [sent.body for sent in self._known.values() if sent.decision == COMMIT]
        assert sorted(message.body for message in self._messages("T")) == sorted(committed)

    @invariant()
    def undecided_transactions_wait_or_are_given_up_once(self) -> None:
        given_up = self._given_up()
        assert all(count == 1 for count in given_up.values())
        undecided = {sent.body for sent in self._known.values() if not sent.decision}
        assert given_up.keys() <= undecided
        table = self._broker.transactions.undecided
        assert len(table) == len(undecided) - len(given_up)
        for body in given_up:
            assert len(self._known[body].checked_ms) == MAX_CHECKS

    @invariant()
    def saved_offset_is_not_beyond_undecided_transactions(self) -> None:
        saved = self._broker.groups.offsets.query("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) or 0
        assert all(
            self._broker.transactions.undecided.is_undecided(offset) <= (offset >= saved) for offset in range(saved)
        )


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
