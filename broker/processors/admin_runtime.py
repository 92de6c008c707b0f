"""GET_BROKER_RUNTIME_INFO (28): the state and counters of a running broker, all as text.

Source: wire.md 9.8; AdminBrokerProcessor.java, prepareRuntimeInfo.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import triomq
from triomq.broker.delayed.levels import DelayOffsetTable
from triomq.broker.groups.groups import Groups
from triomq.broker.network.connection import Connection
from triomq.broker.services.clock_watch import ClockWatch
from triomq.broker.services.stalls import StallWatch
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.bodies.route import KVTable
from triomq.protocol.codes import VERSION
from triomq.protocol.names import SCHEDULE_TOPIC
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import Work

_VERSION_NAME: Final = "V4_9_7"  # of VERSION, which our frames contain
#: Queues of RocketMQ's thread pools.  Here a request is served in the step that reads it, so none ever waits.
_THREAD_POOLS: Final = ("send", "pull", "query", "endTransaction")
_MS_PER_DAY: Final = 86_400_000


@dataclass(frozen=True, slots=True, eq=False)
class RuntimeProcessor:
    """Answers with the state and counters of a running broker."""

    store: MessageStore
    statistics: BrokerStatistics
    groups: Groups
    connections: Collection[Connection]
    stalls: StallWatch
    delay_offsets: DelayOffsetTable
    clock_watch: ClockWatch

    def get_broker_runtime_info(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with version, times, rates, totals, and the state of the store."""
        store = self.store
        yield from store.cold_reads.load_records((store.commit_log.min_offset,))
        parts = (self._process(), self._traffic(), self._store_state(), self._delays(), self._members())
        return command.reply(body=KVTable({name: text for part in parts for name, text in part.items()}).encode())

    def _process(self) -> dict[str, str]:
        start_ms = self.statistics.start_ms
        texts = {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": _VERSION_NAME,
            "triomqVersion": triomq.__version__,
            "bootTimestamp": str(start_ms),
            "runtime": _duration(self.clock_watch.clock_ms() - start_ms),
            "triomqClockJumpMs": str(self.clock_watch.jump_ms),
            "triomqClockJumpAgeMs": str(self.clock_watch.jump_age_ms),
            "startAcceptSendRequestTimeStamp": "0",  # it accepts requests at once
        }
        for pool in _THREAD_POOLS:
            texts[f"{pool}ThreadPoolQueueSize"] = "0"
            texts[f"{pool}ThreadPoolQueueCapacity"] = "0"
            texts[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        return texts

    def _members(self) -> dict[str, str]:
        """Return counts of clients and of trouble with them, which Apache's brokers do not report."""
        self.groups.consumers.check()
        groups = list(self.groups.consumers)
        return {
            "triomqConnections": str(len(self.connections)),
            "triomqConsumerGroups": str(len(groups)),
            "triomqProducerGroups": str(len(self.groups.producers.all())),
            "triomqDuplicateClientIds": str(sum(len(group.duplicate_ids) for group in groups)),
            "triomqDifferentSubscriptions": str(sum(len(group.differences) for group in groups)),
            "triomqStalledQueues": str(self.stalls.count()),
        } | {f"triomq{name.title().replace('_', '')}": str(count) for name, count in self.statistics.events().items()}

    def _traffic(self) -> dict[str, str]:
        statistics = self.statistics
        rates = statistics.rates()
        put, get = _three(rates.put), _three(rates.get)
        puts, gets = statistics.put_messages, statistics.get_messages
        yesterday, today = statistics.day_totals
        average = statistics.put_bytes / puts if puts else 0.0
        return {
            "putTps": put,
            "getTransferedTps": get,
            "getTotalTps": get,  # counts messages, too: reads that found none do not count
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

    def _store_state(self) -> dict[str, str]:
        store = self.store
        moment = store.statistics()
        hidden_bytes = 0  # stored, but not visible to consumers before the disk has confirmed it
        if store.config.durability is Durability.SYNC:
            hidden_bytes = moment.max_offset - moment.flushed_offset
        return {
            "commitLogMinOffset": str(moment.min_offset),
            "commitLogMaxOffset": str(moment.max_offset),
            "commitLogDiskRatio": _disk_ratio(store.config.root),
            "consumeQueueDiskRatio": _disk_ratio(store.config.root),  # one directory, so one disk
            "earliestMessageTimeStamp": str(store.commit_log.store_time(moment.min_offset)),
            "dispatchBehindBytes": str(hidden_bytes),
            "pageCacheLockTimeMills": "0",  # one thread appends without a lock
            "triomqRefusal": moment.refusal,
        }

    def _delays(self) -> dict[str, str]:
        """Return next and last offset of each delay level that has delivered messages.

        Source: ScheduleMessageService.java, buildRunningStats.
        """
        end_of = self.store.reader.max_offset_in_queue
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{end_of(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in self.delay_offsets.items()
        }


def _disk_ratio(path: Path) -> str:
    with translated("look at", path):
        return f"{FileSystem().space(path).used_percent / 100:.2f}"


def _duration(elapsed_ms: int) -> str:
    days, rest_ms = divmod(max(elapsed_ms, 0), _MS_PER_DAY)
    minutes, seconds = divmod(rest_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _three(rates: tuple[float, float, float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)
