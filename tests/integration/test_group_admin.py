"""Administration of groups against a running broker: their state, resets, dead letters."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
import trio

from tests.integration.broker_wire import wait_for
from triomq.broker.server import Broker
from triomq.client import (
    Admin,
    ClientConfig,
    ConsumerConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
)
from triomq.client.cluster.pull import PullResult
from triomq.protocol.errors import ClientError, IllegalNameError, NoRouteError
from triomq.protocol.host import encode_host
from triomq.protocol.record.compression import compress
from triomq.protocol.record.properties import encode_properties
from triomq.storage.append import entry
from triomq.storage.reading.cold_read import finish

GROUP = "G"


async def send(namesrv: str, *bodies: bytes, topic: str = "T") -> None:
    async with Producer("P", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tags="t", keys=["k"], properties={"color": "red"}))


def consumer(
    namesrv: str,
    seen: list[MessageExt],
    group: str = GROUP,
    *,
    topic: str = "T",
    tags: str = "*",
    start: Literal["earliest", "latest"] = "earliest",
    fails: bool = False,
) -> AbstractAsyncContextManager[PushConsumer]:
    async def on_message(message: MessageExt) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(message)
        if fails:
            raise ValueError("refused")

    return PushConsumer(
        group,
        namesrv=namesrv,
        on_message=on_message,
        subscriptions={topic: tags},
        start=start,
        settings=ConsumerConfig(max_reconsume_times=0),
    )


@pytest.mark.parametrize(("namespace", "length"), [("", 120), ("tenant", 113)])
async def test_group_name_leaves_room_for_retry_topic(namesrv: str, admin: Admin, namespace: str, length: int) -> None:
    config = ClientConfig(namespace=namespace or None)

    async def enter(name: str, model: MessageModel = MessageModel.CLUSTERING) -> None:
        async with PushConsumer(
            name, namesrv=namesrv, config=config, subscriptions={"T": "*"}, on_message=print, model=model
        ):
            pass

    for kind in (None, MessageModel.BROADCASTING):
        await enter("g" * (length + (kind is not None)), kind or MessageModel.CLUSTERING)
    with pytest.RaisesGroup(IllegalNameError, allow_unwrapped=True, flatten_subgroups=True):
        await enter("g" * (length + 1))


# --- state --------------------------------------------------------------------------------------------------


async def test_members_are_listed_with_queues_and_progress(namesrv: str, admin: Admin) -> None:
    seen: list[MessageExt] = []
    async with consumer(namesrv, seen) as member:
        await member.wait_assigned()
        await send(namesrv, b"1", b"2", b"3")
        await wait_for(lambda: len(seen) == 3)
        state = await admin.group_state(GROUP, "T")
        assert state.members is not None
        (connection,) = state.members.connection_set
        assert [queue.owners for queue in state.queues] == [(connection.client_id,)] * 2
        assert [queue.stall for queue in state.queues] == [None, None]
        assert state.duplicate_client_ids == ()
        assert state.subscription_differences == ()


async def test_members_that_subscribe_differently_are_shown(namesrv: str, admin: Admin) -> None:
    await admin.create_topic("U")
    async with consumer(namesrv, []) as first, consumer(namesrv, [], topic="U") as second:
        await first.wait_assigned()
        await second.wait_assigned()
        differences = (await admin.group_state(GROUP)).subscription_differences
        assert [difference.topic for difference in differences] == ["T", "U"]


# --- resets -------------------------------------------------------------------------------------------------


async def test_a_group_without_members_is_reset_at_once(broker: Broker, namesrv: str, admin: Admin) -> None:
    """C.2 scenario 61, beyond it: the broker refuses, and the client stores the offsets itself."""
    await send(namesrv, b"1", b"2", b"3", b"4")
    ends = {queue.queue_id: await admin.max_offset(queue) for queue in await admin.topic_stats("T")}
    broker.groups.offsets.commit(GROUP, "T", 0, 1)
    planned = await admin.reset_offsets(GROUP, "T", "latest", dry_run=True)
    assert not planned.is_online
    assert finish(broker.groups.offsets.of_group(GROUP)) == {"T": {0: 1}}
    assert [(change.before, change.after) for change in planned.changes] == [(1, ends[0]), (None, ends[1])]
    assert await admin.reset_offsets(GROUP, "T", "latest") == planned
    assert finish(broker.groups.offsets.of_group(GROUP)) == {"T": ends}
    await admin.reset_offsets(GROUP, "T", "earliest")
    assert finish(broker.groups.offsets.of_group(GROUP)) == {"T": {0: 0, 1: 0}}


async def test_offline_group_resets_to_first_message_of_millisecond(broker: Broker, namesrv: str, admin: Admin) -> None:
    queue, other = await admin.topic_stats("T")
    async with Producer("P", namesrv=namesrv) as producer, PullConsumer(GROUP, namesrv=namesrv) as pull:
        await producer.send_batch([Message("T", b"%d" % number) for number in range(30)], queue=queue)
        pulled = await pull.pull(queue, 0)
    last_ms = pulled.messages[-1].store_timestamp
    first = next(message.queue_offset for message in pulled.messages if message.store_timestamp == last_ms)
    for to_ms, wanted in ((last_ms, first), (last_ms + 60_000, 30)):
        done = await admin.reset_offsets(GROUP, "T", datetime.fromtimestamp(to_ms / 1000, UTC))
        assert [(change.queue, change.after) for change in done.changes] == [(queue, wanted), (other, 0)]
        assert finish(broker.groups.offsets.of_group(GROUP)) == {"T": {0: wanted, 1: 0}}


async def test_online_members_resume_from_reset_offset(namesrv: str, admin: Admin) -> None:
    """C.2 scenario 61."""
    await send(namesrv, b"1", b"2", b"3")
    seen: list[MessageExt] = []
    async with consumer(namesrv, seen):
        await wait_for(lambda: len(seen) == 3)
        done = await admin.reset_offsets(GROUP, "T", "earliest")
        assert done.is_online
        await wait_for(lambda: len(seen) >= 6)
    assert sorted(message.body for message in seen[3:6]) == [b"1", b"2", b"3"]


async def test_lite_pull_member_resumes_both_queues_after_reset(namesrv: str, admin: Admin) -> None:
    """C.2 scenario 61, for a member that polls with auto-commit: messages polled earlier do not undo the reset."""
    await send(namesrv, b"1", b"2", b"3")
    async with LitePullConsumer(GROUP, namesrv=namesrv, start="earliest") as member:
        await member.subscribe("T")
        await _poll(member, 3)
        done = await admin.reset_offsets(GROUP, "T", "latest")
        ends = [change.after for change in done.changes]
        assert sum(ends) == 3
        await wait_for(lambda: [member.position(change.queue) for change in done.changes] == ends)
        await admin.reset_offsets(GROUP, "T", "earliest")
        assert await _poll(member, 3) == [b"1", b"2", b"3"]


async def _poll(member: LitePullConsumer, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        got += [message.body for message in await member.poll()]
    return sorted(got)


async def test_reset_of_missing_topic_fails(admin: Admin) -> None:
    with pytest.raises(NoRouteError):
        await admin.reset_offsets(GROUP, "unknown", "latest")


# --- dead letters -------------------------------------------------------------------------------------------


@pytest.fixture
async def dead(namesrv: str, admin: Admin) -> Admin:
    """Five messages that the group gave up."""
    await send(namesrv, *(b"%d" % number for number in range(5)))
    seen: list[MessageExt] = []
    async with consumer(namesrv, seen, fails=True):
        with trio.fail_after(30):
            while sum(count.messages for count in await admin.dead_letter_counts()) < 5:  # noqa: ASYNC110  # as above
                await trio.sleep(0.05)
    return admin


async def messages_of(namesrv: str, topic: str) -> list[MessageExt]:
    found = []
    async with PullConsumer("reader", namesrv=namesrv) as pull:
        for queue in await pull.queues(topic):
            found += (await pull.pull(queue, 0)).messages
    return found


async def test_dead_letters_are_resent_once_in_original_form(namesrv: str, dead: Admin) -> None:
    letters = await dead.dead_letters(GROUP)
    assert [(letter.original_topic, letter.is_redriven) for letter in letters] == [("T", False)] * 5
    sent: list[MessageExt] = []
    assert await dead.redrive(GROUP, limit=2, on_sent=sent.append) == (2, 0, 3)
    assert [message.body for message in sent] == [letter.message.body for letter in letters[:2]]
    assert [letter.is_redriven for letter in await dead.dead_letters(GROUP, 3)] == [True, True, False]
    assert await dead.redrive(GROUP) == (3, 0, 0)
    assert await dead.redrive(GROUP) == (0, 0, 0)
    assert await dead.dead_letter_counts() == [(GROUP, 5, 5)]
    assert await dead.redrive(GROUP, again=True, limit=2, dry_run=True) == (2, 0, 3)
    back = await messages_of(namesrv, "T")
    assert sorted(message.body for message in back) == sorted([b"%d" % number for number in range(5)] * 2)
    for message in back:
        assert (message.tags, message.keys, message.user_properties) == ("t", ("k",), {"color": "red"})
        assert message.reconsume_times == 0
        assert (
            not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "REAL_TOPIC", "DELAY"}
            & message.properties.keys()
        )


async def test_interrupted_resend_records_sent_messages(namesrv: str, dead: Admin) -> None:
    with trio.CancelScope() as scope:

        def third_time(message: MessageExt) -> None:
            if message.queue_offset == 2:
                scope.cancel()

        await dead.redrive(GROUP, on_sent=third_time)
    assert scope.cancelled_caught
    assert await dead.dead_letter_counts() == [(GROUP, 5, 3)]
    assert await dead.redrive(GROUP) == (2, 0, 0)
    assert len(await messages_of(namesrv, "T")) == 10


async def test_deleted_original_topic_is_not_recreated(dead: Admin) -> None:
    await dead.delete_topic("T")
    with pytest.raises(NoRouteError):
        await dead.redrive(GROUP)
    assert "T" not in await dead.topics()
    assert await dead.dead_letter_counts() == [(GROUP, 5, 0)]


async def test_dead_letter_of_unknown_origin_stays(namesrv: str, dead: Admin) -> None:
    await send(namesrv, b"stray", topic="%DLQ%G")
    assert await dead.redrive(GROUP) == (5, 1, 0)
    assert await dead.redrive(GROUP) == (0, 0, 0)


async def test_failed_dead_letter_resend_does_not_block_others(
    broker: Broker, namesrv: str, dead: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    compressed, host = 1, encode_host("127.0.0.1", 1)
    origin = encode_properties({"RETRY_TOPIC": "T"})
    large = bytes(5 * 1024**2)
    for body, sys_flag, properties in (
        (b"no zlib", compressed, origin),
        (b"x", 0x401, origin),  # compressed in no way that there is
        (b"x", 0, origin + b"\x02a\x01b\x01c"),
        (compress(large), compressed, origin),  # more than a producer's default limit
        (b"behind", 0, origin),
    ):
        queue = broker.store.queue("%DLQ%G", 0)
        broker.store.append([entry(queue, body, properties, sys_flag=sys_flag, born_host=host, store_host=host)])
    assert await dead.redrive(GROUP, dry_run=True) == (7, 3, 0)
    assert await dead.redrive(GROUP) == (7, 3, 0)
    assert "dead letter not sent back" in caplog.text
    assert {large, b"behind"} <= {message.body for message in await messages_of(namesrv, "T")}


async def test_lost_dead_letters_make_list_no_shorter(dead: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    pull = PullConsumer.pull

    async def without_first(self: PullConsumer, *args: Any, **kwargs: Any) -> PullResult:
        """Pass the first message by, as brokers do with a damaged one."""
        found = await pull(self, *args, **kwargs)
        return found._replace(messages=[message for message in found.messages if message.queue_offset])

    monkeypatch.setattr(PullConsumer, "pull", without_first)
    assert [letter.message.queue_offset for letter in await dead.dead_letters(GROUP, 2)] == [1, 2]


async def test_unreadable_dead_letters_raise_error_with_remedy(namesrv: str, admin: Admin) -> None:
    await admin.create_topic("%DLQ%G", queues=1, perm=2)
    async with Admin(namesrv=namesrv) as fresh:
        with pytest.raises(ClientError, match="triomq topic create '%DLQ%G'"):
            await fresh.dead_letters(GROUP)
