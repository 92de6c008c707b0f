"""Orderly push consumers on the cluster in memory: queues change hands without two members at one message."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.benches import QUEUE, Inbox, consumer
from tests.unit.client.consumer.fake_cluster import ADDRESS, FakeCluster, FakeInstance, as_instance
from triomq.client.consumer.config import ConsumerConfig
from triomq.protocol.codes import RequestCode
from triomq.protocol.record.message import MessageExt
from triomq.protocol.wire.command import RemotingCommand


async def until(condition: Callable[[], bool], limit_s: float = 60) -> None:
    with trio.fail_after(limit_s):
        while not condition():  # noqa: ASYNC110  # the clock jumps
            await trio.sleep(0.01)


async def test_queue_is_locked_before_offset_query_and_pull(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    """B.9 row 8: the owner before may have moved the offset until then.  The first message comes within 1 s."""
    cluster.send(QUEUE, b"0")
    inbox = Inbox()
    began = trio.current_time()
    async with consumer(inbox, cluster.instance, orderly=True):
        await until(lambda: inbox.ended == [0])
        assert trio.current_time() - began < 1
    codes = [
        command.code
        for command in cluster.requests
        if command.ext_fields.get("topic") == "T" or b'"topic":"T"' in command.body
    ]
    first = [
        codes.index(code)
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.PULL_MESSAGE)
    ]
    assert first == sorted(first)


async def test_disconnect_while_handlers_finish_does_no_harm(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    """An Apache broker keeps the lock then: it is given back all the same."""
    fake = FakeInstance(cluster)
    cluster.send(QUEUE, b"0", b"1")
    inbox = Inbox(busy_s=5)

    async def lose_connection() -> None:
        await trio.sleep(1)
        fake.consumers["G"].connection_lost(ADDRESS)

    async with trio.open_nursery() as nursery, consumer(inbox, as_instance(fake), orderly=True):
        await until(lambda: inbox.begun == [0])
        nursery.start_soon(lose_connection)
    assert inbox.begun == inbox.ended == [0]
    assert not cluster.locks


@pytest.mark.parametrize("noticed_s", [0, 22], ids=["while handlers end", "before leaving"])
async def test_leaving_stores_no_offset_without_lock(
    autojump_clock: MockClock, cluster: FakeCluster, noticed_s: float
) -> None:
    """The renewal after 20 s shows that another member has the lock."""
    cluster.send(QUEUE, b"0", b"1")
    inbox = Inbox(busy_s=25)
    async with consumer(inbox, cluster.instance, orderly=True, grace_s=60):
        await until(lambda: inbox.begun == [0])
        cluster.locks["G", QUEUE] = "another"
        await trio.sleep(noticed_s)
        cluster.committed["G", QUEUE] = 7
    assert inbox.begun == inbox.ended == [0]
    assert cluster.committed["G", QUEUE] == (7 if noticed_s else 0)
    assert cluster.locks == {("G", QUEUE): "another"}


async def test_lock_requested_during_leave_is_released(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    async def lock_slowly(command: RemotingCommand) -> RemotingCommand:
        answer = cluster._lock(command)
        await trio.sleep(0.5)
        return answer

    cluster.handlers[RequestCode.LOCK_BATCH_MQ] = lock_slowly
    async with consumer(Inbox(), cluster.instance, orderly=True):
        await until(lambda: ("G", QUEUE) in cluster.locks)
    assert not cluster.locks


async def test_queue_is_handed_over_only_after_handler_ends(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    """C.2 scenario 54: here without showing the message of the running handler twice."""
    queues = cluster.add_topic("T", 2)
    for queue in queues:
        cluster.send(queue, *(b"%d" % n for n in range(3)))
    seen: list[tuple[str, int, int]] = []
    running: set[tuple[int, int]] = set()

    def member(name: str) -> Callable[[MessageExt], object]:
        async def on_message(message: MessageExt) -> None:
            key = message.queue_id, message.queue_offset
            assert not {queue_id for queue_id, _ in running} & {message.queue_id}
            running.add(key)
            seen.append((name, *key))
            await trio.sleep(5)
            running.discard(key)

        return on_message

    inbox = Inbox()
    first, second = (as_instance(FakeInstance(cluster, name)) for name in ("a", "b"))
    async with consumer(inbox, first, orderly=True, on_message=member("a")):
        await until(lambda: len(running) == 2)
        async with consumer(inbox, second, orderly=True, on_message=member("b")):
            await until(lambda: ("b", 1, 1) in seen)
            assert trio.current_time() < 7
            await until(lambda: len(seen) == 6)
            await until(lambda: not running)
    assert sorted(key for _, *key in seen) == [[queue_id, offset] for queue_id in (0, 1) for offset in range(3)]
    assert {name for name, queue_id, offset in seen if queue_id == 1 and offset} == {"b"}


@pytest.mark.parametrize(("away_s", "ended"), [(20, [0, 1, 2]), (62, [0, 0, 1, 2])], ids=["short", "a minute"])
async def test_disconnect_stops_queues_until_locked_again(
    cluster: FakeCluster, autojump_clock: MockClock, away_s: float, ended: list[int]
) -> None:
    """Progress that could not be stored counts for a minute."""
    fake = FakeInstance(cluster)
    cluster.send(QUEUE, b"0", b"1", b"2")
    inbox = Inbox(busy_s=2)
    async with consumer(inbox, as_instance(fake), orderly=True):
        await until(lambda: inbox.begun == [0])
        cluster.down = True
        fake.consumers["G"].connection_lost(ADDRESS)
        await trio.sleep(away_s)
        assert inbox.begun == [0]
        cluster.down = False
        await until(lambda: inbox.ended[-1:] == [2])
    assert inbox.ended == ended
    assert cluster.committed["G", QUEUE] == 3


@pytest.mark.parametrize(
    ("stored_meanwhile", "goes_on_at"),
    [(None, 14), (12, 12), (33, 33), (3, 3)],
    ids=["nobody", "behind", "ahead", "reset"],
)
async def test_untouched_queue_resumes_in_place_after_disconnect(
    cluster: FakeCluster, autojump_clock: MockClock, stored_meanwhile: int | None, goes_on_at: int
) -> None:
    """The progress stored by another member counts, even if it is lower: redelivered messages keep their order."""
    fake = FakeInstance(cluster)
    cluster.send(QUEUE, *(b"%d" % number for number in range(40)))
    inbox = Inbox(busy_s=0.05)
    async with consumer(inbox, as_instance(fake), orderly=True):
        await trio.sleep(0.68)
        cluster.down = True
        fake.consumers["G"].connection_lost(ADDRESS)
        await trio.sleep(5)
        assert inbox.ended == list(range(14))
        assert cluster.committed["G", QUEUE] == 10  # later progress is known here only
        if stored_meanwhile is not None:
            cluster.committed["G", QUEUE] = stored_meanwhile
        cluster.down = False
        await until(lambda: inbox.ended[-1] == 39)
    assert inbox.ended == [*range(14), *range(goes_on_at, 40)]
    assert inbox.begun == inbox.ended
    assert cluster.committed["G", QUEUE] == 40


async def test_progress_before_disconnect_is_stored_before_handling(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    fake = FakeInstance(cluster)
    cluster.send(QUEUE, b"0", b"1")
    inbox = Inbox(busy_s=30)
    async with consumer(inbox, as_instance(fake), orderly=True):
        await trio.sleep(29)
        fake.consumers["G"].connection_lost(ADDRESS)
        await until(lambda: inbox.begun == [0, 1])
        assert cluster.committed["G", QUEUE] == 1


async def test_queue_with_unknown_first_offset_is_unlocked_again(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    cluster.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(1, remark="busy")
    inbox = Inbox()
    async with consumer(inbox, cluster.instance, orderly=True):
        await until(lambda: bool(cluster.of(RequestCode.UNLOCK_BATCH_MQ)))
        cluster.handlers.clear()
        cluster.send(QUEUE, b"0")
        await until(lambda: inbox.ended == [0])


async def test_message_failing_too_often_becomes_dead_letter(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    """C.2 scenario 58."""
    cluster.send(QUEUE, b"bad", b"good", properties={"DELAY": "3", "UNIQ_KEY": "ID"})
    seen: list[bytes] = []

    def on_message(message: MessageExt) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError

    async def handle(message: MessageExt) -> None:
        on_message(message)

    settings = ConsumerConfig(orderly_max_reconsume_times=2)
    async with consumer(Inbox(), cluster.instance, orderly=True, on_message=handle, settings=settings):
        await until(lambda: cluster.committed.get(("G", QUEUE)) == 2)
    assert seen == [b"bad"] * 3 + [b"good"]
    (command,) = cluster.of(RequestCode.SEND_MESSAGE_V2)
    fields = command.ext_fields
    assert (fields["b"], fields["j"], fields["l"]) == ("%RETRY%G", "2", "2")
    assert "DELAY\x010" in fields["i"]
    assert "RETRY_TOPIC\x01T" in fields["i"]
