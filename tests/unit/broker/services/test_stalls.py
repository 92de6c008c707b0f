"""Stalled queues are detected, explained and logged once."""

import logging

import pytest
import trio
from trio.testing import MockClock

from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.broker.network import client_requests
from triomq.broker.server import Broker
from triomq.broker.services import stalls
from triomq.protocol.bodies.client import (
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    MessageModel,
    ProcessQueueInfo,
)
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="triomq.broker.services.stalls")
    return caplog


@pytest.fixture
def waiting(broker: Broker, peer: Peer) -> Broker:
    """One message waits for the group, which has one member."""
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    peer.put("T")
    join(peer)
    return broker


def join(peer: Peer, client_id: str = "c1", model: MessageModel = MessageModel.CLUSTERING) -> None:
    """Make the peer a member of the group, and drop its notice."""
    consumer = ConsumerData("G", message_model=model, subscription_data_set=[tag_subscription("T", "*", 1)])
    assert peer.get(RequestCode.HEART_BEAT, body=HeartbeatData(client_id, [], [consumer]).encode()).code == 0
    peer.sent.clear()


class Watch:
    """Lets time pass in steps of a round."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.began_ms, self._broker, self._clock, self._now = clock.now_ms, broker, clock, 0.0

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self._broker.housekeeping.stalls.scan(self._now)
            self._now += 10
            self._clock.now_ms += 10_000


@pytest.fixture
def watch(waiting: Broker, clock: Clock) -> Watch:
    return Watch(waiting, clock)


def answer(peer: Peer, cached: int) -> None:
    """Answer the last request as a member that has the queue."""
    info = ConsumerRunningInfo(mq_table={QUEUE: ProcessQueueInfo(cached_msg_count=cached)})
    assert peer.broker.context.client_requests.handle_answer(
        peer.as_connection, peer.sent[-1].reply(body=info.encode())
    )


@pytest.mark.parametrize(("stall_after_s", "rounds"), [(10.0, 2), (30.0, 4), (65.0, 8)])
async def test_queue_counts_as_stalled_after_configured_time(
    make_broker: MakeBroker, clock: Clock, stall_after_s: float, rounds: int
) -> None:
    broker = make_broker(stall_after_s=stall_after_s)
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    peer = Peer(broker)
    peer.put("T")
    join(peer)
    watch = Watch(broker, clock)
    watch.rounds(rounds - 1)
    assert broker.housekeeping.stalls.count() == 0
    watch.rounds(1)
    assert broker.housekeeping.stalls.count() == 1


async def test_stalled_queue_is_logged_once_with_owner_activity(
    watch: Watch, waiting: Broker, peer: Peer, log: pytest.LogCaptureFixture
) -> None:
    watch.rounds(3)
    assert (peer.sent, waiting.housekeeping.stalls.count(), waiting.housekeeping.stalls.since_ms("G", QUEUE)) == (
        [],
        0,
        0,
    )
    watch.rounds(3)
    (question,) = peer.sent
    assert (question.code, question.ext_fields["consumerGroup"]) == (RequestCode.GET_CONSUMER_RUNNING_INFO, "G")
    assert waiting.housekeeping.stalls.since_ms("G", QUEUE) == watch.began_ms
    assert not log.messages
    answer(peer, cached=1)
    watch.rounds(3)
    (line,) = log.messages
    assert line.startswith("queue is stalled group=G queue=T@broker-a:0 cause=handler-blocked reason=the handler of c1")


async def test_resumed_queue_is_logged_and_may_stall_again(
    watch: Watch, waiting: Broker, peer: Peer, log: pytest.LogCaptureFixture
) -> None:
    watch.rounds(4)
    answer(peer, cached=1)
    waiting.groups.offsets.commit("G", "T", 0, 1)
    watch.rounds(1)
    assert log.messages[1:] == ["queue is no longer stalled group=G queue=T@broker-a:0"]
    assert (waiting.housekeeping.stalls.count(), waiting.housekeeping.stalls.since_ms("G", QUEUE)) == (0, 0)
    peer.put("T")
    watch.rounds(4)
    assert waiting.housekeeping.stalls.count() == 1


async def test_slow_queue_is_not_logged(watch: Watch, waiting: Broker, peer: Peer) -> None:
    for _ in range(5):
        peer.put("T")
    for queue_offset in range(5):
        waiting.groups.offsets.commit("G", "T", 0, queue_offset)
        watch.rounds(3)
    assert waiting.housekeeping.stalls.count() == 0


async def test_group_without_members_is_still_watched(
    watch: Watch, waiting: Broker, peer: Peer, log: pytest.LogCaptureFixture
) -> None:
    watch.rounds(1)
    waiting.groups.consumers.forget(peer.as_connection)
    watch.rounds(3)
    assert [line.partition(" cause=")[2] for line in log.messages] == [
        "no-member reason=no member of the group is online"
    ]
    waiting.groups.settings.delete("G")
    watch.rounds(1)
    assert waiting.housekeeping.stalls.count() == 0


async def test_broadcasting_group_is_ignored(watch: Watch, waiting: Broker, peer: Peer) -> None:
    watch.rounds(1)
    join(peer, model=MessageModel.BROADCASTING)
    watch.rounds(5)
    assert waiting.housekeeping.stalls.count() == 0


async def test_deleted_topic_is_not_watched(watch: Watch, waiting: Broker) -> None:
    watch.rounds(4)
    waiting.topics.delete("T")
    watch.rounds(1)
    assert waiting.housekeeping.stalls.count() == 0


async def test_silent_members_are_named_as_cause(
    watch: Watch, waiting: Broker, peer: Peer, another_peer: Peer, log: pytest.LogCaptureFixture, mock_clock: MockClock
) -> None:
    join(another_peer, "c2")
    watch.rounds(4)
    assert waiting.context.client_requests.handle_answer(
        another_peer.as_connection, another_peer.sent[-1].reply(ResponseCode.SYSTEM_ERROR)
    )
    waiting.context.client_requests.expire(trio.current_time() + 6)
    (line,) = log.messages
    assert line.endswith("cause=silent reason=no member that answers consumes it; no answer from c1, c2")


async def test_unreadable_answer_counts_as_none(
    watch: Watch, waiting: Broker, peer: Peer, log: pytest.LogCaptureFixture
) -> None:
    watch.rounds(4)
    assert waiting.context.client_requests.handle_answer(peer.as_connection, peer.sent[-1].reply(body=b"{"))
    assert "cause=silent" in log.messages[-1]


async def test_no_member_is_asked_above_request_limit(
    watch: Watch, peer: Peer, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "LIMIT", 0)
    watch.rounds(4)
    assert not peer.sent
    assert "cause=silent" in log.messages[-1]


async def test_queues_of_one_group_are_checked_in_parts(waiting: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "_QUEUES_PER_SCAN", 3)
    waiting.topics.put(TopicConfig(topic_name="T", read_queue_nums=10, write_queue_nums=10))
    looked_at: list[int] = []
    query = waiting.groups.offsets.query

    def noted(group: str, topic: str, queue_id: int) -> int | None:
        looked_at.append(queue_id)
        return query(group, topic, queue_id)

    monkeypatch.setattr(waiting.groups.offsets, "query", noted)
    for scans in range(1, 4):  # another round is due each time
        waiting.housekeeping.stalls.scan(10 * scans)
        assert looked_at == list(range(3 * scans))
