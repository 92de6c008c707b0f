"""Diagnosis of consumer groups: pure rules, shared by the broker's log and the tools.

Three faults make members miss messages or stall without an error anywhere: two members with one client id, different
subscriptions, and queues without progress while messages wait.  The input comes from the broker's tables and from the
members' answers to GET_CONSUMER_RUNNING_INFO (307).

Source: behaviour.md A.12, B.11, B.13, B.17, C.4 (14).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from triomq.protocol.bodies.client import ConsumerRunningInfo, ProcessQueueInfo, SubscriptionData
from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.filter_types import parse_filter
from triomq.protocol.message_queue import MessageQueue

#: How long messages may wait in a queue without progress before it counts as stalled, unless the broker says otherwise,
#: and the maximum age of a member's last activity.  Members store their offsets every 5 s and discover each other
#: within 20 s.
STALL_AFTER_S: Final = 30.0

#: Cached messages, or MiB of them, at which consumers stop pulling.  Source: DefaultMQPushConsumer.java.
_FLOW_CONTROL_MESSAGES: Final = 1000
_FLOW_CONTROL_MIB: Final = 100

#: A handler that needs longer for the messages that wait is slow.
_SLOW_S: Final = 60.0

_ORDERLY: Final = "PROP_CONSUMEORDERLY"

_MAX_DIFFERENCES: Final = 20  # of one group: more of them add nothing
_MAX_PARSED: Final = 40  # expressions that are compared by their meaning, others by their text
_MAX_PARSED_CHARACTERS: Final = 256
_MAX_NAMES: Final = 100  # shown for one expression


class SubscriptionDifference(NamedTuple):
    """A topic that members subscribe to differently.

    Attributes:
        topic: its name.
        members: expressions, each with the members that use it; ``None`` for those without a subscription.
    """

    topic: str
    members: tuple[tuple[str | None, tuple[str, ...]], ...]

    def __str__(self) -> str:
        wanted = []
        for expression, names in self.members:
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            shown = "not at all" if expression is None else repr(expression[:_MAX_PARSED_CHARACTERS])
            wanted.append(f"{', '.join(names[:_MAX_NAMES])}{more} {shown}")
        return f"topic {self.topic} is subscribed to differently: {'; '.join(wanted)}"


def duplicates(client_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the ids that more than one live connection of a group has, sorted."""
    return tuple(sorted(client_id for client_id, count in Counter(client_ids).items() if count > 1))


def subscription_differences(
    members: Sequence[tuple[str, Iterable[SubscriptionData]]],
) -> tuple[SubscriptionDifference, ...]:
    """Return the first topics to which members, given by name, subscribe differently, sorted by topic."""
    wanted = [(name, {data.topic: data for data in subscriptions}) for name, subscriptions in members]
    known: dict[tuple[str, str], object] = {}
    found: list[SubscriptionDifference] = []
    for topic in sorted({topic for _, table in wanted for topic in table}):
        if len(found) == _MAX_DIFFERENCES:
            break
        names: dict[object, list[str]] = {}
        expressions: dict[object, str | None] = {}
        for name, table in wanted:
            data = table.get(topic)
            key = None if data is None else _meaning(data, known)
            names.setdefault(key, []).append(name)
            expressions.setdefault(key, None if data is None else data.sub_string)
        if len(names) > 1:
            shown = tuple((expressions[key], tuple(sorted(group))) for key, group in names.items())
            found.append(SubscriptionDifference(topic, shown))
    return tuple(found)


def _meaning(data: SubscriptionData, known: dict[tuple[str, str], object]) -> object:
    """Return a value that is equal for two subscriptions that select the same messages; ``known`` are those so far."""
    text = data.expression_type, data.sub_string
    if text not in known and len(known) < _MAX_PARSED and len(data.sub_string) <= _MAX_PARSED_CHARACTERS:
        try:
            known[text] = parse_filter(data.sub_string, data.expression_type)
        except SubscriptionParseError:
            known[text] = text
    return known.get(text, text)


# --- stalled queues -----------------------------------------------------------------------------------------


class StallCause(StrEnum):
    """Why a queue makes no progress; tools print the values."""

    NO_MEMBER = "no-member"
    DISABLED = "consuming-disabled"
    NO_OWNER = "no-owner"
    LOCKED = "locked"
    NO_LOCK = "no-lock"
    HANDLER_BLOCKED = "handler-blocked"
    HANDLER_FAILING = "handler-failing"
    FLOW_CONTROL = "flow-control"
    NOT_PULLING = "not-pulling"
    NOTHING_WANTED = "nothing-wanted"
    SILENT = "silent"


class Stall(NamedTuple):
    """Why a queue makes no progress, with an explanation."""

    cause: StallCause
    text: str


class SlowHandler(NamedTuple):
    """A topic that a group consumes slowly: its members fetch no more until their handlers have caught up.

    Attributes:
        topic: its name.
        lag: messages that wait, in queues that make progress.
        handler_ms: time that the slowest member's handler takes for a message.
        consumed_per_s: messages of the topic that all members consume per second, in the last minute.
    """

    topic: str
    lag: int
    handler_ms: float
    consumed_per_s: float

    def __str__(self) -> str:
        pace = f"at {self.handler_ms:.0f} ms a message, {self.consumed_per_s:.2g}/s are consumed"
        return f"{self.lag} messages of topic {self.topic} wait for slow handlers: {pace}"


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group's state at one moment.

    Attributes:
        members: its members' answers by client id; ``None`` for those that did not answer.
        now_ms: when they answered.
        consume_enabled: whether the group's settings allow it to consume.
    """

    members: Mapping[str, ConsumerRunningInfo | None]
    now_ms: int
    consume_enabled: bool = True

    def owners(self, queue: MessageQueue) -> list[tuple[str, ProcessQueueInfo]]:
        """Return a queue's owners, sorted by client id; several while they change, or with broadcasting."""
        found = []
        for client_id, info in sorted(self.members.items()):
            held = None if info is None else info.mq_table.get(queue)
            if held is not None and not held.dropped:
                found.append((client_id, held))
        return found

    def is_orderly(self, client_id: str) -> bool:
        """Whether a member consumes in order."""
        info = self.members[client_id]
        return info is not None and info.properties.get(_ORDERLY, "").lower() == "true"

    def failures_per_s(self, client_id: str, topic: str) -> float:
        """Return the messages of a topic that a member's handler rejected per second, in the last minute."""
        info = self.members[client_id]
        status = None if info is None else info.status_table.get(topic)
        return 0.0 if status is None else status.consume_failed_tps

    def slow_handlers(self, lags: Mapping[MessageQueue, int]) -> tuple[SlowHandler, ...]:
        """Return the topics that need longer than a minute at their pace, of queues with messages that progress."""
        found = []
        for topic in sorted({queue.topic for queue in lags}):
            queues = {queue: lag for queue, lag in lags.items() if queue.topic == topic}
            paces = [info.status_table[topic] for info in self.members.values() if info and topic in info.status_table]
            consumed_per_s = sum(pace.consume_ok_tps for pace in paces)
            is_full = any(_is_full(held) for queue in queues for _, held in self.owners(queue))
            lag = sum(queues.values())
            if is_full and 0 < consumed_per_s * _SLOW_S < lag:
                slowest_ms = max(pace.consume_rt for pace in paces)
                found.append(SlowHandler(topic, lag, slowest_ms, consumed_per_s))
        return tuple(found)


def _is_full(held: ProcessQueueInfo) -> bool:
    """Whether a member fetches no more messages of a queue until it has handled some."""
    return held.cached_msg_count > _FLOW_CONTROL_MESSAGES or held.cached_msg_size_in_mib > _FLOW_CONTROL_MIB


def explain_stall(report: GroupReport, queue: MessageQueue, lock_owner: str | None = None) -> Stall:
    """Return why a queue with waiting messages makes no progress.

    Args:
        report: the group.
        queue: one of its queues.
        lock_owner: the client id that holds its lock; ``None`` if unlocked or unknown.
    """
    if not report.members:
        return Stall(StallCause.NO_MEMBER, "no member of the group is online")
    if not report.consume_enabled:
        return Stall(StallCause.DISABLED, "the group's settings forbid it to consume")
    owners = report.owners(queue)
    if not owners:
        silent = ", ".join(sorted(client_id for client_id, info in report.members.items() if info is None))
        if lock_owner is not None:
            return Stall(StallCause.LOCKED, f"{lock_owner} has its lock, and no member that answers consumes it")
        if silent:
            return Stall(StallCause.SILENT, f"no member that answers consumes it; no answer from {silent}")
        return Stall(StallCause.NO_OWNER, "no member has taken it: do all members see the same members and queues?")
    owner, held = owners[0]
    if report.is_orderly(owner):
        if lock_owner not in (None, owner):
            return Stall(StallCause.LOCKED, f"{owner} consumes it in order, but {lock_owner} has its lock")
        if not held.locked:
            return Stall(StallCause.NO_LOCK, f"{owner} consumes it in order and does not have its lock")
    return _explain_owner(report, queue.topic, owner, held)


def _explain_owner(report: GroupReport, topic: str, owner: str, held: ProcessQueueInfo) -> Stall:
    limit_ms = STALL_AFTER_S * 1000
    if not held.cached_msg_count:
        pulled_ms = report.now_ms - held.last_pull_timestamp
        if pulled_ms > limit_ms:
            return Stall(StallCause.NOT_PULLING, f"{owner} asked for messages {_ago(pulled_ms)} ago: paused?")
        return Stall(
            StallCause.NOTHING_WANTED,
            f"{owner} asks for messages, but wants none of those that wait, or stores no offset",
        )
    cached = f"{held.cached_msg_count} messages ({held.cached_msg_size_in_mib} MiB) wait for it"
    at = f"the message at offset {held.cached_msg_min_offset}"
    if not held.last_consume_timestamp:
        return Stall(StallCause.HANDLER_BLOCKED, f"the handler of {owner} has not finished yet for {at}; {cached}")
    handled_ms = report.now_ms - held.last_consume_timestamp
    if handled_ms > limit_ms:
        return Stall(StallCause.HANDLER_BLOCKED, f"the handler of {owner} ended {_ago(handled_ms)} ago; {cached}")
    if failures := report.failures_per_s(owner, topic):
        return Stall(StallCause.HANDLER_FAILING, f"the handler of {owner} refuses {at}: {failures:.2g} failures/s")
    if _is_full(held):
        return Stall(StallCause.FLOW_CONTROL, f"{owner} does not pull because of flow control: {cached}, from {at} on")
    return Stall(StallCause.HANDLER_BLOCKED, f"the handler of {owner} has not finished {at}; {cached}")


def _ago(elapsed_ms: int) -> str:
    return f"{elapsed_ms / 1000:.0f} s"
