"""The reader of a stream: on the driver it chooses the end of the next micro-batch and splits it into partitions.

An idle query asks for the latest offset every 10 ms.  Brokers are asked once per ``offsetPollMs``; in between the
answer comes from memory, after a pause of some milliseconds.

Source: spark.md 1.3, 3.2 to 3.8.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from triomq.client.sync import ClientInstance, PullConsumer
from triomq.protocol.errors import ConfigError, TriomqError
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import MessageQueue
from triomq.spark.connections import client_config, show_warnings
from triomq.spark.options.options import Options
from triomq.spark.options.values import LATEST
from triomq.spark.reading.discovery import Bounds, Discovery, QueueBounds, selected_offsets
from triomq.spark.reading.loss import MissingQueues, available, check_begin, report_loss
from triomq.spark.reading.planning import Ends, StreamOffset, next_offset, plan_partitions, ranges_between, spread

LOGGER: Final = logging.getLogger("triomq.spark.reading.driver")

#: A first message that was stored this long after the checkpoint is not the one that the checkpoint counted, for
#: checkpoints that do not have its time.
_RECREATED_MARGIN_MS: Final = 60_000
#: Without a trigger Spark asks again 10 ms after an answer, and each question costs the driver more than it costs us.
#: So an idle query is slowed down.  One with a trigger, or with another source that has news, asks later than this.
_BUSY_POLL_S: Final = 0.030
_REST_S: Final = 0.015
#: A queue may be missing from the route for this many discoveries.
_GRACE_DISCOVERIES: Final = 3
_SHOWN_TOPICS: Final = 5

Json = dict[str, Any]


def read_partition(options: Options, columns: Sequence[str], partition: InputPartition) -> Iterator[Any]:
    """Yield the Arrow batches of a partition that :func:`plan_partitions` made; runs in a worker."""
    if partition.value is None:
        return iter(())  # Spark's partition of an empty plan
    show_warnings()
    from triomq.spark.reading.partition_reader import read_ranges  # needs pyarrow, which the planner does not

    return read_ranges(options, columns, partition.value)


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches; Spark keeps it in a separate process while the query runs.

    Calls block; Spark makes one at a time, and the first one connects.
    """

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._clock, self._wall_ns, self._sleep = time.monotonic, time.time_ns, time.sleep
        self._stack = ExitStack()
        self._queues: tuple[MessageQueue, ...] = ()
        self._discovered_at: float | None = None
        self._bounds = Bounds({}, {}, set())
        self._polled_at: float | None = None
        self._target: Mapping[MessageQueue, int] | None = None
        self._initial: Json | None = None
        self._idle_at: Json | None = None  # the bounds have nothing after this offset
        self._idle_answer_at: float | None = None
        self._committed: dict[MessageQueue, int] = {}
        self._to_verify: set[MessageQueue] | None = None  # None: all queues
        self._firsts: dict[MessageQueue, int] = {}  # store times of first messages
        self._reported: set[tuple[MessageQueue, int]] = set()
        self._missing = MissingQueues(_GRACE_DISCOVERIES * options["discoveryIntervalMs"] / 1000)
        self._deleted: set[MessageQueue] = set()  # known to be: a queue of this name is a new one
        self._unanswered = EventLog(LOGGER, "brokers do not answer brokers=%s error=%s", logging.WARNING)

    def initialOffset(self) -> Json:  # noqa: N802  # Spark's names
        """Return where a new query starts; every call returns the same."""
        if self._initial is None:
            discovery = self._discovery
            self._discover(may_be_gone=False)
            bounds = discovery.bounds(self._queues, discovery.retry(), complete=True).queues
            begins = selected_offsets(self._options, "starting", bounds, discovery.first_at, LATEST)
            self._initial = StreamOffset(begins, {}, self._wall_ns() // 1_000_000, is_initial=True).to_json()
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Make this run end at the current ends of the queues."""
        self._discover()
        bounds = self._discovery.bounds(self._queues, self._discovery.retry(), complete=True)
        self._target = {queue: found.high for queue, found in bounds.queues.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        most = self._options["maxOffsetsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Return the end of the next micro-batch; ``start`` itself if nothing is new.

        Args:
            start: end of the previous micro-batch, which is durable.
            limit: ``ReadMaxRows`` limits the number of offsets.

        Raises:
            ConfigError: the checkpoint is one of other topics.
            DataLossError: offsets to read no longer exist, and ``failOnDataLoss`` is set.
            NoRouteError: a topic that the previous micro-batch did not have does not exist.
            RequestTimeoutError: no broker answered within ``planTimeoutMs``.
        """
        is_idle = start == self._idle_at
        if is_idle:
            self._rest()
        now = self._clock()
        polled = self._refresh(now)
        if not polled and is_idle:
            self._idle_answer_at = now
            return start
        offset = StreamOffset.from_json(start)
        self._store_progress(offset)
        self._check_options(offset)
        self._report_missing(offset, now)
        moved = self._moved(offset)
        targets = self._targets(offset, moved, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        found = next_offset(offset, targets, moved, self._wall_ns() // 1_000_000, self._firsts)
        if found is offset:
            self._idle_at, self._idle_answer_at = start, self._clock()
            return start
        self._idle_at = None
        self._deleted.difference_update(moved)
        return found.to_json()

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """Return the ends of all queues for progress reports."""
        ends = {queue: found.high for queue, found in self._bounds.queues.items()}
        return StreamOffset(ends).to_json() if ends else None

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Split a micro-batch, which may be a repetition, into partitions."""
        ranges = ranges_between(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return plan_partitions(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches; runs in a worker."""
        return read_partition(self._options, self._columns, partition)

    def commit(self, end: Json) -> None:
        """Note that a micro-batch is durable."""
        self._store_progress(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Close the connections; Spark does not always call it."""
        self._stack.close()

    @cached_property
    def _discovery(self) -> Discovery:
        """Discovery with a separate client: an error would close one that tasks share."""
        show_warnings()
        instance = self._stack.enter_context(ClientInstance(self._options["nameServer"], client_config(self._options)))
        consumer = self._stack.enter_context(PullConsumer(self._options["readGroup"], instance=instance))
        return Discovery(self._options, instance, consumer)

    @cached_property
    def _group(self) -> PullConsumer:
        """Stores the offsets of ``group.id``."""
        return self._stack.enter_context(PullConsumer(self._options["group.id"], instance=self._discovery.instance))

    def _rest(self) -> None:
        """Pause if Spark asks again immediately, but not past the next poll of the brokers."""
        if self._target is not None or self._polled_at is None or self._idle_answer_at is None:
            return
        now = self._clock()
        until_poll_s = self._polled_at + self._options["offsetPollMs"] / 1000 - now
        if until_poll_s > 0 and now - self._idle_answer_at < _BUSY_POLL_S:
            self._sleep(min(_REST_S, until_poll_s))

    def _refresh(self, now: float) -> bool:
        """Poll the brokers if it is time; return whether they were polled."""
        if self._polled_at is not None and (now - self._polled_at) * 1000 < self._options["offsetPollMs"]:
            return False
        interval_s = self._options["discoveryIntervalMs"] / 1000
        if self._discovered_at is None:
            self._discover()
        elif now - self._discovered_at >= interval_s:
            try:
                self._discover(retry_s=0.0)
            except TriomqError as exc:  # the known queues can be read without a name server
                LOGGER.warning("queues not looked up error=%s", exc)
                self._discovered_at = self._clock()
        self._bounds = self._discovery.bounds(self._queues, self._discovery.retry())
        self._polled_at = self._clock()
        self._missing.last_ends.update({queue: bounds.high for queue, bounds in self._bounds.queues.items()})
        if errors := self._bounds.errors:
            self._unanswered.occurred(", ".join(sorted(errors)), next(iter(errors.values())))
        if self._bounds.gone:
            self._discovered_at = now - interval_s  # look again at the next poll
        return True

    def _discover(self, *, may_be_gone: bool = True, retry_s: float | None = None) -> None:
        discovery = self._discovery
        found = discovery.queues(discovery.retry(retry_s), may_be_gone=may_be_gone)
        if found != self._queues and self._discovered_at is not None and self._to_verify is not None:
            self._to_verify.update(found)  # a topic may have been made again
        if self._discovered_at is None and discovery.unmatched:
            LOGGER.warning("no topic to read yet: %s", discovery.unmatched)
        self._queues = found
        self._discovered_at = self._clock()

    def _check_options(self, offset: StreamOffset) -> None:
        """Raise an error if topics do not exist that the checkpoint does not have, or if it is one of other topics."""
        discovery = self._discovery
        if self._to_verify is None and offset.ends and not any(map(discovery.is_wanted, offset.ends)):
            topics = ", ".join(sorted({queue.topic for queue in offset.ends})[:_SHOWN_TOPICS])
            raise ConfigError(
                f"the checkpoint has the offsets of other topics than the options select: {topics}; "
                "give each query its own checkpointLocation"
            )
        for name, error in discovery.missing.items():
            if name not in offset.ends and all(queue.topic != name for queue in offset.ends):
                raise error

    def _moved(self, offset: StreamOffset) -> dict[MessageQueue, int]:
        """Return the start of queues that are new or whose offset no longer exists."""
        moved = {}
        again = self._recreated(offset)
        assert self._to_verify is not None
        for queue, bounds in self._bounds.queues.items():
            if self._target is not None and queue not in self._target:
                continue  # found during this run: the next one reads it
            begin = offset.ends.get(queue)
            if begin is None:
                moved[queue] = bounds.low
                continue
            is_known = queue in self._deleted  # and reported
            checked, lost = check_begin(begin, bounds.low, bounds.high, recreated=is_known or queue in again)
            if checked != begin or is_known:
                moved[queue] = checked
                if lost is None and queue not in again:  # the time of the first message is that of the old topic
                    self._firsts[queue] = 0
                    self._to_verify.add(queue)
                if not is_known:
                    self._report(queue, begin, lost, bounds)
        return moved

    def _report_missing(self, offset: StreamOffset, now: float) -> None:
        """Report queues that are missing from the route, and queues that the options no longer select."""
        missing = {queue: offset.ends[queue] for queue in offset.ends.keys() - (set(self._queues) - self._bounds.gone)}
        overdue = self._missing.overdue(missing, self._discovery.consumer, now, at_once=self._target is not None)
        for queue, lost, is_deleted in overdue:
            begin = missing[queue]
            if not self._discovery.is_wanted(queue):
                LOGGER.warning("queue no longer read: the options do not select it queue=%s offset=%d", queue, begin)
            elif lost is None and not is_deleted:
                LOGGER.warning("queue no longer in the route queue=%s offset=%d lost=unknown", queue, begin)
            elif lost != 0:
                why = "the topic was deleted" if is_deleted else "the queue is no longer in the route"
                report_loss(queue, begin, lost, why, fail=self._options["failOnDataLoss"])
            if is_deleted:
                self._deleted.add(queue)

    def _report(self, queue: MessageQueue, begin: int, lost: int | None, bounds: QueueBounds) -> None:
        fail = self._options["failOnDataLoss"]
        if not fail and (queue, begin) in self._reported:
            return
        self._reported.add((queue, begin))
        reason = available(bounds.low, bounds.high)
        if lost is None:
            reason = f"the topic was recreated; the broker has {bounds.low} to {bounds.high}"
        report_loss(queue, begin, lost, reason, fail=fail)

    def _recreated(self, offset: StreamOffset) -> set[MessageQueue]:
        """Return queues whose topic was recreated and has already grown past our offset.

        RocketMQ topics have no id.  But if the queue has its first message, that must be the one of the checkpoint; if
        the checkpoint does not know it, it must not have been stored long after we had read the offset.
        """
        if self._to_verify is None:
            self._to_verify = set(self._queues)
        found, later = set(), self._to_verify - self._bounds.queues.keys()
        for queue in sorted(self._to_verify - later):
            bounds = self._bounds.queues[queue]
            if not bounds.high:
                later.add(queue)
            elif (
                not bounds.low and self._is_other_first(queue, offset) and 0 < offset.ends.get(queue, 0) <= bounds.high
            ):
                found.add(queue)
        self._to_verify = found | later
        return found

    def _is_other_first(self, queue: MessageQueue, offset: StreamOffset) -> bool:
        """Look the store time of the first message up, and compare it with the checkpoint."""
        try:
            first_ms = self._discovery.consumer.earliest_store_time(queue)
        except TriomqError as exc:
            LOGGER.warning("first message not looked up queue=%s error=%s", queue, exc)
            return False
        if first_ms is None:
            return False
        self._firsts[queue] = int(first_ms)
        known = offset.firsts.get(queue)
        return first_ms != known if known else first_ms > offset.taken_at_ms + _RECREATED_MARGIN_MS

    def _targets(self, offset: StreamOffset, moved: Ends, limit: int | None) -> Ends:
        """Return the end of the next micro-batch in each queue."""
        begins, targets = {}, {}
        for queue, bounds in self._bounds.queues.items():
            if self._target is not None and queue not in self._target:
                continue
            high = bounds.high if self._target is None else min(bounds.high, self._target[queue])
            begins[queue] = begin = moved.get(queue, offset.ends.get(queue, bounds.low))
            targets[queue] = max(begin, high)
        backlogs = {queue: target - begins[queue] for queue, target in targets.items()}
        total = sum(backlogs.values())
        if limit is not None and total > limit:
            shares = spread(backlogs, limit)
            targets = {queue: begin + shares.get(queue, 0) for queue, begin in begins.items()}
        return targets

    def _store_progress(self, durable: StreamOffset) -> None:
        """Store the group's offsets for tools that show its lag; reading does not depend on them."""
        if self._options["group.id"] is None or durable.is_initial:
            return
        changed = {queue: end for queue, end in durable.ends.items() if self._committed.get(queue) != end}
        if not changed:
            return
        try:
            self._group.commit_oneway(changed)
        except TriomqError as exc:
            LOGGER.warning("offsets of the group not stored error=%s", exc)
        else:
            self._committed.update(changed)
