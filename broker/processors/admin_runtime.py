"""GET_BROKER_RUNTIME_INFO (28): the figures that tools show of a running broker, all as text.

Source: wire.md 9.8; AdminBrokerProcessor.java, prepareRuntimeInfo.
"""

from typing import TYPE_CHECKING, Final

import triomq
from triomq.broker.pulls.lookups import in_steps
from triomq.protocol.bodies.route import KVTable
from triomq.protocol.codes import VERSION
from triomq.protocol.names import SCHEDULE_TOPIC
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.reading.cold_read import Lookup

if TYPE_CHECKING:
    from pathlib import Path

    from triomq.broker.network.connection import Connection
    from triomq.broker.server import Broker

_VERSION_NAME: Final = "V4_9_7"  # of VERSION: what our frames say too
#: Queues in front of RocketMQ's thread pools.  Here a request is served in the step that reads it, so none ever waits.
_THREAD_POOLS: Final = ("send", "pull", "query", "endTransaction")
_MS_PER_DAY: Final = 86_400_000


@in_steps
def get_broker_runtime_info(connection: "Connection", command: RemotingCommand) -> Lookup[RemotingCommand]:
    """Answer with version, times, rates, totals, and the state of the store."""
    broker = connection.broker
    yield from broker.store.cold_reads.load_records((broker.store.commit_log.min_offset,))
    figures = {**_process(broker), **_traffic(broker), **_store(broker), **_delays(broker), **_groups(broker)}
    return command.reply(body=KVTable(figures).encode())


def _process(broker: "Broker") -> dict[str, str]:
    start_ms = broker.statistics.start_ms
    figures = {
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": _VERSION_NAME,
        "triomqVersion": triomq.__version__,
        "bootTimestamp": str(start_ms),
        "runtime": _duration(broker.clock_ms() - start_ms),
        "startAcceptSendRequestTimeStamp": "0",  # it accepts at once
    }
    for pool in _THREAD_POOLS:
        figures[f"{pool}ThreadPoolQueueSize"] = "0"
        figures[f"{pool}ThreadPoolQueueCapacity"] = "0"
        figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return figures


def _groups(broker: "Broker") -> dict[str, str]:
    """Return who is connected, and how many groups or queues are not well; Apache's brokers do not tell these."""
    broker.consumer_groups.check()
    groups = list(broker.consumer_groups)
    return {
        "triomqConnections": str(len(broker.connections)),
        "triomqConsumerGroups": str(len(groups)),
        "triomqProducerGroups": str(len(broker.producer_groups.all())),
        "triomqDuplicateClientIds": str(sum(len(group.duplicate_ids) for group in groups)),
        "triomqDifferentSubscriptions": str(sum(len(group.differences) for group in groups)),
        "triomqStalledQueues": str(broker.stalls.count()),
    }


def _duration(elapsed_ms: int) -> str:
    days, rest_ms = divmod(max(elapsed_ms, 0), _MS_PER_DAY)
    minutes, seconds = divmod(rest_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _traffic(broker: "Broker") -> dict[str, str]:
    statistics = broker.statistics
    rates = statistics.rates()
    put, get = _three(rates.put), _three(rates.get)
    puts, gets = statistics.put_messages, statistics.get_messages
    yesterday, today = statistics.mornings
    average = statistics.put_bytes / puts if puts else 0.0
    return {
        "putTps": put,
        "getTransferedTps": get,
        "getTotalTps": get,  # messages too: reads that found none are not counted
        "putMessageTimesTotal": str(puts),
        "putMessageSizeTotal": str(statistics.put_bytes),
        "putMessageAverageSize": f"{average:.1f}",
        "msgPutTotalYesterdayMorning": str(yesterday.put_messages),
        "msgPutTotalTodayMorning": str(today.put_messages),
        "msgPutTotalTodayNow": str(puts),
        "msgGetTotalYesterdayMorning": str(yesterday.get_messages),
        "msgGetTotalTodayMorning": str(today.get_messages),
        "msgGetTotalTodayNow": str(gets),
    }


def _three(rates: tuple[float, float, float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)


def _store(broker: "Broker") -> dict[str, str]:
    store, config = broker.store, broker.config.store
    moment = store.statistics()
    return {
        "commitLogMinOffset": str(moment.min_offset),
        "commitLogMaxOffset": str(moment.max_offset),
        "commitLogDiskRatio": _disk_ratio(config.root),
        "consumeQueueDiskRatio": _disk_ratio(config.root),  # one directory, so one disk
        "earliestMessageTimeStamp": str(store.commit_log.store_time(moment.min_offset)),
        "dispatchBehindBytes": str(_hidden_bytes(broker, moment.max_offset, moment.flushed_offset)),
        "pageCacheLockTimeMills": "0",  # one thread appends: nobody ever holds a lock
    }


def _delays(broker: "Broker") -> dict[str, str]:
    """Return next and last offset of each delay level that has delivered something.

    Source: ScheduleMessageService.java, buildRunningStats.
    """
    end_of = broker.store.reader.max_offset_in_queue
    return {
        f"scheduleMessageOffset_{level}": f"{offset},{end_of(SCHEDULE_TOPIC, level - 1)}"
        for level, offset in broker.schedule.offsets.items()
    }


def _hidden_bytes(broker: "Broker", max_offset: int, flushed_offset: int) -> int:
    """Return how much is stored but not shown to consumers: what the disk has yet to confirm, if that counts."""
    return max_offset - flushed_offset if broker.group_commit is not None else 0


def _disk_ratio(path: "Path") -> str:
    with translated("look at", path):
        return f"{FileSystem().space(path).used_percent / 100:.2f}"
