"""Metrics as text for Prometheus.

Rules: the text is made on request from the state of the broker, without counters for it alone, and a row at a time, so
that requests are served in between; a metric has the name, labels and unit that it has in RocketMQ 5.
``prometheus_client`` reads the text in tests and does not make it: it takes 20 us for each row, this 1 us.

Source: Prometheus text format 0.0.4; BrokerMetricsManager.java, DefaultStoreMetricsManager.java of RocketMQ 5.5.0.
"""

import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import triomq
from triomq.broker.statistics.timing import Histogram

Row: TypeAlias = tuple[str | None, float]
"""Labels, as :func:`label` returns them, one after the other, and the value; labels ``None``: leave the row out."""


class Metric(NamedTuple):
    """Kind, meaning and labels of a metric; the labels that all metrics of a server have are not listed."""

    kind: str
    text: str
    labels: tuple[str, ...] = ()


def _counter(text: str, *labels: str) -> Metric:
    return Metric("counter", text, labels)


def _gauge(text: str, *labels: str) -> Metric:
    return Metric("gauge", text, labels)


def _histogram(text: str) -> Metric:
    return Metric("histogram", text)


_OUT: Final = ("topic", "consumer_group", "is_system")
_LAG: Final = (*_OUT, "is_retry")
_CLIENT: Final = ("language", "version", "protocol_type")
_STORAGE: Final = ("storage_type", "storage_medium")

METRICS: Final[Mapping[str, Metric]] = {
    "rocketmq_messages_in_total": _counter("messages stored", "topic", "is_system"),
    "rocketmq_throughput_in_total": _counter("bytes of the bodies of messages stored", "topic", "is_system"),
    "rocketmq_messages_out_total": _counter("messages sent to consumers", *_OUT),
    "rocketmq_throughput_out_total": _counter("bytes of the records of messages sent to consumers", *_OUT),
    "rocketmq_send_to_dlq_messages_total": _counter("messages that a group gave up", "consumer_group", "is_system"),
    "rocketmq_consumer_lag_messages": _gauge("messages of a topic that a group has not consumed", *_LAG),
    "rocketmq_consumer_lag_latency_milliseconds": _gauge(
        "age of the oldest message that the group has not consumed; 0: none", *_LAG
    ),
    "rocketmq_consumer_inflight_messages": _gauge("messages sent to consumers and not consumed yet", *_LAG),
    "rocketmq_consumer_ready_messages": _gauge("messages not sent to consumers yet", *_LAG),
    "rocketmq_consumer_queueing_latency_milliseconds": _gauge(
        "age of the oldest message not sent to consumers yet; 0: none", *_LAG
    ),
    "rocketmq_consumer_connections": _gauge(
        "connections of consumers", "consumer_group", "consume_mode", "is_system", *_CLIENT
    ),
    "rocketmq_producer_connections": _gauge("connections of producers", *_CLIENT),
    "rocketmq_commit_messages_total": _counter("transactions committed"),
    "rocketmq_rollback_messages_total": _counter("transactions rolled back"),
    "rocketmq_half_messages": _gauge("transactions without a decision"),
    "rocketmq_timing_messages": _gauge("messages that wait for their delivery time", *_STORAGE),
    "rocketmq_topic_number": _gauge("topics, those of the system included"),
    "rocketmq_consumer_group_number": _gauge("subscription groups, those of the system included"),
    "rocketmq_broker_permission": _gauge("2: may be written, 4: may be read, 6: both"),
    "rocketmq_storage_size_bytes": _gauge("used space of the disk of the store", *_STORAGE),
    "rocketmq_storage_flush_behind_bytes": _gauge("bytes of the commit log that are not on the disk yet", *_STORAGE),
    "rocketmq_storage_dispatch_behind_bytes": _gauge(
        "bytes of the commit log that consumers cannot read yet", *_STORAGE
    ),
    "rocketmq_storage_message_reserve_time_milliseconds": _gauge("age of the oldest message", *_STORAGE),
    "triomq_send_seconds": _histogram(
        "time from a send to its answer: for each batch that was read together (async), or for each send, the flush "
        "included (sync)"
    ),
    "triomq_pull_seconds": _histogram(
        "time from a pull, or from the arrival of the messages that it waits for, to its answer"
    ),
    "triomq_flush_seconds": _histogram("duration of a flush of commit log or consume queues"),
    "triomq_flush_waiting_seconds": _gauge("age of the flush that is running; 0: none"),
    "triomq_delayed_messages": _gauge("messages that wait for a delay level", "level"),
    "triomq_sent_back_messages_total": _counter("messages that consumers sent back", *_OUT),
    "triomq_stalled_queues": _gauge("queues where messages wait without progress; groups with any", "consumer_group"),
    "triomq_duplicate_client_ids": _gauge("client ids of several connections; groups with any", "consumer_group"),
    "triomq_different_subscriptions": _gauge(
        "topics to which members subscribe differently; groups with any", "consumer_group"
    ),
    "triomq_missing_topics": _gauge(
        "topics to which a group subscribes that the broker does not have; groups with any", "consumer_group"
    ),
    "triomq_table_size": _gauge("entries of a table", "table"),
    "triomq_table_limit": _gauge("limit of the entries", "table"),
    "triomq_memory_budget_bytes": _gauge("memory held for peers, and memory reserved for requests that wait", "use"),
    "triomq_memory_budget_limit_bytes": _gauge("limit of both uses together (--memory-budget)"),
    "triomq_disk_used_ratio": _gauge("used part of the disk of the store, 0 to 1"),
    "triomq_disk_full_ratio": _gauge("used part above which sends are rejected (--disk-full-ratio)"),
    "triomq_disk_available_bytes": _gauge("free space of the disk of the store"),
    "triomq_store_refuses": _gauge("1: no messages are stored, as the disk is full or has failed"),
    "triomq_log_bytes": _gauge("length of the commit log"),
    "triomq_damaged_records_total": _counter("damaged records that reads have skipped"),
    "triomq_index_behind_bytes": _gauge("bytes of the commit log that are not indexed yet"),
    "triomq_events_total": _counter("trouble with peers, by the event", "event"),
    "triomq_open_to_network": _gauge("1: other machines reach the server without an account (--insecure)"),
    "triomq_info": _gauge("1", "version"),
    "process_start_time_seconds": _gauge("when the server was started, seconds since 1970"),
    "process_cpu_seconds_total": _counter("processor time"),
    "process_resident_memory_bytes": _gauge("memory, mapped files included"),
    "process_max_fds": _gauge("limit of open files and connections"),
}

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_ENCODED_AT_ONCE: Final = 500  # rows
_STARTED: Final = time.time()
_PAGE_BYTES: Final = resource.getpagesize()


def label(name: str, value: str) -> str:
    """Return a label of a row."""
    return f',{name}="{value.translate(_ESCAPES)}"'


class Exposition:
    """Builds the text."""

    def __init__(self, **labels: str) -> None:
        """``labels`` are those of all rows; at least one."""
        self._labels = "".join(label(name, value) for name, value in labels.items())[1:]
        self._parts: list[str] = []
        self._encoded: list[bytes] = []

    def add(self, name: str, rows: Iterable[Row]) -> Iterator[tuple[()]]:
        """Add all rows of a metric; yields after each."""
        kind, text, _ = METRICS[name]
        self._parts.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
        start = f"{name}{{{self._labels}"
        for labels, value in rows:
            if labels is not None:
                self._parts.append(f"{start}{labels}}} {value}\n")
                if len(self._parts) >= _ENCODED_AT_ONCE:
                    self._encode()
            yield ()

    def put_all(self, name: str, rows: Iterable[Row]) -> None:
        """Add a metric that has a few rows."""
        for _ in self.add(name, rows):
            pass

    def put(self, name: str, value: float, labels: str = "") -> None:
        """Add a metric that has one row."""
        self.put_all(name, ((labels, value),))

    def put_histogram(self, name: str, histogram: Histogram) -> None:
        """Add a histogram."""
        kind, text, _ = METRICS[name]
        buckets = histogram.buckets()
        self._parts.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
        self._parts += [f'{name}_bucket{{{self._labels},le="{bound}"}} {count}\n' for bound, count in buckets]
        self._parts.append(f"{name}_sum{{{self._labels}}} {histogram.sum_s}\n")
        self._parts.append(f"{name}_count{{{self._labels}}} {buckets[-1][1]}\n")

    def put_process(self) -> None:
        """Add the metrics of this process."""
        self.put("triomq_info", 1, label("version", triomq.__version__))
        self.put("process_start_time_seconds", _STARTED)
        self.put("process_cpu_seconds_total", time.process_time())
        resident = int(Path("/proc/self/statm").read_bytes().split()[1])
        self.put("process_resident_memory_bytes", resident * _PAGE_BYTES)
        self.put("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def encode(self) -> bytes:
        """Return the text."""
        self._encode()
        return b"".join(self._encoded)

    def _encode(self) -> None:
        self._encoded.append("".join(self._parts).encode())
        self._parts.clear()
