"""The rebalance service: asks for the members of the group, takes queues and gives them up.

The problem: the members of a group share queues without a coordinator.  Each asks the broker for the members, sorts
queues and members as all others do, and takes its share (``strategies.py``).  Members learn of a change at different
times, so for a moment two of them may have a queue, or none.

Rejected: to assign queues at the broker, as Kafka does, because Java's members of the group would not follow.  Also
rejected: to start over at each change.  A round compares the queues to hold with those held, and touches only the
difference.

What follows from two owners of a queue:

- They deliver its messages twice.  So the old owner stores its progress before the queue counts as given up, and each
  round begins by storing progress, because the new owner is about to ask for it.
- They must not disturb the order of an orderly consumer.  So it takes a queue only with the broker's lock
  (``locks.py``), and gives it up in a fixed order: the handler ends, progress is stored, the lock is released.
- A member that was cut off must not set back the progress of its successor.  So progress of a queue whose lock or
  connection was lost is not stored until it was compared with the broker's.

The invariant: progress that is stored for a queue comes from its present owner or is lower than the owner's, so that a
message may be delivered twice but none is skipped.

Source: behaviour.md B.7 (rounds), B.8 (taking and giving up), RebalanceImpl.java, RebalancePushImpl.java.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.connection.pool import log_retry
from triomq.client.consumer.assignment.locks import LockKeeper
from triomq.client.consumer.assignment.strategies import AllocateStrategy, Membership, allocate, allocate_averagely
from triomq.client.consumer.offsets.first_offsets import FirstOffsets
from triomq.client.consumer.processing.process_queue import NO_LOCK, ProcessQueue, QueueLock
from triomq.client.consumer.pulling.pull_context import PullContext
from triomq.client.consumer.pulling.pull_loop import PullLoop
from triomq.client.consumer.topics import Subscription, Subscriptions, TopicCounters
from triomq.protocol.errors import REMOTE_ERRORS, ClientError
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import MessageQueue

LOGGER: Final = logging.getLogger("triomq.client.consumer.assignment.rebalancer")

_MISSING: Final = (
    "topic does not exist: create it; it is consumed from its first message as soon as it exists topic=%s hint=%s"
)
_GIVE_UP_LIMIT_S: Final = 1.0
_EARLY_COMMIT_LIMIT_S: Final = 0.2


class Rebalancer:
    """Keeps the queues of a consumer in line with its share.

    Attributes:
        loops: the queues held, each with its pull loop.
        counters: counts by topic.
        rounds: rounds so far.
        is_over: it has ended.
        assigned: all existing topics have been rebalanced once, or the rebalancer has ended.
        round_ended: replaced after each round; set when the next one has ended, or the rebalancer has.
    """

    def __init__(
        self,
        instance: ClientInstance,
        context: PullContext,
        subscriptions: Subscriptions,
        first_offsets: FirstOffsets,
        strategy: AllocateStrategy | None,
        locks: LockKeeper | None = None,
        chosen: Mapping[str, frozenset[MessageQueue]] | None = None,
    ) -> None:
        self.loops: dict[MessageQueue, PullLoop] = {}
        self.counters = {topic: TopicCounters() for topic in subscriptions.topics}
        self.rounds = 0
        self._instance = instance
        self._context = context
        self._subscriptions = subscriptions
        self._first_offsets = first_offsets
        self._strategy = strategy  # None in broadcasting: each member has all queues
        self._locks = locks  # of orderly consumption in clustering
        self._chosen = chosen  # queues by topic if the user chose them, not the group
        self._membership = Membership()
        self._retiring: dict[MessageQueue, PullLoop] = {}
        self._nursery: trio.Nursery
        self._wanted = trio.Event()
        self._begun = 0
        self._ended = 0
        self.round_ended = trio.Event()
        self.is_over = False
        self.assigned = trio.Event()
        #: Queues of each topic when it was first known whether the topic exists.
        self._known_at_start: dict[str, frozenset[MessageQueue]] = {}
        self._missing: set[str] = set()
        self._failures = EventLog(LOGGER, "rebalance failed, retrying topic=%s error=%s")

    def loop(self, queue: MessageQueue) -> PullLoop:
        """Return the pull loop of a queue.

        Raises:
            ClientError: the queue is not held.
        """
        if (loop := self.loops.get(queue)) is None:
            raise ClientError(f"{queue} is not assigned to this consumer")
        return loop

    def wake(self) -> None:
        """Start a round soon."""
        self._wanted.set()

    async def wait_next_round(self) -> None:
        """Start a round and return when it has ended, at once if the rebalancer has.

        A running round does not count: it may not have seen the caller's change.
        """
        awaited = self._begun + 1
        self.wake()
        while self._ended < awaited and not self.is_over:
            await self.round_ended.wait()

    async def run(self) -> None:
        """Run rounds now, periodically and when woken, and the pull loops; runs until cancelled.

        While the consumer is suspended, rounds only give up unsubscribed queues.
        """
        config = self._context.config
        try:
            async with trio.open_nursery() as self._nursery:
                while True:
                    self._wanted = trio.Event()
                    delay_s = self._instance.config.rebalance_interval_s
                    self._begun += 1
                    await self._give_up_unsubscribed()
                    complete = True
                    if not self._context.suspended and (complete := await self._round()) and self._subscriptions.topics:
                        self.assigned.set()
                    self._ended = self._begun
                    self.round_ended.set()
                    self.round_ended = trio.Event()
                    if not complete:
                        delay_s = min(delay_s, config.retry_interval_s)
                    if self._missing:
                        delay_s = min(delay_s, config.missing_topic_interval_s)
                    with trio.move_on_after(delay_s):
                        await self._wanted.wait()
        finally:
            self.is_over = True
            self.round_ended.set()
            self.assigned.set()

    def update_progress(self) -> None:
        """Record in memory the offsets up to which all queues are consumed."""
        for loop in (*self.loops.values(), *self._retiring.values()):
            loop.update_progress()

    @property
    def held(self) -> tuple[MessageQueue, ...]:
        """All queues not given up: those held, and those whose handler has not ended.

        Without those whose lock was lost: their progress belongs to another member.
        """
        locks = self._locks
        return (*self.loops, *(queue for queue in self._retiring if locks is not None and locks.holds(queue)))

    @property
    def is_out_of_date(self) -> bool:
        """Whether another member may own queues held here: none is given up while suspended."""
        return self._context.suspended and self._strategy is not None

    def lose(self, queues: Iterable[MessageQueue], *, is_cut_off: bool = False) -> None:
        """Stop consuming queues whose locks another member may have; they are taken again if they are this member's.

        Progress is not stored, which would set back that of a new owner, but kept if the connection is lost.
        """
        offsets = self._context.offsets
        for queue in queues:
            loop = self.loops.pop(queue, None)
            if loop is not None and not self.is_over:  # else only its handler ends
                self._retiring[queue] = loop
                self._nursery.start_soon(self._retire, loop, offsets.set_aside if is_cut_off else offsets.forget)
        self.wake()

    def broker_lost(self, broker_name: str) -> None:
        """Record that the connection to a broker has ended: other members may take over the queues held there."""
        self._membership.broker_lost(broker_name)
        if self._locks is not None:
            self.lose(self._locks.forget_broker(broker_name), is_cut_off=True)
        elif self._chosen is None:
            for queue, loop in self.loops.items():
                if queue.broker_name == broker_name:
                    loop.update_progress()
                    self._context.offsets.doubt(queue)

    def revive(self, queue: MessageQueue) -> None:
        """Resume a queue whose lock had ended and was renewed."""
        if (loop := self.loops.get(queue)) is not None:
            self._context.service.submit(loop.process_queue, [])

    def pull_anew(self, topic: str | None = None) -> None:
        """Restart the pulls of a topic, or all pulls, because their parameters have changed."""
        for queue, loop in self.loops.items():
            if topic in (None, queue.topic):
                loop.pull_anew()

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue from these offsets; queues that are not held are ignored."""
        for queue, queue_offset in offsets.items():
            if (loop := self.loops.get(queue)) is not None:
                loop.reset(type(loop.next_offset)(queue_offset))

    async def _give_up_unsubscribed(self) -> None:
        await trio.lowlevel.checkpoint()
        for topic in self._known_at_start.keys() - set(self._subscriptions.topics):
            del self._known_at_start[topic]
            self._missing.discard(topic)
            self._failures.ended(key=topic)
            self._membership.forget(topic)
        if gone := [queue for queue in self.loops if queue.topic not in self._subscriptions]:
            await self._give_up(gone)

    async def _round(self) -> bool:
        """Rebalance each topic; return whether that worked for all."""
        self.rounds += 1
        complete = True
        # Most rounds are caused by a new member, which is about to ask for the stored offsets.
        with trio.move_on_after(_EARLY_COMMIT_LIMIT_S):
            self.update_progress()
            await self._context.offsets.persist(tuple(self.loops), changed_only=True)
        for topic in self._subscriptions.topics:
            if topic not in self._subscriptions:  # removed meanwhile
                continue
            try:
                complete &= await self._rebalance(topic)
            except REMOTE_ERRORS as exc:  # one topic's failure does not stop the others
                complete = False
                log_retry(self._failures, topic, exc)
            else:
                self._failures.ended(key=topic)
        return complete

    async def _rebalance(self, topic: str) -> bool:
        subscription = self._subscriptions[topic]
        queues = await self._subscribe_queues(topic)
        if not queues:  # unknown, or not readable now
            return True
        is_alone = self._strategy is None or self._chosen is not None
        members, missing = ([self._instance.client_id], False) if is_alone else await self._members(topic)
        try:
            if self._chosen is not None:
                mine = self._chosen.get(topic, frozenset())
            else:
                mine = allocate(self._strategy or allocate_averagely, queues, members, self._instance.client_id)
        except Exception:  # boundary: the strategy may be the user's
            LOGGER.exception("allocation strategy failed, nothing changes topic=%s", topic)
            return True
        held = {queue for queue in self.loops if queue.topic == topic}
        config = self._context.config
        expiry_s = max(config.pull_expiry_s, 2 * config.pull_timeout_s)  # a broker may hold a pull for minutes
        oldest = trio.current_time() - expiry_s
        stalled = {queue for queue in held if self.loops[queue].process_queue.last_pulled_at < oldest}
        added, removed = mine - (held - stalled), held - mine | stalled
        if removed:
            await self._give_up(removed)
        taken = await self._take(subscription, added)
        if removed or taken:
            LOGGER.info(
                "rebalanced topic=%s members=%d queues=%d mine=%d taken=%d given_up=%d",
                topic,
                len(members),
                len(queues),
                len(mine),
                taken,
                len(removed),
            )
            self._context.share_limits(len(self.loops))
            # Brokers keep the newest subscription of all members; pulls need not wait for the heartbeat,
            # because they name the version of the first heartbeat.
            self._subscriptions.renew(topic)
            self._context.announce()
        return taken == len(added) and self._instance.client_id in members and not missing

    async def _subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic; if it has none, request its route."""
        instance = self._instance
        queues = instance.routes.known_subscribe_queues(topic)
        if not queues:
            if await instance.routes.find(topic, refresh=True) is None and topic not in self._missing:
                self._missing.add(topic)
                if topic != self._subscriptions.retry_topic:
                    LOGGER.warning(_MISSING, topic, await instance.routes.similar_topics(topic))
            queues = instance.routes.known_subscribe_queues(topic)
        self._known_at_start.setdefault(topic, frozenset(queues))
        if queues:
            self._missing.discard(topic)
        return queues

    async def _members(self, topic: str) -> tuple[list[str], bool]:
        """Return the group's members; if the broker does not know this one, send a heartbeat and ask again.

        Also return whether some are only expected to return.
        """
        requests = self._context.requests
        try:
            listed = await requests.members(topic)
        except REMOTE_ERRORS:
            listed = None
        if listed is None or self._instance.client_id not in listed.client_ids:
            await self._instance.groups.beat()
            listed = await requests.members(topic)
        missing = self._membership.missing(topic, listed.broker_name, listed.client_ids, trio.current_time())
        return [*listed.client_ids, *missing], bool(missing)

    async def _take(self, subscription: Subscription, added: Collection[MessageQueue]) -> int:
        """Start pulling new queues; return how many could be started.

        An orderly consumer locks them first: the stored offset is final only once no other member can consume there.
        """
        locks: Mapping[MessageQueue, QueueLock] = {}
        if self._locks is not None:
            locks = await self._locks.acquire([queue for queue in added if queue not in self._retiring])
            added = locks.keys()
        if not added:
            return 0
        is_same_topic = subscription.topic not in self._context.gone_topics
        known_at_start = self._known_at_start[subscription.topic] if is_same_topic else ()
        first_offsets = await self._first_offsets.find(added, known_at_start)
        counters = self.counters.setdefault(subscription.topic, TopicCounters())
        taken = 0
        for queue, first_offset in first_offsets.items():
            lock = locks.get(queue, NO_LOCK)
            if lock.ends <= trio.current_time():  # lost meanwhile
                continue
            taken += 1
            process_queue = ProcessQueue(queue, counters, trio.current_time(), lock)
            loop = self.loops[queue] = PullLoop(self._context, subscription, process_queue, first_offset)
            self._nursery.start_soon(loop.run)
        if self._locks is not None and len(first_offsets) < len(locks):  # so that other members need not wait for them
            await self._locks.release(locks.keys() - first_offsets.keys())
        return taken

    async def _give_up(self, queues: Iterable[MessageQueue]) -> None:
        """Stop queues; their progress is stored before this returns, for the new owner."""
        loops = [self.loops.pop(queue) for queue in queues]
        if self._locks is not None:
            for loop in loops:
                self._retiring[loop.queue] = loop
                self._nursery.start_soon(self._retire, loop, self._context.offsets.forget)
            return
        for loop in loops:
            loop.give_up()
        await self._store_and_forget(loops)

    async def _retire(self, loop: PullLoop, forget: Callable[[MessageQueue], None]) -> None:
        """Give up an orderly queue: the handler ends first, then progress is stored, then the lock is released.

        So the next owner begins after the messages handled here, and never during that.  Java gives a handler
        1 s and else tries again with the next rebalance, and then keeps the lock for 20 s more if there are cached
        messages, because its worker may not have noticed yet; here no worker begins anything in a closing queue.
        """
        assert self._locks is not None
        await loop.retire()
        if self._locks.holds(loop.queue):
            await self._store_and_forget([loop])
            await self._locks.release([loop.queue])
        else:
            forget(loop.queue)
        del self._retiring[loop.queue]
        self.wake()

    async def _store_and_forget(self, loops: Collection[PullLoop]) -> None:
        offsets = self._context.offsets
        with trio.move_on_after(_GIVE_UP_LIMIT_S, shield=True):
            await offsets.persist_now([loop.queue for loop in loops])
        for loop in loops:
            offsets.forget(loop.queue)
