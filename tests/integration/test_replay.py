"""Messages of a time span are delivered again to another group, at a running broker."""

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from tests.integration.broker_wire import wait_for
from tests.integration.cli_tools import complaint, ok, read_line, running
from tests.integration.test_group_admin import consumer
from tests.processes import start_triomq
from triomq.client import (
    Admin,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
)
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.errors import ClientError, ConfigError, NoRouteError

EVER = (datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))


async def send(namesrv: str, count: int, pause: Callable[[int], float] = lambda _: 0) -> None:
    async with Producer("P", namesrv=namesrv) as producer:
        for number in range(count):
            tags, properties = "aabb"[number % 4], {"color": "red"}  # each tag in both queues
            await producer.send(Message("T", b"%d" % number, tags=tags, keys=["k"], properties=properties, flag=7))
            await trio.sleep(pause(number))


def span(messages: list[MessageExt]) -> tuple[datetime, datetime]:
    """The store times of the first and the last message."""
    times = sorted(message.store_timestamp for message in messages)
    begin, end = (datetime.fromtimestamp(time / 1000, UTC) for time in (times[0], times[-1]))
    return begin, end


async def test_replay_of_time_span_reaches_only_target_group(namesrv: str, admin: Admin) -> None:
    first: list[MessageExt] = []
    second: list[MessageExt] = []
    third: list[MessageExt] = []
    await send(namesrv, 40, pause=lambda number: 0.002 if number % 4 == 3 else 0)
    async with consumer(namesrv, first, tags="a"), consumer(namesrv, third, "G3"):
        await wait_for(lambda: (len(first), len(third)) == (20, 40))
        async with consumer(namesrv, second, "G2", tags="b", start="latest"):
            wanted = [message for message in first if 8 <= int(message.body) < 28]
            before = await admin.group_lag("G")
            while sum(queue.lag for queue in before):  # the offsets of the last messages are on their way
                before = await admin.group_lag("G")
            plan = await admin.plan_replay("G", "G2", *span(wanted))
            assert (plan.is_online, [queue.queue.topic for queue in plan.queues]) == (True, ["T", "T"])
            assert 18 <= sum(queue.messages for queue in plan.queues) <= 20  # with those of the other tag between
            originals: list[MessageExt] = []
            assert await admin.replay(plan, speed=None, on_sent=originals.append) == 10
            await wait_for(lambda: len(second) == 10)
            assert await admin.group_lag("G") == before
    times = [message.store_timestamp for message in originals]
    assert times == sorted(times)
    assert {message.queue_id for message in originals[:4]} == {0, 1}
    copies = {message.body: message for message in second}
    for message in wanted:
        copy = copies.pop(message.body)
        same = ("topic", "tags", "keys", "message_id", "user_properties", "born_timestamp", "flag", "reconsume_times")
        assert [getattr(copy, name) for name in same] == [getattr(message, name) for name in same]
        assert copy.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
    assert (copies, len(first), len(third)) == ({}, 20, 40)


async def test_replay_to_idle_group_is_delivered_later(namesrv: str, admin: Admin) -> None:
    """No retry is allowed: that is for failures, and a replayed message has not failed."""
    seen: list[MessageExt] = []
    await admin.create_group(SubscriptionGroupConfig("G2", retry_max_times=0))
    with pytest.raises(NoRouteError, match="start a consumer"):
        await admin.plan_replay("G", "G2", *EVER, topics=["T"])
    async with consumer(namesrv, seen, "G2", tags="z"):
        pass
    await send(namesrv, 3)
    with pytest.raises(ClientError, match="name the topics"):
        await admin.plan_replay("G", "G2", *EVER)
    plan = await admin.plan_replay("G", "G2", *EVER, topics=["T"])
    assert (plan.is_online, sum(queue.messages for queue in plan.queues)) == (False, 3)
    await admin.replay(plan, speed=None)
    assert await admin.dead_letters("G2") == []
    async with consumer(namesrv, seen, "G2", tags="z", fails=True):
        with trio.fail_after(30):
            while len(letters := await admin.dead_letters("G2")) < 3:  # noqa: ASYNC110  # no event to wait for
                await trio.sleep(0.02)
    assert sorted(message.body for message in seen) == [b"0", b"1", b"2"]
    assert {letter.original_topic for letter in letters} == {"T"}


async def test_what_cannot_be_replayed_is_refused(namesrv: str, admin: Admin) -> None:
    async with LitePullConsumer("G2", namesrv=namesrv) as member:
        await member.subscribe("T")
        with pytest.raises(ClientError, match="only push consumers"):
            await admin.plan_replay("G", "G2", *EVER, topics=["T"])
    async with consumer(namesrv, [], "G3"):
        with pytest.raises(NoRouteError, match="unknown"):
            await admin.plan_replay("G", "G3", *EVER, topics=["unknown"])
        with pytest.raises(ConfigError, match="before the begin"):
            await admin.plan_replay("G", "G3", *reversed(EVER), topics=["T"])
        plan = await admin.plan_replay("G", "G3", *EVER, topics=["T"])
        assert [(queue.messages, queue.first_ms, queue.last_ms) for queue in plan.queues] == [(0, None, None)] * 2
        assert await admin.replay(plan) == 0
        with pytest.raises(ConfigError, match="above 0"):
            await admin.replay(plan, speed=0)


def test_the_command_counts_delivers_and_is_interrupted(tmp_path: Path) -> None:
    words = ("group", "replay", "G", "--into", "G2", "--from", "-1h")
    with start_triomq(tmp_path) as broker:
        namesrv = broker.namesrv
        ok("topic", "create", "T", "--queues", "1", namesrv=namesrv)
        for line in (b"one\n", b"two\n"):
            ok("produce", "T", namesrv=namesrv, stdin=line)
        ok("consume", "T", "--group", "G", "--count", "2", namesrv=namesrv)
        assert "group 'G2' has no retry topic yet" in complaint(1, *words, namesrv=namesrv)
        with running("consume", "T", "--group", "G2", namesrv=namesrv) as member:
            assert [read_line(member), read_line(member)] == ["one\n", "two\n"]
            result = json.loads(ok(*words, "--dry-run", "--json", namesrv=namesrv))
            (queue,) = result.pop("queues")
            assert result == {
                "group": "G", "into": "G2", "dry_run": True, "online": True, "sent": 0, "last_stored_ms": None
            }  # fmt: skip
            assert (queue["topic"], queue["begin_offset"], queue["messages"]) == ("T", 0, 2)
            assert queue["last_ms"] - queue["first_ms"] >= 10
            text = ok(*words, "--dry-run", namesrv=namesrv)
            assert text.splitlines()[-1] == "2 messages of group G would be delivered to group G2"
            text = ok(*words, "--speed", "max", namesrv=namesrv)
            assert text == "2 messages of group G delivered to group G2\n"
            assert [read_line(member), read_line(member)] == ["one\n", "two\n"]
            with running(*words, "--speed", "0.0001", "--json", namesrv=namesrv) as slow:
                assert read_line(member) == "one\n"
                slow.send_signal(signal.SIGINT)
                result = json.loads(slow.communicate(timeout=30)[0])
            assert (slow.returncode, result["sent"], result["last_stored_ms"]) == (130, 1, queue["first_ms"])
            seconds = timedelta(milliseconds=1).total_seconds() + queue["first_ms"] / 1000
            rest = datetime.fromtimestamp(seconds, UTC).isoformat()
            assert ok(*words[:-1], rest, namesrv=namesrv).startswith("1 message of group G delivered")
            assert read_line(member) == "two\n"
