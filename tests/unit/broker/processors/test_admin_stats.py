"""Statistics of topics, groups, clients and the broker, for tools."""

import re
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

import triomq
from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import ADVERTISED, Clock, MakeBroker, Peer
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData, MessageModel, ProducerData, SubscriptionData
from triomq.protocol.bodies.replication import HaStatus
from triomq.protocol.bodies.route import GroupList, KVTable, TopicConfig, TopicList
from triomq.protocol.bodies.statistics import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    ProducerConnection,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from triomq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability


def queue(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def heartbeat(
    peer: Peer,
    group: str,
    *topics: str,
    producer: str = "P",
    model: MessageModel = MessageModel.BROADCASTING,
    **rest: Any,
) -> None:
    subscriptions = [tag_subscription(topic, "*", 1) for topic in topics]
    consumer = ConsumerData(group_name=group, message_model=model, subscription_data_set=subscriptions)
    body = HeartbeatData("client-1", [ProducerData(producer)], [consumer]).encode()
    assert peer.get(RequestCode.HEART_BEAT, body=body, **rest).code == ResponseCode.SUCCESS


def test_topic_statistics_cover_write_queues(peer: Peer, clock: Clock) -> None:
    peer.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=5, write_queue_nums=2))
    for _ in range(3):
        clock.now_ms += 10
        peer.put("T", queue_id=1)
    response = peer.get(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    assert TopicStatsTable.decode(response.body).offset_table == {
        queue("T", 0): TopicOffset(0, 0, 0),
        queue("T", 1): TopicOffset(0, 3, clock.now_ms),
    }
    assert bytes(response.body).startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:')


@pytest.mark.parametrize(
    ("code", "answer", "remark"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, ResponseCode.TOPIC_NOT_EXIST, "topic[U] not exist"),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, ResponseCode.TOPIC_NOT_EXIST, "topic[U] not exist"),
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, ResponseCode.CONSUMER_NOT_ONLINE, "consumer group[G] not online"),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, ResponseCode.SYSTEM_ERROR, "producer group[P] not exist"),
    ],
)
def test_unknown_topic_or_group_is_refused(peer: Peer, code: int, answer: int, remark: str) -> None:
    response = peer.get(code, {"topic": "U", "group": "G", "consumerGroup": "G", "producerGroup": "P"})
    assert response.code == answer
    assert remark in str(response.remark)


def consume_stats(peer: Peer, **fields: str) -> ConsumeStats:
    response = peer.get(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", **fields})
    assert response.code == ResponseCode.SUCCESS
    return ConsumeStats.decode(response.body)


def test_group_lag_is_reported_for_every_read_queue(peer: Peer, clock: Clock) -> None:
    peer.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=4))
    stored_ms = []
    for _ in range(3):
        clock.now_ms += 10
        stored_ms.append(clock.now_ms)
        peer.put("T")
    peer.broker.groups.offsets.commit("G", "T", 0, 2)
    expected = {
        queue("T", 0): OffsetWrapper(3, 2, stored_ms[1], None, clock.now_ms, 0),
        queue("T", 1): OffsetWrapper(0, 0, 0, None, 0, 0),
    }
    assert consume_stats(peer, topic="T").offset_table == expected
    assert consume_stats(peer).offset_table == expected
    assert consume_stats(peer, topic="").offset_table == expected


async def test_lock_owner_and_stall_start_are_reported(peer: Peer, clock: Clock) -> None:
    peer.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    heartbeat(peer, "G", "T", model=MessageModel.CLUSTERING)
    peer.broker.groups.locks.lock("G", "client-1", peer.as_connection, [queue("T", 0)])
    peer.put("T")
    began_ms = clock.now_ms
    for second in (0, 10, 40):
        clock.now_ms = began_ms + second * 1000
        peer.broker.housekeeping.stalls.scan(second)
    (found,) = consume_stats(peer, topic="T").offset_table.values()
    assert (found.lock_owner, found.progress_timestamp, found.stalled_timestamp) == ("client-1", 0, began_ms)


def test_consume_stats_without_topic_cover_all_topics(peer: Peer) -> None:
    for topic in ("T", "%RETRY%G", "other"):
        peer.broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))
    for topic in ("T", "%RETRY%G", "deleted"):
        peer.broker.groups.offsets.commit("G", topic, 0, 1)
    assert set(consume_stats(peer).offset_table) == {queue("T", 0), queue("%RETRY%G", 0)}
    assert consume_stats(peer, topic="unknown").offset_table == {}
    heartbeat(peer, "G", "T")  # it has unsubscribed from the other one
    assert set(consume_stats(peer).offset_table) == {queue("T", 0)}


def test_group_rate_sums_its_topics(peer: Peer) -> None:
    statistics = peer.broker.statistics
    for topic in ("T", "U"):
        peer.broker.topics.put(TopicConfig(topic_name=topic))
        peer.broker.groups.offsets.commit("G", topic, 0, 1)
    statistics.sample(0)
    statistics.get("G", "T", 30, 1)
    statistics.get("G", "U", 10, 1)
    statistics.get("H", "T", 99, 1)
    statistics.sample(10)
    assert consume_stats(peer).consume_tps == pytest.approx(4.0)
    assert consume_stats(peer, topic="T").consume_tps == pytest.approx(3.0)


def test_topic_consumers_subscribe_or_have_offsets(peer: Peer) -> None:
    heartbeat(peer, "live", "T")
    peer.broker.groups.offsets.commit("gone", "T", 0, 1)
    peer.broker.groups.offsets.commit("live", "T", 0, 1)
    peer.broker.groups.offsets.commit("other", "U", 0, 1)
    body = peer.get(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}).body
    assert GroupList.decode(body).group_list == ["gone", "live"]


def test_topics_of_group_are_subscribed_or_consumed(peer: Peer) -> None:
    heartbeat(peer, "G", "T")
    for group, topic in (("G", "U"), ("G", "T"), ("other", "V")):
        peer.broker.groups.offsets.commit(group, topic, 0, 1)
    found = TopicList.decode(peer.get(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "G"}).body)
    assert (found.topic_list, found.broker_addr) == (["T", "U"], ADVERTISED)
    nothing = peer.get(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "unknown"})
    assert TopicList.decode(nothing.body).topic_list == []


def test_subscription_of_group_to_topic_is_shown(peer: Peer) -> None:
    heartbeat(peer, "G", "T")
    for group, topic, expression in (("G", "T", "*"), ("G", "U", None), ("unknown", "T", None)):
        answer = peer.get(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": group, "topic": topic})
        body = QuerySubscriptionBody.decode(answer.body)
        assert (body.group, body.topic) == (group, topic)
        data = body.subscription_data
        assert (data and data.sub_string) == expression


def test_members_of_consumer_group_are_listed(peer: Peer) -> None:
    heartbeat(peer, "G", "T", language=LanguageCode.JAVA, version=407)
    response = peer.get(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
    body = ConsumerConnection.decode(response.body)
    (member,) = body.connection_set
    assert (member.client_id, member.client_addr) == ("client-1", peer.peer)
    assert (member.language, member.version) == (LanguageCode.JAVA, 407)
    assert body.message_model is MessageModel.BROADCASTING
    assert body.subscription_table["T"].sub_string == "*"
    assert member.subscription_set == list(body.subscription_table.values())


@pytest.mark.parametrize(
    ("expression", "kind", "tags"),
    [("TagA || TagB||TagA", "TAG", ["TagA", "TagB"]), ("a > 1", "SQL92", []), ("||", "TAG", []), ("x", "Y", [])],
)
def test_tags_are_listed_as_the_expression_has_them(peer: Peer, expression: str, kind: str, tags: list[str]) -> None:
    sent = SubscriptionData("T", expression, ["other"], [5], expression_type=kind)
    body = HeartbeatData("c", [], [ConsumerData("G", subscription_data_set=[sent])]).encode()
    assert peer.get(RequestCode.HEART_BEAT, body=body).code == ResponseCode.SUCCESS
    listed = ConsumerConnection.decode(peer.get(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"}).body)
    data = listed.subscription_table["T"]
    assert (data.sub_string, data.tags_set) == (expression, tags)
    assert data.code_set == [2598919, 2598920][: len(tags)]


def test_unknown_language_is_other(peer: Peer) -> None:
    heartbeat(peer, "G", "T", language=-1)
    peer.language = -1
    body = peer.get(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"}).body
    assert ProducerConnection.decode(body).connection_set[0].language is LanguageCode.OTHER


def test_all_producers_are_listed_by_group(peer: Peer, clock: Clock) -> None:
    heartbeat(peer, "G", producer="P1", language=LanguageCode.GO, version=317)
    member = {
        "clientId": "client-1", "language": "GO", "lastUpdateTimestamp": clock.now_ms,
        "remoteIP": f"/{peer.peer}", "version": 317,
    }  # fmt: skip
    assert orjson.loads(peer.get(RequestCode.GET_ALL_PRODUCER_INFO).body) == {"data": {"P1": [member]}}


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_time_span_covers_each_write_queue(peer: Peer, clock: Clock) -> None:
    peer.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=5, write_queue_nums=2))
    began = clock.now_ms
    for _ in range(3):
        peer.put("T", queue_id=1)
        clock.now_ms += 1001
    peer.broker.groups.offsets.commit("G", "T", 1, 2)
    response = peer.get(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "G"})
    empty, full = QueryConsumeTimeSpanBody.decode(response.body).consume_time_span_set
    nothing = "1969-12-31#23:59:59:999"
    assert empty == QueueTimeSpan(queue("T", 0), -1, -1, -1, 0, nothing, nothing, nothing)
    texts = [f"2026-11-18#11:06:{seconds}" for seconds in ("40:000", "42:002", "41:001")]
    assert full == QueueTimeSpan(queue("T", 1), began, began + 2002, began + 1001, 1001, *texts)


def test_group_without_consumption_starts_at_first_message(peer: Peer, clock: Clock) -> None:
    began = clock.now_ms
    for _ in range(2):
        peer.put("T")
        clock.now_ms += 500
    for offset, consumed, delay in ((None, began, 1000), (0, began, 1000), (1, began, 500), (2, began + 500, 0)):
        if offset is not None:
            peer.broker.groups.offsets.commit("G", "T", 0, offset)
        response = peer.get(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "G"})
        span = QueryConsumeTimeSpanBody.decode(response.body).consume_time_span_set[0]
        assert (span.consume_time_stamp, span.delay_time) == (consumed, delay)


def test_progress_of_all_groups_in_one_answer(peer: Peer) -> None:
    for topic in ("T", "T", "U"):
        peer.put(topic)
    for group, topic, queue_offset in (("G", "T", 1), ("H", "T", 0), ("H", "U", 1), ("H", "deleted", 1)):
        peer.broker.groups.offsets.commit(group, topic, 0, queue_offset)

    def told(*, is_order: bool) -> ConsumeStatsList:
        return ConsumeStatsList.decode(peer.get(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": is_order}).body)

    body = told(is_order=False)
    behind = {
        (group, queue.topic, queue.queue_id): each.broker_offset - each.consumer_offset
        for groups in body.consume_stats_list
        for group, (stats,) in groups.items()
        for queue, each in stats.offset_table.items()
        if each.broker_offset
    }
    assert behind == {("G", "T", 0): 1, ("H", "T", 0): 2, ("H", "U", 0): 0}
    assert body.total_diff == 3
    assert told(is_order=True).consume_stats_list == []


def lately(peer: Peer, name: str, key: str) -> RemotingCommand:
    return peer.get(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})


def test_recent_counts_by_topic_group_and_broker(peer: Peer) -> None:
    statistics = peer.broker.statistics
    statistics.sample(0.0)
    for body in (b"one", b"three", b"four"):
        peer.put("T", body)
    statistics.get("G", "T", messages=4, size_bytes=400, pull_ms=3.0)
    statistics.get("G", "T", messages=1, size_bytes=50, pull_ms=6.0)
    statistics.send_back("G", "T")
    statistics.sample(4.0)
    for name, key, count, average in (
        ("TOPIC_PUT_NUMS", "T", 3, 1.0),
        ("TOPIC_PUT_SIZE", "T", 12, 4.0),
        ("GROUP_GET_NUMS", "T@G", 5, 1.0),
        ("GROUP_GET_SIZE", "T@G", 450, 90.0),
        ("GROUP_GET_LATENCY", "0@T@G", 9, 4.5),
        ("SNDBCK_PUT_NUMS", "T@G", 1, 1.0),
        ("BROKER_PUT_NUMS", "DefaultCluster", 3, 0.0),
        ("BROKER_GET_NUMS", "DefaultCluster", 5, 0.0),
    ):
        item = BrokerStatsItem(count, count / 4, average)
        assert BrokerStatsData.decode(lately(peer, name, key).body) == BrokerStatsData(item, item, item)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "U"),
        ("TOPIC_PUT_NUMS", "T@G"),
        ("GROUP_GET_NUMS", "T"),
        ("GROUP_GET_NUMS", "T@H"),
        ("BROKER_PUT_NUMS", "T"),
        ("TOPIC_PUT_SIZE", "U"),
        ("NOPE", "T"),
        ("BROKER_NOPE", "DefaultCluster"),
    ],
)
def test_unknown_statistic_is_rejected_like_in_rocketmq(peer: Peer, name: str, key: str) -> None:
    peer.put("T")
    response = lately(peer, name, key)
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")


#: What mqadmin, Apache's exporter and the conformance kit read; the exporter reports nothing if one is missing.
WANTED = """
    brokerVersionDesc putTps getTransferedTps getTransferredTps getTotalTps sendThreadPoolQueueSize
    pullThreadPoolQueueSize
    sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills
    earliestMessageTimeStamp commitLogDiskRatio consumeQueueDiskRatio msgPutTotalYesterdayMorning
    msgPutTotalTodayMorning msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning
    msgGetTotalTodayNow putMessageAverageSize brokerVersion bootTimestamp runtime commitLogMinOffset
    commitLogMaxOffset dispatchBehindBytes putMessageTimesTotal putMessageSizeTotal
    startAcceptSendRequestTimeStamp sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity
    queryThreadPoolQueueSize queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills
    putMessageDistributeTime putLatency99 putLatency999 putMessageEntireTimeMax getMessageEntireTimeMax getFoundTps
    getMissTps commitLogDirCapacity remainHowManyDataToFlush dispatchMaxBuffer remainTransientStoreBufferNumbs
"""


def figures(peer: Peer) -> dict[str, str]:
    return KVTable.decode(peer.get(RequestCode.GET_BROKER_RUNTIME_INFO).body).table


def test_a_broker_without_messages_has_its_figures_too(peer: Peer) -> None:
    told = figures(peer)
    assert not {name for name in WANTED.split() if not told.get(name)}
    for name in ("commitLogDiskRatio", "consumeQueueDiskRatio"):
        assert re.fullmatch(r"[01]\.[0-9]{2}", told[name])
    assert told["putMessageAverageSize"] == "0.0"
    assert told["commitLogMaxOffset"] == "0"
    assert told["earliestMessageTimeStamp"] == "-1"
    assert told["putTps"] == "0.000 0.000 0.000"


def test_sends_are_counted_by_their_duration(peer: Peer) -> None:
    sends = peer.broker.statistics.sends
    assert figures(peer)["putLatency99"] == "0.00"
    for ms, times in ((0.4, 90), (1.5, 7), (30, 1), (90, 1), (400, 1)):
        for _ in range(times):
            sends.observe(ms / 1000)
    reported = figures(peer)
    assert reported["putMessageDistributeTime"] == (
        "[<=0ms]:90 [0~10ms]:7 [10~50ms]:1 [50~100ms]:1 [100~200ms]:0 [200~500ms]:1 [500ms~1s]:0 "
        "[1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0"
    )
    assert (reported["putLatency99"], reported["putLatency999"]) == ("100.00", "500.00")
    assert reported["putMessageEntireTimeMax"] == "500"
    sends.observe(7)
    assert figures(peer)["putMessageDistributeTime"].endswith("[5~10s]:0 [10s~]:1")


def test_sizes_are_written_as_the_exporter_reads_them(peer: Peer) -> None:
    peer.put("T", bytes(5000))
    reported = figures(peer)
    size = r"[0-9]+\.[0-9] [KMGTPE]iB"
    assert re.fullmatch(f"Total : {size}, Free : {size}\\.", reported["commitLogDirCapacity"])
    assert re.fullmatch(size, reported["remainHowManyDataToFlush"])


def test_totals_and_offsets_match_the_sends(peer: Peer, clock: Clock) -> None:
    first_ms = clock.now_ms
    peer.put("T", b"12345")
    clock.now_ms += 1000
    peer.put("T", b"123")
    peer.pull("T", 0)
    told = figures(peer)
    assert told["earliestMessageTimeStamp"] == str(first_ms)
    assert told["putMessageTimesTotal"] == told["msgPutTotalTodayNow"] == "2"
    assert told["putMessageSizeTotal"] == "8"
    assert told["putMessageAverageSize"] == "4.0"
    assert told["msgGetTotalTodayNow"] == "2"
    assert told["commitLogMinOffset"] == "0"
    assert told["commitLogMaxOffset"] == str(peer.broker.store.commit_log.max_offset)
    assert told["dispatchBehindBytes"] == "0"


def test_version_and_times_are_reported(peer: Peer, clock: Clock) -> None:
    boot_ms = clock.now_ms
    clock.now_ms += 1000 * (86_400 * 2 + 3600 * 3 + 60 * 4 + 5) + 999
    told = figures(peer)
    assert told["brokerVersionDesc"] == "V4_9_7"
    assert told["triomqVersion"] == triomq.__version__
    assert told["bootTimestamp"] == str(boot_ms)
    assert told["runtime"] == "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"


def test_yesterday_and_today_are_counted_apart(peer: Peer) -> None:
    statistics = peer.broker.statistics
    statistics.sample(0.0)
    statistics.note_day(364)
    statistics.put("T", 5, 1)
    statistics.note_day(365)
    statistics.put("T", 2, 1)
    statistics.note_day(1)
    statistics.put("T", 1, 1)
    statistics.sample(4.0)
    told = figures(peer)
    assert (told["putTps"], told["getTotalTps"]) == ("2.000 2.000 2.000", "0.000 0.000 0.000")
    names = ("msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow")
    assert [told[name] for name in names] == ["5", "7", "8"]


async def test_waiting_answers_are_counted_with_durability_sync(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker({"durability": Durability.SYNC}))
    peer.ask(
        RequestCode.SEND_MESSAGE_V2,
        {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0},
        b"hello",
    )
    assert int(figures(peer)["dispatchBehindBytes"]) == peer.broker.store.commit_log.max_offset > 0


def test_groups_that_are_not_well_are_counted(peer: Peer, another_peer: Peer) -> None:
    for member, topic in ((peer, "T"), (another_peer, "U")):
        member.broker.connections.add(member.as_connection)
        subscriptions = [tag_subscription(topic, "*", 1)]
        consumer = ConsumerData(group_name="G", subscription_data_set=subscriptions)
        body = HeartbeatData("same", [ProducerData("P")], [consumer]).encode()
        member.get(RequestCode.HEART_BEAT, body=body)
    told = figures(peer)
    counts = {
        "Connections": "2", "ConsumerGroups": "1", "ProducerGroups": "1", "DuplicateClientIds": "1",
        "DifferentSubscriptions": "2", "StalledQueues": "0", "DeniedRequests": "0",
    }  # fmt: skip
    assert {name: told[f"triomq{name}"] for name in counts} == counts


def test_used_delay_levels_report_next_and_last_offset(peer: Peer, clock: Clock) -> None:
    for level, count in ((1, 3), (2, 1)):
        for _ in range(count):
            peer.put("T", i=f"DELAY\x01{level}")
    clock.now_ms += 1000
    peer.broker.delayed.schedule.deliver(clock.now_ms)
    peer.put("T", i="DELAY\x011")
    told = {name: value for name, value in figures(peer).items() if name.startswith("scheduleMessageOffset")}
    assert told == {"scheduleMessageOffset_1": "3,4"}


async def test_a_broker_without_slaves_is_a_master(peer: Peer) -> None:
    peer.put("T")
    status = HaStatus.decode(peer.get(RequestCode.GET_BROKER_HA_STATUS).body)
    end = peer.broker.store.commit_log.max_offset
    assert end > 0
    assert status == HaStatus(master=True, master_commit_log_max_offset=end)
