"""Statistics for tools: of topics, groups and clients (202 to 204, 208, 300, 303, 315, 317, 328), of the broker (28).

Source: behaviour.md A.15; wire.md 7, 9.6, 9.8, 9.10; AdminBrokerProcessor.java.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

import triomq
from triomq.broker.delayed.levels import DelayOffsetTable
from triomq.broker.groups.members import Member
from triomq.broker.network.connection import Connection
from triomq.broker.services.housekeeping import Housekeeping
from triomq.broker.shared import BrokerPart
from triomq.broker.work import encode
from triomq.protocol.bodies import fastjson
from triomq.protocol.bodies import statistics as bodies
from triomq.protocol.bodies.client import ConsumeFromWhere, ConsumeType, MessageModel
from triomq.protocol.bodies.fastjson import written_key
from triomq.protocol.bodies.route import GroupList, KVTable
from triomq.protocol.codes import VERSION, LanguageCode, ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import SCHEDULE_TOPIC
from triomq.protocol.requests import offsets
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader, ProducerGroupRequestHeader
from triomq.protocol.requests.topics import TopicRequestHeader, ViewBrokerStatsDataRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.reading.cold_read import PAUSE, Work

_VERSION_NAME: Final = "V4_9_7"  # of VERSION, which our frames contain
#: Queues of RocketMQ's thread pools.  Here a request is served in the step that reads it, so none ever waits.
_THREAD_POOLS: Final = ("send", "pull", "query", "endTransaction")
_MS_PER_DAY: Final = 86_400_000
#: Ranges of ``putMessageDistributeTime``: the upper bound in our histogram, in seconds, and RocketMQ's name.
_PUT_TIMES: Final = (
    *((0.001, "<=0ms"), (0.01, "0~10ms"), (0.05, "10~50ms"), (0.1, "50~100ms"), (0.1, "100~200ms")),
    *((0.5, "200~500ms"), (1.0, "500ms~1s"), (1.0, "1~2s"), (1.0, "2~3s"), (1.0, "3~4s"), (5.0, "4~5s")),
    *((5.0, "5~10s"), (inf, "10s~")),
)
_NO_POOL: Final = 2**31 - 1  # RocketMQ's number of free buffers where it has no pool of them
_LANGUAGES: Final = {code.value: code for code in LanguageCode}


@dataclass(slots=True, eq=False)
class StatisticsProcessors(BrokerPart):
    """Answers with the state of the broker and its queues, the progress of groups, and their members."""

    housekeeping: Housekeeping
    delay_offsets: DelayOffsetTable

    def get_topic_stats_info(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with first and next offset of every write queue, and the store time of its newest message."""
        topic, reader = TopicRequestHeader.decode(command.ext_fields).topic, self.store.reader
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(f"topic[{topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        text = bytearray(b'{"offsetTable":{')  # written queue by queue, see below
        for queue_id in range(config.write_queue_nums):
            max_offset = reader.max_offset_in_queue(topic, queue_id)
            offset = bodies.TopicOffset(
                min_offset=reader.min_offset_in_queue(topic, queue_id),
                max_offset=max_offset,
                last_update_timestamp=max((yield from reader.store_time(topic, queue_id, max_offset - 1)), 0),
            )
            key = written_key(MessageQueue(topic, self.config.broker_name, queue_id))
            text += b"%b%b:%b" % (b"," if queue_id else b"", key, offset.encode())
            yield PAUSE
        text += b"}}"
        return command.reply(body=memoryview(text))

    def get_consume_stats(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the progress of a group in each read queue of a topic, or of all topics where it has offsets."""
        header = offsets.GetConsumeStatsRequestHeader.decode(command.ext_fields)
        group = header.consumer_group
        topics = [header.topic] if header.topic else list((yield from self.groups.offsets.of_group(group)))
        stats, _, _ = yield from self._consume_stats(group, topics)
        return command.reply(body=memoryview(stats))

    def _consume_stats(self, group: str, topics: Iterable[str]) -> Work[tuple[bytearray, int, int]]:
        """Return a ``ConsumeStats`` as it is sent, the number of its queues, and how many messages wait in them.

        Each queue is written at once: the garbage collector would look at objects for all of them for 50 ms.
        """
        reader, live = self.store.reader, self.groups.consumers.get(group)
        wanted = {
            topic: config
            for topic in topics
            if (config := self.topics.get(topic))
            and (live is None or not live.subscriptions or topic in live.subscriptions)  # it may have unsubscribed
        }
        tps = sum((self.statistics.group_rate(group, topic) for topic in wanted), start=0.0)
        text = bytearray(b'{"consumeTps":%b,"offsetTable":{' % fastjson.dumps(tps))
        queues = diff = 0
        for topic, config in wanted.items():
            for queue_id in range(config.read_queue_nums):
                queue = MessageQueue(topic, self.config.broker_name, queue_id)
                consumer_offset = self.groups.offsets.query(group, topic, queue_id) or 0
                each = bodies.OffsetWrapper(
                    broker_offset=reader.max_offset_in_queue(topic, queue_id),
                    consumer_offset=consumer_offset,
                    last_timestamp=max((yield from reader.store_time(topic, queue_id, consumer_offset - 1)), 0),
                    lock_owner=self.groups.locks.owner(group, queue),
                    progress_timestamp=self.groups.offsets.changed_ms(group, topic, queue_id),
                    stalled_timestamp=self.housekeeping.stalls.since_ms(group, queue),
                )
                text += b"%b%b:%b" % (b"," if queues else b"", written_key(queue), each.encode())
                queues += 1
                diff += each.broker_offset - consumer_offset
                yield PAUSE
        text += b"}}"
        return text, queues, diff

    def get_broker_consume_stats(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the progress of all groups, in all topics or in those whose order is global."""
        is_order = offsets.GetBrokerConsumeStatsRequestHeader.decode(command.ext_fields).is_order
        text = bytearray(b'{"brokerAddr":%b,"consumeStatsList":[' % fastjson.dumps(connection.advertised))
        groups = total_diff = 0
        for group, topics in (yield from self.groups.offsets.groups()).items():
            wanted = [topic for topic in topics if not is_order or ((of := self.topics.get(topic)) and of.order)]
            stats, queues, diff = yield from self._consume_stats(group, wanted)
            if queues:
                text += b"%b{%b:[%b]}" % (b"," if groups else b"", fastjson.dumps(group), bytes(stats))
                groups += 1
                total_diff += diff
            yield PAUSE
        text += b'],"totalDiff":%d}' % total_diff
        return command.reply(body=memoryview(text))

    def query_topic_consume_by_who(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the groups that subscribe to a topic now or have offsets in it."""
        topic = TopicRequestHeader.decode(command.ext_fields).topic
        groups = {group.name for group in self.groups.consumers if topic in group.subscriptions}
        groups.update((yield from self.groups.offsets.of_topic(topic)))
        return command.reply(body=GroupList(sorted(groups)).encode())

    def query_consume_time_span(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the store times of messages in a topic's write queues, and of those that a group consumed."""
        header = offsets.QueryConsumeTimeSpanRequestHeader.decode(command.ext_fields)
        topic, reader, now_ms = header.topic, self.store.reader, self.clock_ms()
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(f"topic[{topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        text = bytearray(b'{"consumeTimeSpanSet":[')
        for queue_id in range(config.write_queue_nums):
            first, end = reader.min_offset_in_queue(topic, queue_id), reader.max_offset_in_queue(topic, queue_id)
            # RocketMQ uses -1 for a missing offset, and reports a delay since 1970.
            offset = max(self.groups.offsets.query(header.group, topic, queue_id) or 0, first)
            earliest = yield from reader.earliest_store_time(topic, queue_id)
            newest = yield from reader.store_time(topic, queue_id, end - 1)
            consumed = (yield from reader.store_time(topic, queue_id, offset - 1)) if offset > first else earliest
            following = (yield from reader.store_time(topic, queue_id, offset)) if offset < end else now_ms
            span = bodies.QueueTimeSpan(
                MessageQueue(topic, self.config.broker_name, queue_id),
                min_time_stamp=earliest,
                max_time_stamp=newest,
                consume_time_stamp=consumed,
                delay_time=max(now_ms - following, 0),
                min_time_stamp_str=_time_text(earliest),
                max_time_stamp_str=_time_text(newest),
                consume_time_stamp_str=_time_text(consumed),
            )
            text += b"%b%b" % (b"," if queue_id else b"", span.encode())
            yield PAUSE
        text += b"]}"
        return command.reply(body=memoryview(text))

    def view_broker_stats_data(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with a statistic of the last minute, hour and day."""
        header = ViewBrokerStatsDataRequestHeader.decode(command.ext_fields)
        data = self.statistics.window_stats(header.stats_name, header.stats_key, self.config.cluster_name)
        if data is None:
            raise RefusedError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        return command.reply(body=data.encode())

    def get_consumer_connection_list(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the members of a consumer group and their subscriptions, those of the group with their tags."""
        name = ConsumerGroupRequestHeader.decode(command.ext_fields).consumer_group
        group = self.groups.consumers.get(name)
        if group is None:
            raise RefusedError(f"the consumer group[{name}] not online", ResponseCode.CONSUMER_NOT_ONLINE)
        body = bodies.ConsumerConnection(
            connection_set=_connections(group.members.items()),
            consume_type=ConsumeType(group.consume_type),
            message_model=MessageModel(group.message_model),
            consume_from_where=ConsumeFromWhere(group.consume_from_where),
        )
        for topic, each in list(group.subscriptions.items()):
            body.subscription_table[topic] = each.data.with_tags()
            yield PAUSE
        return command.reply(body=(yield from encode(body)))

    def get_producer_connection_list(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the members of a producer group."""
        name = ProducerGroupRequestHeader.decode(command.ext_fields).producer_group
        members = self.groups.producers.groups.get(name)
        if members is None:
            raise RefusedError(f"the producer group[{name}] not exist")
        return command.reply(body=bodies.ProducerConnection(_connections(members.items())).encode())

    def get_all_producer_info(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the members of all producer groups."""
        producers, now_ms = self.groups.producers, self.clock_ms()
        groups = {
            group: [
                {
                    "clientId": member.client_id,
                    "language": _LANGUAGES.get(peer.language, LanguageCode.OTHER).name,
                    "lastUpdateTimestamp": now_ms - producers.silent_ms(member),
                    "remoteIP": f"/{peer.peer}",
                    "version": peer.version,
                }
                for peer, member in members.items()
            ]
            for group, members in producers.groups.items()
        }
        return command.reply(body=fastjson.dumps({"data": groups}))

    # --- the broker -------------------------------------------------------------------------------------

    def get_broker_runtime_info(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with version, times, rates, totals, and the state of the store, all as text.

        Source: AdminBrokerProcessor.java, prepareRuntimeInfo; ScheduleMessageService.java, buildRunningStats.
        """
        store, end_of = self.store, self.store.reader.max_offset_in_queue
        yield from store.cold_reads.load_records((store.commit_log.min_offset,))
        delays = {
            f"scheduleMessageOffset_{level}": f"{offset},{end_of(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in self.delay_offsets.items()
        }
        found = self._process() | self._traffic() | self._store_state() | delays | self._members()
        return command.reply(body=KVTable({name: str(value) for name, value in found.items()}).encode())

    def _process(self) -> dict[str, object]:
        start_ms, watch = self.statistics.start_ms, self.housekeeping.clock_watch
        days, rest_ms = divmod(max(self.clock_ms() - start_ms, 0), _MS_PER_DAY)
        minutes, seconds = divmod(rest_ms // 1000, 60)
        queues = ("QueueSize", "QueueCapacity", "QueueHeadWaitTimeMills")
        return {
            "brokerVersion": VERSION,
            "brokerVersionDesc": _VERSION_NAME,
            "triomqVersion": triomq.__version__,
            "bootTimestamp": start_ms,
            "runtime": f"[ {days} days, {minutes // 60} hours, {minutes % 60} minutes, {seconds} seconds ]",
            "triomqClockJumpMs": watch.jump_ms,
            "triomqClockJumpAgeMs": watch.jump_age_ms,
            "triomqMayMisjudgePeers": str(self.config.may_misjudge_peers).lower(),
            "triomqReplayableAt": self.config.replayable_at,
            "startAcceptSendRequestTimeStamp": 0,  # it accepts requests at once
            **{f"{pool}ThreadPool{queue}": 0 for pool in _THREAD_POOLS for queue in queues},
        }

    def _members(self) -> dict[str, object]:
        """Return counts of clients and of trouble with them, which Apache's brokers do not report."""
        self.groups.consumers.check()
        groups = list(self.groups.consumers)
        events = {f"triomq{name.title().replace('_', '')}": count for name, count in self.statistics.events().items()}
        return {
            "triomqConnections": len(self.context.connections),
            "triomqConsumerGroups": len(groups),
            "triomqProducerGroups": len(self.groups.producers.groups),
            "triomqDuplicateClientIds": sum(len(group.duplicate_ids) for group in groups),
            "triomqDifferentSubscriptions": sum(len(group.differences) for group in groups),
            "triomqStalledQueues": self.housekeeping.stalls.count(),
            **events,
        }

    def _traffic(self) -> dict[str, object]:
        statistics = self.statistics
        put, get = (" ".join(f"{rate:.3f}" for rate in rates) for rates in zip(*statistics.rates(), strict=True))
        puts, gets = statistics.put_messages, statistics.get_messages
        (puts_yesterday, gets_yesterday), (puts_today, gets_today) = statistics.day_totals
        return {
            "putTps": put,
            "getTransferedTps": get,
            "getTransferredTps": get,  # the name in 5.x
            "getFoundTps": get,
            "getMissTps": "0.000 0.000 0.000",  # reads that found none do not count
            "getTotalTps": get,  # counts messages, too
            **self._durations(),
            "putMessageTimesTotal": puts,
            "putMessageSizeTotal": statistics.put_bytes,
            "putMessageAverageSize": f"{statistics.put_bytes / max(puts, 1):.1f}",
            "msgPutTotalYesterdayMorning": puts_yesterday,
            "msgPutTotalTodayMorning": puts_today,
            "msgPutTotalTodayNow": puts,
            "msgGetTotalYesterdayMorning": gets_yesterday,
            "msgGetTotalTodayMorning": gets_today,
            "msgGetTotalTodayNow": gets,
        }

    def _durations(self) -> dict[str, object]:
        """Return the durations of sends and pulls since the start, rounded up to a bound of our histograms.

        Apache's exporter reports nothing of a broker without them.  RocketMQ counts the sends of the last minute.
        """
        sends, pulls = self.statistics.sends, self.statistics.pulls
        up_to = [0, *(sends.up_to(bound_s) for bound_s, _ in _PUT_TIMES)]
        times = zip(_PUT_TIMES, up_to[1:], up_to, strict=False)
        return {
            "putMessageDistributeTime": " ".join(f"[{name}]:{end - begin}" for (_, name), end, begin in times),
            "putLatency99": f"{sends.bound_s(0.99) * 1000:.2f}",
            "putLatency999": f"{sends.bound_s(0.999) * 1000:.2f}",
            "putMessageEntireTimeMax": ceil(sends.bound_s(1.0) * 1000),
            "getMessageEntireTimeMax": ceil(pulls.bound_s(1.0) * 1000),
        }

    def _store_state(self) -> dict[str, object]:
        """Return the state of the store.  Source of texts with units: MixAll.java, humanReadableByteCount."""
        store, log = self.store, self.store.commit_log
        with translated("look at", store.config.root):
            space = FileSystem().space(store.config.root)
        disk_ratio = f"{space.used_percent / 100:.2f}"
        total, free = map(_size_text, (space.used_bytes + space.available_bytes, space.available_bytes))
        hidden_bytes = 0  # stored, but not visible to consumers before the disk has confirmed it
        if store.config.durability is Durability.SYNC:
            hidden_bytes = log.max_offset - log.flushed_offset
        return {
            "commitLogMinOffset": log.min_offset,
            "commitLogMaxOffset": log.max_offset,
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
            "commitLogDiskRatio": disk_ratio,
            "consumeQueueDiskRatio": disk_ratio,  # one directory, so one disk
            "earliestMessageTimeStamp": log.store_time(log.min_offset),
            "dispatchBehindBytes": hidden_bytes,
            "dispatchMaxBuffer": 0,  # RocketMQ 4.9.7 reports 0, too
            "remainHowManyDataToFlush": _size_text(log.max_offset - log.flushed_offset),
            "remainTransientStoreBufferNumbs": _NO_POOL,
            "pageCacheLockTimeMills": 0,  # one thread appends without a lock
            "triomqRefusal": str(store.refused.error() or ""),
        }


def _size_text(size_bytes: int) -> str:
    power = min(max((size_bytes.bit_length() - 1) // 10, 0), 6)
    return f"{size_bytes / 1024**power:.1f} {'KMGTPE'[power - 1]}iB" if power else f"{size_bytes} B"


def _time_text(time_ms: int) -> str:
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(time_ms // 1000))}:{time_ms % 1000:03d}"


def _connections(members: Iterable[tuple[Connection, Member]]) -> list[bodies.Connection]:
    return [
        bodies.Connection(
            client_id=member.client_id,
            client_addr=connection.peer,
            language=_LANGUAGES.get(connection.language, LanguageCode.OTHER),
            version=connection.version,
            subscription_set=member.subscriptions or None,
        )
        for connection, member in members
    ]
