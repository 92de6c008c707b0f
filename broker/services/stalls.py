"""Queues that stand still: messages wait, members may be there, and the group's offset does not move.

Rules: what can be seen from outside is compared once in ten seconds, a few queues at a time, so that many groups make
no noticeable pause; only when a queue has stood still for long are the members asked what they do (307), and the
reason is logged, once until the queue moves again.  Groups are watched from their first member on, also when the last
one has left; those that broadcast keep their offsets themselves and are left out.

Source: users.md 7; the reasons are those of ``triomq.protocol.bodies.group_health``.
"""

import logging
from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from triomq.broker.network.client_requests import NoAnswer
from triomq.broker.network.refusal import RequestRefusedError
from triomq.protocol.bodies.client import ConsumerRunningInfo, MessageModel
from triomq.protocol.bodies.group_health import GroupReport, explain_stall
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.requests.requests import GetConsumerRunningInfoRequestHeader
from triomq.protocol.wire.command import RemotingCommand

if TYPE_CHECKING:
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.services.stalls")

_ROUND_S: Final = 10.0
_QUEUES_PER_SCAN: Final = 2000  # some 2 ms
_ASKED_MEMBERS: Final = 100  # of one group: enough to see a pattern
_ANSWER_S: Final = 5.0


class _Waiting:
    """A queue with messages for a group: where the group stands, and since when."""

    __slots__ = ("is_told", "queue_offset", "since_ms")

    def __init__(self, queue_offset: int, since_ms: int) -> None:
        self.queue_offset = queue_offset
        self.since_ms = since_ms
        self.is_told = False


class StallWatch:
    """Looks for queues that stand still, and says why."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._topics: dict[str, Collection[str]] = {}  # what each watched group subscribes to
        self._waiting: dict[str, dict[MessageQueue, _Waiting]] = {}
        self._round: Iterator[None] = iter(())
        self._next_round = 0.0

    def since_ms(self, group: str, queue: MessageQueue) -> int:
        """Return since when a queue stands still, in milliseconds; 0 if it does not, or not for long enough."""
        waiting = self._waiting.get(group, {}).get(queue)
        return waiting.since_ms if waiting is not None and waiting.is_told else 0

    def count(self) -> int:
        """Return how many queues of all groups stand still."""
        return sum(waiting.is_told for queues in self._waiting.values() for waiting in queues.values())

    def scan(self, now: float) -> None:
        """Look at the next queues; call it once a second with a steady clock in seconds."""
        looked_at = sum(1 for _ in islice(self._round, _QUEUES_PER_SCAN))
        if looked_at < _QUEUES_PER_SCAN and now >= self._next_round:
            self._next_round = now + _ROUND_S
            self._round = self._look_at_all()
            for _ in islice(self._round, _QUEUES_PER_SCAN - looked_at):
                pass

    def _look_at_all(self) -> Iterator[None]:
        """Look at the queues of all groups, one in each step."""
        broker = self._broker
        for group in broker.consumer_groups:
            if group.message_model is MessageModel.CLUSTERING:
                self._topics[group.name] = tuple(group.subscriptions)
            else:
                self._topics.pop(group.name, None)
        for name in [name for name in self._topics if broker.subscription_groups.get(name) is None]:
            del self._topics[name]
        for name in self._waiting.keys() - self._topics.keys():
            del self._waiting[name]
        for name in list(self._topics):
            yield from self._look_at(name)

    def _look_at(self, group: str) -> Iterator[None]:
        """Compare a group's queues with what they were, one in each step, and tell of those that stand still."""
        broker, waiting = self._broker, self._waiting.setdefault(group, {})
        gone, stalled = set(waiting), []
        for topic in self._topics.get(group, ()):
            config = broker.topics.get(topic)
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                queue = MessageQueue(topic, broker.config.broker_name, queue_id)
                gone.discard(queue)
                if self._stands_still(group, waiting, queue):
                    stalled.append(queue)
                yield
        for queue in gone:
            del waiting[queue]
        if stalled:
            self._explain(group, stalled)
        yield

    def _stands_still(self, group: str, waiting: dict[MessageQueue, _Waiting], queue: MessageQueue) -> bool:
        """Note where the group stands; return whether it is to be told that it stands still."""
        topic, _, queue_id = queue
        store, now_ms = self._broker.store, self._broker.clock_ms()
        queue_offset = self._broker.offsets.query(group, topic, queue_id)
        if queue_offset is None:
            queue_offset = store.reader.min_offset_in_queue(topic, queue_id)
        known = waiting.get(queue)
        has_lag = queue_offset < store.reader.max_offset_in_queue(topic, queue_id)
        if has_lag and known is not None and known.queue_offset == queue_offset:
            if known.is_told or now_ms - known.since_ms < self._broker.config.stall_after_s * 1000:
                return False
            known.is_told = True
            return True
        if known is not None:
            if known.is_told:
                LOGGER.info("queue moves again group=%s queue=%s", group, queue)
            del waiting[queue]
        if has_lag:
            waiting[queue] = _Waiting(queue_offset, now_ms)
        return False

    def _explain(self, group: str, queues: list[MessageQueue]) -> None:
        """Ask the members what they do, and log why the queues stand still."""
        live = self._broker.consumer_groups.get(group)
        if live is None:
            self._tell(group, queues, {})
            return
        members = {member.client_id: connection for connection, member in live.members.items()}
        asked = {client_id: members[client_id] for client_id in sorted(members)[:_ASKED_MEMBERS]}

        def done(answers: dict[str, RemotingCommand | NoAnswer]) -> None:
            infos = {client_id: _running_info(answers.get(client_id)) for client_id in members}
            self._tell(group, queues, infos)

        # the client id of the request is not looked at by clients: the connection says whom it is for
        fields = GetConsumerRunningInfoRequestHeader(group, "").encode()
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        try:
            self._broker.client_requests.ask_all(asked, code, fields, _ANSWER_S, done)
        except RequestRefusedError:
            self._tell(group, queues, dict.fromkeys(members))

    def _tell(self, group: str, queues: list[MessageQueue], members: dict[str, ConsumerRunningInfo | None]) -> None:
        config = self._broker.subscription_groups.get(group)
        is_enabled = config is None or config.consume_enable
        report = GroupReport(members, self._broker.clock_ms(), consume_enabled=is_enabled)
        for queue in queues:
            cause, text = explain_stall(report, queue, self._broker.locks.owner(group, queue))
            LOGGER.warning("queue stands still group=%s queue=%s cause=%s reason=%s", group, queue, cause, text)


def _running_info(answer: RemotingCommand | NoAnswer | None) -> ConsumerRunningInfo | None:
    if not isinstance(answer, RemotingCommand) or answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return ConsumerRunningInfo.decode(answer.body)
    except ProtocolError as exc:
        LOGGER.warning("running info unreadable error=%s", exc)
        return None
