"""What a consumer reports about itself to brokers and tools: the body of request 307.

Source: behaviour.md B.17, wire.md 9.9.
"""

from collections.abc import Mapping
from typing import Final

import trio

from triomq.client.consumer.processing.process_queue import NO_LOCK
from triomq.client.consumer.pulling.pull_loop import PullLoop
from triomq.client.consumer.statistics import TopicCounters
from triomq.client.consumer.subscription import Subscriptions
from triomq.client.environment import wall_clock_ms
from triomq.protocol.bodies.client import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
from triomq.protocol.message_queue import MessageQueue

#: Java's format of versions, which its tools parse.
_CLIENT_VERSION: Final = "V4_9_7"
_MIB: Final = 1024**2


def running_info(
    subscriptions: Subscriptions,
    loops: Mapping[MessageQueue, PullLoop],
    counters: Mapping[str, TopicCounters],
    properties: Mapping[str, str],
    concurrency: int | None,
) -> ConsumerRunningInfo:
    """Return the body.

    Args:
        subscriptions: what the consumer subscribes to.
        loops: the queues held.
        counters: counts by topic.
        properties: the consumer's settings.
        concurrency: how many handlers run at a time; ``None``: there is no handler.
    """
    now = trio.current_time()
    pool = {} if concurrency is None else {"PROP_THREADPOOL_CORE_SIZE": str(concurrency)}
    return ConsumerRunningInfo(
        properties={"PROP_CLIENT_VERSION": _CLIENT_VERSION, **properties, **pool},
        subscription_set=subscriptions.data(),
        mq_table={queue: _process_queue_info(loop) for queue, loop in loops.items()},
        status_table={topic: _status(counted, now) for topic, counted in counters.items()},
    )


def _process_queue_info(loop: PullLoop) -> ProcessQueueInfo:
    process_queue, figures = loop.process_queue, loop.statistics()
    first, taken = process_queue.first_offset, process_queue.taken_offsets
    return ProcessQueueInfo(
        commit_offset=figures.committed_offset,
        cached_msg_min_offset=first or 0,
        cached_msg_max_offset=0 if first is None else first + process_queue.span,
        cached_msg_count=process_queue.cached_messages,
        cached_msg_size_in_mib=process_queue.cached_bytes // _MIB,
        transaction_msg_min_offset=min(taken, default=0),
        transaction_msg_max_offset=max(taken, default=0),
        transaction_msg_count=len(taken),
        locked=process_queue.lock is not NO_LOCK and process_queue.lock.ends > trio.current_time(),
        last_lock_timestamp=_wall_clock_ms(process_queue.lock.locked_at),
        dropped=process_queue.dropped,
        last_pull_timestamp=_wall_clock_ms(process_queue.last_pulled_at),
        last_consume_timestamp=_wall_clock_ms(process_queue.last_consumed_at),
    )


def _status(counters: TopicCounters, now: float) -> ConsumeStatus:
    rates = counters.rates(now)
    return ConsumeStatus(
        pull_rt=rates.pull_ms,
        pull_tps=rates.pulled_per_s,
        consume_rt=rates.handler_ms,
        consume_ok_tps=rates.succeeded_per_s,
        consume_failed_tps=rates.failed_per_s,
        consume_failed_msgs=counters.failed,
    )


def _wall_clock_ms(at: float) -> int:
    """Return a time of trio's clock as milliseconds since 1970; 0.0 is never."""
    return wall_clock_ms() + round((at - trio.current_time()) * 1000) if at else 0
