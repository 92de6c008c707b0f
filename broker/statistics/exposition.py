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
from typing import Final, TypeAlias

import triomq
from triomq.broker.statistics.counters import Histogram

Row: TypeAlias = tuple[str | None, float]
"""Labels, as :func:`label` returns them, one after the other, and the value; labels ``None``: leave the row out."""


METRICS: Final[Mapping[str, str]] = {
    "rocketmq_messages_in_total": "messages stored",
    "rocketmq_throughput_in_total": "bytes of the bodies of messages stored",
    "rocketmq_messages_out_total": "messages sent to consumers",
    "rocketmq_throughput_out_total": "bytes of the records of messages sent to consumers",
    "rocketmq_send_to_dlq_messages_total": "messages that a group gave up",
    "rocketmq_consumer_lag_messages": "messages of a topic that a group has not consumed",
    "rocketmq_consumer_lag_latency_milliseconds": "age of the oldest message that the group has not consumed; 0: none",
    "rocketmq_consumer_inflight_messages": "messages sent to consumers and not consumed yet",
    "rocketmq_consumer_ready_messages": "messages not sent to consumers yet",
    "rocketmq_consumer_queueing_latency_milliseconds": "age of the oldest message not sent to consumers yet; 0: none",
    "rocketmq_consumer_connections": "connections of consumers",
    "rocketmq_producer_connections": "connections of producers",
    "rocketmq_commit_messages_total": "transactions committed",
    "rocketmq_rollback_messages_total": "transactions rolled back",
    "rocketmq_half_messages": "transactions without a decision",
    "rocketmq_timing_messages": "messages that wait for their delivery time",
    "rocketmq_topic_number": "topics, those of the system included",
    "rocketmq_consumer_group_number": "subscription groups, those of the system included",
    "rocketmq_broker_permission": "2: may be written, 4: may be read, 6: both",
    "rocketmq_storage_size_bytes": "used space of the disk of the store",
    "rocketmq_storage_flush_behind_bytes": "bytes of the commit log that are not on the disk yet",
    "rocketmq_storage_dispatch_behind_bytes": "bytes of the commit log that consumers cannot read yet",
    "rocketmq_storage_message_reserve_time_milliseconds": "age of the oldest message",
    "triomq_send_seconds": (
        "time from a send to its answer: for each batch that was read together (async), or for each send, the flush "
        "included (sync)"
    ),
    "triomq_pull_seconds": "time from a pull, or from the arrival of the messages that it waits for, to its answer",
    "triomq_flush_seconds": "duration of a flush of commit log or consume queues",
    "triomq_flush_waiting_seconds": "age of the flush that is running; 0: none",
    "triomq_delayed_messages": "messages that wait for a delay level",
    "triomq_sent_back_messages_total": "messages that consumers sent back",
    "triomq_stalled_queues": "queues where messages wait without progress; groups with any",
    "triomq_duplicate_client_ids": "client ids of several connections; groups with any",
    "triomq_different_subscriptions": "topics to which members subscribe differently; groups with any",
    "triomq_missing_topics": "topics to which a group subscribes that the broker does not have; groups with any",
    "triomq_table_size": "entries of a table",
    "triomq_table_limit": "limit of the entries",
    "triomq_memory_budget_bytes": "memory held for peers, and memory reserved for requests that wait",
    "triomq_memory_budget_limit_bytes": "limit of both uses together (--memory-budget)",
    "triomq_disk_used_ratio": "used part of the disk of the store, 0 to 1",
    "triomq_disk_full_ratio": "used part above which sends are rejected (--disk-full-ratio)",
    "triomq_disk_available_bytes": "free space of the disk of the store",
    "triomq_store_refuses": "1: no messages are stored, as the disk is full or has failed",
    "triomq_log_bytes": "length of the commit log",
    "triomq_damaged_records_total": "damaged records that reads have skipped",
    "triomq_index_behind_bytes": "bytes of the commit log that are not indexed yet",
    "triomq_role": "1; the role is the label: async-master, sync-master or slave",
    "triomq_slaves": "connected slaves; only with --ha-listen",
    "triomq_slave_lag_bytes": "bytes of the commit log that a connected slave misses",
    "triomq_slave_lag_seconds": "time since the oldest byte was stored that a connected slave misses; 0: none",
    "triomq_replicated_bytes_total": "bytes of the commit log sent to slaves",
    "triomq_tails_aside": "tails of the log that the master did not have, set aside and not deleted since",
    "triomq_in_touch": "1: the master of this slave sent something within 20 s; only slaves have it",
    "triomq_received_bytes_total": "bytes of the commit log that this slave received from its master",
    "triomq_events_total": "trouble with peers, by the event",
    "triomq_open_to_network": "1: other machines reach the server without an account (--insecure)",
    "triomq_info": "1",
    "process_start_time_seconds": "when the server was started, seconds since 1970",
    "process_cpu_seconds_total": "processor time",
    "process_resident_memory_bytes": "memory, mapped files included",
    "process_max_fds": "limit of open files and connections",
}
"""The meaning of each metric.  Its kind follows from its name: one that ends with ``_total`` is a counter."""

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
        kind = "counter" if name.endswith("_total") else "gauge"
        self._parts.append(f"# HELP {name} {METRICS[name]}\n# TYPE {name} {kind}\n")
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
        buckets = histogram.buckets()
        self._parts.append(f"# HELP {name} {METRICS[name]}\n# TYPE {name} histogram\n")
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
