"""The metrics of a broker for Prometheus, and its health.

Rules: nothing that was deleted is shown; the loop is not held up: tables are written a row at a time,
and worker threads read the disk.

Source: ConsumerLagCalculator.java, BrokerMetricsManager.java of RocketMQ 5.5.0.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

import trio

from triomq.broker.network.connection import Connection
from triomq.broker.server import Broker
from triomq.broker.services.monitor import Table, put_server
from triomq.broker.statistics.exposition import Exposition, Row, label
from triomq.protocol.bodies.client import ConsumeType, MessageModel
from triomq.protocol.codes import LanguageCode, Permission
from triomq.protocol.errors import StoreError
from triomq.protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC, dead_letter_topic, is_system_group, topic_kind
from triomq.storage.config import Durability
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.unit_search import physical_offset_of
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.reading.cold_read import PAUSE, Work

#: A flush that takes longer will not end.
_HUNG_S: Final = 30.0
#: After this time no more messages are read for the ages of lags.
_READING_S: Final = 1.0
_STORAGE: Final = label("storage_type", "local") + label("storage_medium", "disk")
_V4_0_0: Final = 213
_BOOLS: Final = ("false", "true")
_IS_SYSTEM: Final = tuple(f',is_system="{each}"' for each in _BOOLS)
_MODES: Final = {ConsumeType.CONSUME_ACTIVELY: "pull", ConsumeType.CONSUME_PASSIVELY: "push"}
_Starts: TypeAlias = list[tuple[ConsumeQueue, int]]
_LAG: Final = (
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_consumer_inflight_messages",
    "rocketmq_consumer_ready_messages",
    "rocketmq_consumer_queueing_latency_milliseconds",
)
_LANGUAGES: Final = {code.value: code.name.lower() for code in LanguageCode}


class BrokerMetrics:
    """The metrics and the health of one broker."""

    def __init__(self, broker: Broker) -> None:
        """Take the broker."""
        self._broker = broker

    def failure(self) -> str:
        """Return the reason to start the broker again; "" while loop and disk work."""
        failure = self._broker.store.refused.failure
        waiting_s = self._broker.statistics.flushes.waiting_s(trio.current_time())
        if failure is not None:
            return f"the disk has failed: {failure}"
        return f"a flush has not ended for {waiting_s:.0f} s" if waiting_s > _HUNG_S else ""

    def not_ready(self) -> str:
        """Return the reason why the broker does not serve now; "" while it does."""
        broker = self._broker
        if not broker.is_serving or broker.stopping.is_set():
            return "the broker stops" if broker.is_serving else "the broker starts"
        return str(broker.store.refused.error() or "") or self.failure() or broker.copies.problem()

    async def metrics(self) -> bytes:
        """Return all metrics, as text."""
        return await self._broker.worker.run(self._write())

    def _write(self) -> Work[bytes]:
        config = self._broker.config
        names = config.cluster_name, config.broker_name
        text = Exposition(cluster=names[0], node_type="broker", node_id=names[1], broker_id=str(config.broker_id))
        labels = _Labels()
        for topic in list(self._broker.topics.configs):
            labels.topics[topic] = label("topic", topic) + _IS_SYSTEM[topic_kind(topic, names) == "system"]
            yield PAUSE
        groups = self._broker.groups
        for group in [*groups.settings.configs, *(live.name for live in groups.consumers)]:
            labels.groups[group] = label("consumer_group", group)
            yield PAUSE
        yield from self._write_messages(text, labels)
        yield from self._write_lag(text, labels)
        yield from self._write_members(text)
        yield from self._write_store(text)
        self._write_state(text)
        self._write_copies(text)
        yield PAUSE
        return text.encode()

    # --- topics and groups ------------------------------------------------------------------------------

    def _write_messages(self, text: Exposition, labels: "_Labels") -> Work[None]:
        statistics = self._broker.statistics
        for name, counts in (
            ("rocketmq_messages_in_total", statistics.put_by_topic),
            ("rocketmq_throughput_in_total", statistics.put_bytes_by_topic),
        ):
            yield from text.add(name, ((labels.topics.get(topic), count) for topic, count in list(counts.items())))
        given_up = (
            (labels.group(group) if topic in labels.topics else None, statistics.put_by_topic.get(topic, 0))
            for group in list(self._broker.groups.settings.configs)
            if (topic := dead_letter_topic(group))
        )
        yield from text.add("rocketmq_send_to_dlq_messages_total", given_up)
        for name, of_pairs in (
            ("rocketmq_messages_out_total", statistics.get_by_group),
            ("rocketmq_throughput_out_total", statistics.get_bytes_by_group),
            ("triomq_sent_back_messages_total", statistics.sent_back_by_group),
        ):
            rows = ((labels.pair(topic, group), count) for (topic, group), count in list(of_pairs.items()))
            yield from text.add(name, rows)

    def _write_lag(self, text: Exposition, labels: "_Labels") -> Work[None]:
        reads_until = trio.current_time() + _READING_S
        rows: dict[str, list[Row]] = {name: [] for name in _LAG}
        for found in self._consumed():
            yield PAUSE
            if found is None or (pair := labels.pair(*found)) is None:
                continue
            topic, group = found
            pair += f',is_retry="{_BOOLS[topic.startswith(RETRY_PREFIX)]}"'
            unconsumed, unpulled = self._behind(group, topic)
            lag, ready = (sum(queue.max_offset - at for queue, at in starts) for starts in (unconsumed, unpulled))
            age = waited = yield from self._age(unconsumed, reads_until)
            if lag != ready:
                waited = yield from self._age(unpulled, reads_until)
            for name, value in zip(_LAG, (lag, age, lag - ready, ready, waited), strict=True):
                if value is not None:
                    rows[name].append((pair, value))
        for name, found_rows in rows.items():
            yield from text.add(name, found_rows)

    def _consumed(self) -> Iterator[tuple[str, str] | None]:
        """Yield each topic with each group that has stored offsets in it or subscribes to it now; ``None`` is a pause.

        A group that has yet to consume its first message counts; one that subscribes to the topic no more does not.
        """
        groups = self._broker.groups
        for topic, group in groups.offsets.pairs():
            live = groups.consumers.get(group)
            is_wanted = live is None or not live.subscriptions or topic in live.subscriptions
            yield (topic, group) if is_wanted else None
        for live in list(groups.consumers):
            if live.message_model is MessageModel.CLUSTERING:
                for topic in list(live.subscriptions):
                    yield None if groups.offsets.has(live.name, topic) else (topic, live.name)

    def _behind(self, group: str, topic: str) -> tuple[_Starts, _Starts]:
        """Return where in each queue the messages begin that a group has yet to consume, and has yet to pull.

        As in RocketMQ, the committed offset counts as pulled until the group pulls; a restart forgets pulls.
        """
        query, pulled = self._broker.groups.offsets.query, self._broker.statistics.pulled.get((topic, group), {})
        unconsumed: _Starts = []
        unpulled: _Starts = []
        for queue in self._broker.store.queues.of_topic(topic):
            start = max(query(group, topic, queue.queue_id) or 0, queue.min_offset)
            for starts, at in ((unconsumed, start), (unpulled, max(start, pulled.get(queue.queue_id, 0)))):
                if at < queue.max_offset:
                    starts.append((queue, at))
        return unconsumed, unpulled

    def _age(self, starts: _Starts, reads_until: float) -> Work[int | None]:
        """Return the age of the oldest message at these places, 0 without any, in ms; ``None``: it cannot be read."""
        if starts and trio.current_time() >= reads_until:
            return None
        store, places = self._broker.store, []
        try:
            for queue, start in starts:
                yield from store.cold_reads.load_units(queue, start)
                places.append(physical_offset_of(queue, start))
            if not places:
                return 0
            yield from store.cold_reads.load_records((min(places),))
            first_ms = store.commit_log.store_time(min(places))
        except StoreError:  # consumers get this error when they pull
            return None
        return max(store.now_ms() - first_ms, 0) if first_ms >= 0 else None

    def _write_members(self, text: Exposition) -> Work[None]:
        consumers: Counter[str] = Counter()
        producers: Counter[str] = Counter()
        missing: Counter[str] = Counter()
        groups, live = self._broker.groups, list(self._broker.groups.consumers)
        for group in live:
            labels = label("consumer_group", group.name) + _IS_SYSTEM[is_system_group(group.name)]
            labels += label("consume_mode", _MODES.get(group.consume_type, "pop"))
            for connection in list(group.members):
                consumers[labels + _client(connection)] += 1
                yield PAUSE
            for topic in list(group.subscriptions):
                missing[group.name] += not (topic.startswith(RETRY_PREFIX) or self._broker.topics.get(topic))
                yield PAUSE
        for members in list(groups.producers.groups.values()):
            for connection in list(members):
                producers[_client(connection)] += 1
                yield PAUSE
        yield from text.add("rocketmq_consumer_connections", consumers.items())
        yield from text.add("rocketmq_producer_connections", producers.items())
        for name, counts in (
            ("triomq_stalled_queues", self._broker.housekeeping.stalls.by_group()),
            ("triomq_duplicate_client_ids", ((group.name, len(group.duplicate_ids)) for group in live)),
            ("triomq_different_subscriptions", ((group.name, len(group.differences)) for group in live)),
            ("triomq_missing_topics", missing.items()),
        ):
            yield from text.add(name, ((label("consumer_group", group), count) for group, count in counts if count))

    # --- the store --------------------------------------------------------------------------------------

    def _write_store(self, text: Exposition) -> Work[None]:
        store = self._broker.store
        log, config = store.commit_log, store.config
        behind = log.max_offset - log.flushed_offset
        text.put("rocketmq_storage_flush_behind_bytes", behind, _STORAGE)
        hidden = behind if config.durability is Durability.SYNC else 0
        text.put("rocketmq_storage_dispatch_behind_bytes", hidden, _STORAGE)
        text.put("triomq_log_bytes", log.max_offset - log.min_offset)
        text.put("triomq_index_behind_bytes", store.index.lag_bytes)
        text.put("triomq_damaged_records_total", log.damaged_records)
        text.put("triomq_store_refuses", int(store.refused.error() is not None))
        text.put("triomq_disk_full_ratio", config.disk_full_ratio / 100)
        try:
            with translated("measure the disk of", config.root):
                disk = FileSystem().space(config.root)
            text.put("rocketmq_storage_size_bytes", disk.used_bytes, _STORAGE)
            text.put("triomq_disk_used_ratio", disk.used_percent / 100)
            text.put("triomq_disk_available_bytes", disk.available_bytes)
            yield from store.cold_reads.load_records((log.min_offset,))
            oldest_ms = log.store_time(log.min_offset)
        except StoreError:  # as above; the broker logs it
            oldest_ms = -1
        if oldest_ms >= 0:
            age_ms = max(store.now_ms() - oldest_ms, 0)
            text.put("rocketmq_storage_message_reserve_time_milliseconds", age_ms, _STORAGE)

    # --- waiting messages and limits --------------------------------------------------------------------

    def _write_state(self, text: Exposition) -> None:
        broker, statistics = self._broker, self._broker.statistics
        config, groups = broker.config, broker.groups
        text.put("rocketmq_half_messages", len(broker.transactions.undecided))
        text.put("rocketmq_commit_messages_total", statistics.committed)
        text.put("rocketmq_rollback_messages_total", statistics.rolled_back)
        text.put("rocketmq_timing_messages", len(broker.delayed.timer), _STORAGE)
        end_of, delivered = broker.store.reader.max_offset_in_queue, broker.delayed.schedule.offsets.get
        levels = range(1, len(broker.store.config.delay_levels.delays_ms) + 1)
        waiting = ((label("level", str(n)), max(end_of(SCHEDULE_TOPIC, n - 1) - delivered(n), 0)) for n in levels)
        text.put_all("triomq_delayed_messages", waiting)
        text.put_histogram("triomq_send_seconds", statistics.sends)
        text.put_histogram("triomq_pull_seconds", statistics.pulls)
        text.put_histogram("triomq_flush_seconds", statistics.flushes)
        text.put("triomq_flush_waiting_seconds", statistics.flushes.waiting_s(trio.current_time()))
        topics, settings = len(broker.topics.configs), len(groups.settings.configs)
        text.put("rocketmq_topic_number", topics)
        text.put("rocketmq_consumer_group_number", settings)
        text.put("rocketmq_broker_permission", int(Permission.READ | Permission.WRITE))
        pool = broker.store.queues.pool
        tables: tuple[Table, ...] = (
            ("topics", topics, config.max_topics),
            ("groups", settings, config.max_groups),
            ("group_topics", len(groups.offsets), config.max_group_topics),
            ("queues", len(broker.store.queues), None),
            ("mapped_files", len(pool), pool.limit),
            ("queue_locks", len(groups.locks), None),
            ("held_pulls", broker.pulls.hold.held, None),  # these two are limited by the memory budget
            ("paged_reads", broker.worker.waiting, None),
            *broker.routes.sizes(),
        )
        put_server(text, broker.context, config.exposure, tables)

    def _write_copies(self, text: Exposition) -> None:
        copies = self._broker.copies
        text.put("triomq_role", 1, label("role", self._broker.config.role))
        text.put("triomq_tails_aside", copies.tails_aside)
        if copies.slave is not None:
            text.put("triomq_in_touch", int(not copies.problem()))
            text.put("triomq_received_bytes_total", copies.slave.taken_bytes)
        if copies.master is not None:
            slaves = [(label("slave", each.peer), each) for each in copies.master.slaves]
            text.put("triomq_slaves", len(slaves))
            text.put_all("triomq_slave_lag_bytes", ((labels, each.lag_bytes) for labels, each in slaves))
            lags = ((labels, each.lag_s) for labels, each in slaves if each.lag_s is not None)
            text.put_all("triomq_slave_lag_seconds", lags)
            text.put("triomq_replicated_bytes_total", copies.master.sent_bytes)


class _Labels:
    """The labels of topics and groups during one scrape, so that each is made once."""

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}
        self.groups: dict[str, str] = {}

    def group(self, group: str) -> str | None:
        return self.groups[group] + _IS_SYSTEM[is_system_group(group)] if group in self.groups else None

    def pair(self, topic: str, group: str) -> str | None:
        """Return the labels of a topic and a group; ``None`` if one of them does not exist."""
        if topic not in self.topics or group not in self.groups:
            return None
        of_topic = self.topics[topic]
        if is_system_group(group):
            of_topic = of_topic.replace(_IS_SYSTEM[False], _IS_SYSTEM[True])
        return of_topic + self.groups[group]


def _client(connection: Connection) -> str:
    language = _LANGUAGES.get(connection.language, "other")
    release, is_snapshot = divmod(connection.version - _V4_0_0, 2)
    version = f"v{4 + release // 100}_{release // 10 % 10}_{release % 10}"  # Source: wire.md 2.5
    if release < 0 or is_snapshot:
        version = str(connection.version)
    return f',language="{language}",version="{version}",protocol_type="remoting"'
