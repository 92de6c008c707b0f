"""Sets the offsets of a group in a topic, with or without members online.

Online members keep offsets in memory and would overwrite offsets that others store.  So the broker tells them where to
continue (request 222), which they do about 10 s later, after running handlers.  Without members the offsets are stored
directly.

Source: behaviour.md A.15 (222), B.17; wire.md 7.9.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.config import Start, StartPolicy, StartPosition
from triomq.client.consumer.offsets.first_offsets import first_stored_at
from triomq.client.consumer.requests.queue_requests import QueueRequests
from triomq.client.nursery import in_parallel
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ConfigError, ConsumerNotOnlineError, NoRouteError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.requests.offsets import ResetOffsetRequestHeader
from triomq.protocol.units import QueueOffset

_BEGIN: Final = 0
_END: Final = -1  # means the end of the queue in request 222


class OffsetChange(NamedTuple):
    """One queue; ``before`` is ``None`` if the group had no offset there."""

    queue: MessageQueue
    before: int | None
    after: int


class OffsetReset(NamedTuple):
    """What was or would be done.

    Attributes:
        changes: all queues of the topic, sorted, including unchanged ones.
        is_online: the group has members, which continue there within about 10 s.
    """

    changes: tuple[OffsetChange, ...]
    is_online: bool


async def plan_reset(
    instance: ClientInstance, group: str, topic: str, to: Start, *, is_online: bool
) -> tuple[OffsetChange, ...]:
    """Return the current and new offsets of a group in a topic; ``is_online``: the broker notifies its members.

    Raises:
        ConfigError: ``to`` is not a known position.
        NoRouteError: the topic does not exist.
    """
    policy = StartPolicy.parse(to)
    if policy.queue_offset is not None:
        raise ConfigError(f"to: {to!r} must be 'earliest', 'latest' or a datetime")
    requests = QueueRequests(instance, group)
    known: dict[str, frozenset[int]] = {}

    async def plan(queue: MessageQueue) -> OffsetChange:
        before = await requests.committed(queue)
        if before == 0:  # brokers before 5.0 also answer 0 if there is no offset
            if queue.broker_name not in known:
                known[queue.broker_name] = await requests.stored_queue_ids(queue)
            if queue.queue_id not in known[queue.broker_name]:
                before = None
        return OffsetChange(queue, before, await _target(requests, queue, policy, is_online=is_online))

    return tuple(sorted(await in_parallel(plan, await instance.routes.subscribe_queues(topic))))


async def _target(requests: QueueRequests, queue: MessageQueue, policy: StartPolicy, *, is_online: bool) -> QueueOffset:
    if policy.timestamp is not None:
        if not is_online:  # the broker's own search may find any message of the millisecond
            return await first_stored_at(requests, queue, policy.timestamp)
        return await requests.search_offset(queue, policy.timestamp)
    if policy.position is StartPosition.EARLIEST:
        return await requests.min_offset(queue)
    return await requests.max_offset(queue)


async def carry_out(instance: ClientInstance, group: str, changes: Sequence[OffsetChange], to: Start) -> None:
    """Reset the offsets, through the members or directly.

    Raises:
        BrokerResponseError: a broker rejects the request.
    """
    by_broker: dict[str, list[OffsetChange]] = {}
    for change in changes:
        by_broker.setdefault(change.queue.broker_name, []).append(change)
    requests = QueueRequests(instance, group)

    async def commit(change: OffsetChange) -> None:
        await requests.commit(change.queue, QueueOffset(change.after))

    for broker_name, there in by_broker.items():
        # Brokers reject the reset of a topic in which an offset is missing.
        await in_parallel(commit, (change for change in there if change.before is None))
        is_online = True
        try:
            await _tell_members(instance, group, broker_name, there[0].queue.topic, to)
        except ConsumerNotOnlineError:
            is_online = False
        if not is_online:
            await in_parallel(commit, there)


async def _tell_members(instance: ClientInstance, group: str, broker_name: str, topic: str, to: Start) -> None:
    """Let the broker notify the members of new offsets; brokers 5.x also store them.

    Raises:
        ConsumerNotOnlineError: the group has no member online.
    """
    address = instance.brokers.find(broker_name, only_this=True)
    if address is None:
        raise NoRouteError(f"no master of broker {broker_name!r} is in a known route")
    policy = StartPolicy.parse(to)
    place = _BEGIN if policy.position is StartPosition.EARLIEST else _END
    timestamp = place if policy.timestamp is None else policy.timestamp
    header = ResetOffsetRequestHeader(topic, group, timestamp, is_force=True)
    await instance.requests.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
