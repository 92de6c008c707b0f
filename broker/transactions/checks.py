"""Asks producers about undecided transactions (CHECK_TRANSACTION_STATE, 39).

Rules: one task sleeps until the first half message is due, so its work is in proportion to the due messages; a check
that no live producer gets is not counted; the time to the next check begins with the check.  A check does not wait
until its copy of the half message is on the disk: decisions may name that copy at once.

Source: behaviour.md A.6; TransactionalMessageCheckService.java, AbstractTransactionalMessageCheckListener.java.
"""

import logging
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from triomq.broker.delayed.delivery import REAL_QUEUE_ID, REAL_TOPIC
from triomq.broker.network.connection import Connection
from triomq.broker.services.group_commit import GroupCommit
from triomq.broker.shared import BrokerPart
from triomq.broker.transactions.undecided import Undecided
from triomq.broker.work import Signal
from triomq.protocol.acl.accounts import PUB
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import MessageIllegalError, StoreError
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.names import CHECK_MAX_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import offset_message_id
from triomq.protocol.record.properties import PropertyName, get_property
from triomq.protocol.record.record import encode_record
from triomq.protocol.requests.messages import CheckTransactionStateRequestHeader
from triomq.protocol.transactions import checks_of, properties_of_copy

LOGGER: Final = logging.getLogger("triomq.broker.transactions.checks")

_MAX_MESSAGES: Final = 128  # of one turn, some milliseconds: a send that comes meanwhile waits so long
_MAX_BYTES: Final = 1024**2  # likewise
_RETRY_MS: Final = 1000
_MIN_SLEEP_S: Final = 0.01
_MAX_SLEEP_S: Final = 1.0  # the wall clock may be moved meanwhile
_GROUP: Final = PropertyName.PRODUCER_GROUP.encode()


@dataclass(eq=False)
class TransactionChecks(BrokerPart):
    """The task that checks undecided transactions; ``clock_moved`` makes it look at the clock."""

    undecided: Undecided
    group_commit: GroupCommit | None
    random: Random

    def __post_init__(self) -> None:
        self.clock_moved = Signal()
        self._refused = EventLog(LOGGER, "transactions cannot be checked for now: %s")
        self._absent = EventLog(
            LOGGER, "no live producer to ask about undecided transactions group=%s", logging.WARNING
        )

    async def run(self) -> None:
        """Check due transactions until cancelled."""
        while True:
            self.clock_moved.clear()
            is_behind = await self._turn()
            self.undecided.save_offsets()
            next_ms = self.undecided.next_due_ms()
            if is_behind:
                await trio.lowlevel.checkpoint()
            else:
                sleep_s = _MAX_SLEEP_S if next_ms is None else (next_ms - self.undecided.now_ms()) / 1000
                with trio.move_on_after(min(max(sleep_s, _MIN_SLEEP_S), _MAX_SLEEP_S)):
                    await self.clock_moved.wait()

    async def _turn(self) -> bool:
        """Check a bounded number of due transactions; return whether more may be due."""
        undecided, now_ms = self.undecided, self.undecided.now_ms()
        due, old = undecided.take_due(now_ms, _MAX_MESSAGES), undecided.oldest(_MAX_MESSAGES)
        if not due and not old:
            return False
        retry_ms = now_ms
        left = deque(due)
        try:
            wanted = sorted({*due, *old})
            loading = self.store.cold_reads.load_messages(undecided.halves, wanted, _MAX_BYTES)
            await self.context.worker.run(loading, urgent=True)
            budget = _MAX_BYTES
            while left and budget > 0:
                budget -= self._serve(left[0], now_ms)
                left.popleft()
            for queue_offset in old:
                half = undecided.read(queue_offset) if undecided.is_undecided(queue_offset) else None
                if half is not None and budget > 0:
                    budget -= half.store_size
                    undecided.copy(half, None)
            self._refused.ended()
        except (StoreError, MessageIllegalError) as exc:
            self._refused.occurred(exc, cause=str(exc))
            retry_ms = now_ms + _RETRY_MS
        for queue_offset in left:
            undecided.postpone(queue_offset, retry_ms)
        if self.group_commit is not None:
            self.group_commit.wake()
        self.context.worker.end_step()
        return retry_ms == now_ms and len(due) + len(old) >= _MAX_MESSAGES

    def _serve(self, queue_offset: int, now_ms: int) -> int:
        """Check one transaction, give it up or postpone it; return the bytes stored."""
        undecided, config = self.undecided, self.config
        if not undecided.is_undecided(queue_offset):  # decided while records were read
            return 0
        half = undecided.read(queue_offset)
        if half is None:
            undecided.drop(queue_offset)
            return 0
        checks = checks_of(half)
        born_ms = min(half.born_timestamp, half.store_timestamp) or half.store_timestamp
        if checks >= config.transaction_check_max or now_ms - born_ms >= config.transaction_max_age_ms:
            self.topics.ensure(CHECK_MAX_TOPIC, 1)
            undecided.give_up(half)
            return half.store_size
        next_ms = now_ms + config.transaction_check_interval_ms
        group = (get_property(half.encoded_properties, _GROUP) or b"").decode("utf-8", "replace")
        live = self._live(group, (get_property(half.encoded_properties, REAL_TOPIC) or b"").decode("utf-8", "replace"))
        if not live:
            self._absent.occurred(group, key=group)
            undecided.postpone(queue_offset, next_ms)
            return 0
        self._absent.ended(key=group)
        place = undecided.copy(half, checks + 1, next_ms)
        self._ask(self.random.choice(live), half, properties_of_copy(half, checks + 1), *place)
        return half.store_size

    def _live(self, group: str, topic: str) -> list[Connection]:
        """Return the members of a producer group that read, and whose accounts may send to the topic."""
        account_of, is_read_by = self.groups.client_ids.account_of, self.context.budget.is_read_by
        members = self.groups.producers.groups.get(group) or ()
        return [each for each in members if is_read_by(each) and self.access.may(account_of(each), topic, PUB)]

    def _ask(
        self, connection: Connection, half: MessageExt, properties: bytes, physical_offset: int, queue_offset: int
    ) -> None:
        """Send a half message as the message that it will become, with properties and offsets of its newest copy."""
        record = encode_record(
            queue_id=int(get_property(properties, REAL_QUEUE_ID) or 0),
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            sys_flag=half.sys_flag,
            born_timestamp=half.born_timestamp,
            born_host=half.encoded_born_host,
            store_timestamp=half.store_timestamp,
            store_host=half.encoded_store_host,
            body=half.stored_body,
            topic=get_property(properties, REAL_TOPIC) or half.topic.encode(),
            properties=properties,
            flag=half.flag,
            reconsume_times=half.reconsume_times,
        )
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=QueueOffset(queue_offset),
            commit_log_offset=PhysicalOffset(physical_offset),
            msg_id=half.unique_id,
            transaction_id=half.unique_id,
            offset_msg_id=offset_message_id(half.encoded_store_host, physical_offset),
        )
        self.context.client_requests.send_oneway(
            connection, RequestCode.CHECK_TRANSACTION_STATE, header.encode(), record
        )
