"""Detects stalled queues: messages wait, and the group's offset does not advance.

Rules: offsets are compared every ten seconds, a few queues at a time, so that many groups cause no noticeable pause;
only when a queue has been stalled for long are the members asked for their state (307), and the reason is logged, once
until the queue advances.  Groups are watched from their first member on, even after the last one has left; broadcasting
groups keep their own offsets and are ignored.

Source: users.md 7; the reasons are those of ``triomq.protocol.bodies.group_health``.
"""

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from triomq.broker.shared import BrokerPart
from triomq.protocol.bodies.client import ConsumerRunningInfo, MessageModel
from triomq.protocol.bodies.group_health import GroupReport, explain_stall
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ProtocolError, RefusedError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.requests.groups import GetConsumerRunningInfoRequestHeader
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.broker.services.stalls")

_ROUND_S: Final = 10.0
_QUEUES_PER_SCAN: Final = 2000  # some 2 ms
_ASKED_MEMBERS: Final = 100  # of one group: enough to see a pattern
_ANSWER_S: Final = 5.0
_MAX_INFO_BYTES: Final = 512 * 1024  # of a member's state: some 1,400 queues, 30 ms


@dataclass(slots=True)
class _Waiting:
    """A queue with messages for a group: the group's offset, and since when it has been there."""

    queue_offset: int
    since_ms: int
    is_stalled: bool = False


@dataclass(eq=False)
class StallWatch(BrokerPart):
    """Finds stalled queues and logs why."""

    def __post_init__(self) -> None:
        self._topics: dict[str, Collection[str]] = {}  # the subscriptions of each watched group
        self._waiting: dict[str, dict[MessageQueue, _Waiting]] = {}
        self._round: Iterator[None] = iter(())
        self._next_round = 0.0

    def since_ms(self, group: str, queue: MessageQueue) -> int:
        """Return since when a queue has been stalled, ms; 0 if it is not, or not for long enough."""
        waiting = self._waiting.get(group, {}).get(queue)
        return waiting.since_ms if waiting is not None and waiting.is_stalled else 0

    def count(self) -> int:
        """Return the number of stalled queues of all groups."""
        return sum(count for _, count in self.by_group())

    def by_group(self) -> Iterator[tuple[str, int]]:
        """Yield each watched group with the number of its queues that are stalled."""
        for group, queues in list(self._waiting.items()):
            yield group, sum(waiting.is_stalled for waiting in queues.values())

    def scan(self, now: float) -> None:
        """Check the next queues; call it once a second with a steady clock in seconds."""
        checked = sum(1 for _ in islice(self._round, _QUEUES_PER_SCAN))
        if checked < _QUEUES_PER_SCAN and now >= self._next_round:
            self._next_round = now + _ROUND_S
            self._round = self._check_all()
            for _ in islice(self._round, _QUEUES_PER_SCAN - checked):
                pass

    def _check_all(self) -> Iterator[None]:
        """Check the queues of all groups, one in each step."""
        for group in self.groups.consumers:
            if group.message_model is MessageModel.CLUSTERING:
                self._topics[group.name] = tuple(group.subscriptions)
            else:
                self._topics.pop(group.name, None)
        for name in [name for name in self._topics if self.groups.settings.get(name) is None]:
            del self._topics[name]
        for name in self._waiting.keys() - self._topics.keys():
            del self._waiting[name]
        for name in list(self._topics):
            yield from self._check_group(name)

    def _check_group(self, group: str) -> Iterator[None]:
        """Compare a group's queues with their earlier state, one in each step, and log the stalled ones."""
        waiting = self._waiting.setdefault(group, {})
        missing_queues, stalled = set(waiting), []
        for topic in self._topics.get(group, ()):
            config = self.topics.get(topic)
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                queue = MessageQueue(topic, self.config.broker_name, queue_id)
                missing_queues.discard(queue)
                if self._has_stalled(group, waiting, queue):
                    stalled.append(queue)
                yield
        for queue in missing_queues:
            del waiting[queue]
        if stalled:
            self._explain(group, stalled)
        yield

    def _has_stalled(self, group: str, waiting: dict[MessageQueue, _Waiting], queue: MessageQueue) -> bool:
        """Record the group's offset; return whether the queue has just become stalled."""
        topic, _, queue_id = queue
        reader, now_ms = self.store.reader, self.clock_ms()
        queue_offset = self.groups.offsets.query(group, topic, queue_id)
        if queue_offset is None:
            queue_offset = reader.min_offset_in_queue(topic, queue_id)
        known = waiting.get(queue)
        has_lag = queue_offset < reader.max_offset_in_queue(topic, queue_id)
        if has_lag and known is not None and known.queue_offset == queue_offset:
            if known.is_stalled or now_ms - known.since_ms < self.config.stall_after_s * 1000:
                return False
            known.is_stalled = True
            return True
        if known is not None:
            if known.is_stalled:
                LOGGER.info("queue is no longer stalled group=%s queue=%s", group, queue)
            del waiting[queue]
        if has_lag:
            waiting[queue] = _Waiting(queue_offset, now_ms)
        return False

    def _explain(self, group: str, queues: list[MessageQueue]) -> None:
        """Ask the members for their state, and log why the queues are stalled."""
        live = self.groups.consumers.get(group)
        if live is None:
            self._log(group, queues, {})
            return
        members = {member.client_id: connection for connection, member in live.members.items()}
        asked = {
            client_id: (members[client_id], GetConsumerRunningInfoRequestHeader(group, client_id).encode())
            for client_id in sorted(members)[:_ASKED_MEMBERS]
        }

        def done(infos: dict[str, ConsumerRunningInfo | None]) -> None:
            self._log(group, queues, dict.fromkeys(members) | infos)

        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        try:
            self.context.client_requests.ask_all(asked, code, _ANSWER_S, _running_info, done)
        except RefusedError:
            self._log(group, queues, dict.fromkeys(members))

    def _log(self, group: str, queues: list[MessageQueue], members: dict[str, ConsumerRunningInfo | None]) -> None:
        config = self.groups.settings.get(group)
        is_enabled = config is None or config.consume_enable
        report = GroupReport(members, self.clock_ms(), consume_enabled=is_enabled)
        for queue in queues:
            cause, text = explain_stall(report, queue, self.groups.locks.owner(group, queue))
            LOGGER.warning("queue is stalled group=%s queue=%s cause=%s reason=%s", group, queue, cause, text)


def _running_info(answer: RemotingCommand) -> ConsumerRunningInfo | None:
    if answer.code != ResponseCode.SUCCESS:
        return None
    if len(answer.body) > _MAX_INFO_BYTES:
        LOGGER.warning("running info too long bytes=%d limit=%d", len(answer.body), _MAX_INFO_BYTES)
        return None
    try:
        return ConsumerRunningInfo.decode(answer.body)
    except ProtocolError as exc:
        LOGGER.warning("running info unreadable error=%s", exc)
        return None
