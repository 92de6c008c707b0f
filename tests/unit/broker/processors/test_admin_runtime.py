"""The figures of a running broker."""

import re

import triomq
from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData, ProducerData
from triomq.protocol.bodies.route import KVTable
from triomq.protocol.codes import RequestCode
from triomq.storage.config import Durability

#: What mqadmin and the conformance kit read.
WANTED = """
    brokerVersionDesc putTps getTransferedTps getTotalTps sendThreadPoolQueueSize pullThreadPoolQueueSize
    sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills
    earliestMessageTimeStamp commitLogDiskRatio consumeQueueDiskRatio msgPutTotalYesterdayMorning
    msgPutTotalTodayMorning msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning
    msgGetTotalTodayNow putMessageAverageSize brokerVersion bootTimestamp runtime commitLogMinOffset
    commitLogMaxOffset dispatchBehindBytes putMessageTimesTotal putMessageSizeTotal
    startAcceptSendRequestTimeStamp sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity
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
    assert {name: told[f"triomq{name}"] for name in ("Connections", "ConsumerGroups", "ProducerGroups")} == {
        "Connections": "2",
        "ConsumerGroups": "1",
        "ProducerGroups": "1",
    }
    assert told["triomqDuplicateClientIds"] == "1"
    assert told["triomqDifferentSubscriptions"] == "2"
    assert told["triomqStalledQueues"] == "0"
    assert told["triomqDeniedRequests"] == "0"


def test_used_delay_levels_report_next_and_last_offset(peer: Peer, clock: Clock) -> None:
    for level, count in ((1, 3), (2, 1)):
        for _ in range(count):
            peer.put("T", i=f"DELAY\x01{level}")
    clock.now_ms += 1000
    peer.broker.delayed.schedule.deliver(clock.now_ms)
    peer.put("T", i="DELAY\x011")
    told = {name: value for name, value in figures(peer).items() if name.startswith("scheduleMessageOffset")}
    assert told == {"scheduleMessageOffset_1": "3,4"}
