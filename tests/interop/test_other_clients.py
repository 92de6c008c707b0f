"""Unmodified clients of Node (``ali-ons``) and Rust (``rocketmq-client-rust``) against our broker.

With ``INTEROP_NAMESRV=HOST:PORT`` against the broker behind that name server, such as one that ``kit/run-apache.sh``
started with ``--set "messageDelayLevel=1s 1s ..."``.  The Rust client reads routes of RocketMQ 5 only, and ours.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.interop.other_clients import Client, Command, Consumer, node_command, rust_command
from tests.interop.suite_tools import consume, fresh, new_topic, until
from tests.processes import start_triomq

pytestmark = pytest.mark.slow

LIMIT_S: Final = 60
#: Each retry waits for one of these levels; the usual ones would make the test long.
DELAYS: Final = " ".join(["1s"] * 18)

Sent = dict[str, str]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if other := os.environ.get("INTEROP_NAMESRV"):
        yield other
        return
    with start_triomq(tmp_path_factory.mktemp("triomq"), "--delay-levels", DELAYS) as broker:
        yield broker.namesrv


@pytest.fixture(scope="module", params=[node_command, rust_command], ids=["node", "rust"])
def command(request: pytest.FixtureRequest) -> Command:
    built: Command = request.param()
    return built


@pytest.fixture
def client(command: Command, namesrv: str, tmp_path: Path) -> Client:
    return Client(command, namesrv, tmp_path)


def messages(count: int, tags: str = "t") -> list[Sent]:
    """Messages with different bodies; the tags, one letter each, in turn."""
    return [
        {"body": f"{fresh('é')} {number}", "tag": tags[number % len(tags)], "key": f"key-{number}"}
        for number in range(count)
    ]


def bodies(sent: list[Sent]) -> list[str]:
    return [each["body"] for each in sent]


async def test_consumers_get_what_was_sent(client: Client, namesrv: str) -> None:
    topic, sent = await new_topic(namesrv), [*messages(5), {"body": "long " * 4000, "tag": "t", "key": "key-long"}]
    with trio.fail_after(LIMIT_S):
        results = await client.send(topic, sent)
        got = await consume(namesrv, topic, len(sent))
    assert sorted((m.body.decode(), m.tags, m.keys, m.queue_id, m.queue_offset) for m in got) == sorted(
        (each["body"], each["tag"], (each["key"],), result["queue"], result["offset"])
        for each, result in zip(sent, results, strict=True)
    )


@pytest.mark.parametrize("command", [pytest.param(rust_command, id="rust")], indirect=True)
async def test_a_send_makes_its_topic(client: Client, namesrv: str) -> None:
    topic, sent = fresh("made"), messages(5)
    with trio.fail_after(LIMIT_S):
        await client.send(topic, sent)
        got = await consume(namesrv, topic, len(sent))
    assert sorted(message.body.decode() for message in got) == sorted(bodies(sent))


@pytest.mark.parametrize("command", [pytest.param(node_command, id="node")], indirect=True)
async def test_ali_ons_sends_to_known_topics_only(client: Client) -> None:
    """It does not ask for the default topic's route, whatever the broker."""
    with trio.fail_after(LIMIT_S), pytest.raises(AssertionError, match="RouteInfoFromNameServer is not exist"):
        await client.send(fresh("unknown"), messages(1))


async def test_a_consumer_gets_the_tags_it_wants(client: Client, namesrv: str) -> None:
    topic, sent = await new_topic(namesrv), messages(20, tags="abcd")
    wanted = [each for each in sent if each["tag"] in "ac"]
    with trio.fail_after(LIMIT_S):
        await client.send(topic, sent)
        async with client.consumer(topic, fresh("group"), "a||c") as consumer:
            await consumer.wait_count(len(wanted))
    assert sorted((each.body, each.tag, each.key) for each in consumer.got) == sorted(
        (each["body"], each["tag"], each["key"]) for each in wanted
    )


async def test_messages_of_a_sharding_key_stay_in_order(client: Client, namesrv: str) -> None:
    """No key of these belongs to queue 0 of 4 by the MD5 of `ali-ons`, which sends such messages to any queue."""
    topic, sent = await new_topic(namesrv), [each | {"shard": each["tag"]} for each in messages(60, tags="abe")]
    with trio.fail_after(LIMIT_S):
        async with client.consumer(topic, fresh("group"), orderly=True) as consumer:
            await client.send(topic, sent)
            await consumer.wait_count(len(sent))
    for shard in "abe":
        got = [each for each in consumer.got if each.tag == shard]
        assert [each.body for each in got] == [each["body"] for each in sent if each["tag"] == shard]
        assert len({each.queue for each in got}) == 1


async def until_shared(client: Client, topic: str, *members: Consumer) -> None:
    """Send until each of the 8 queues goes to one member and each member has as many; nothing may be lost meanwhile."""
    queues: list[set[int]] = []
    while sorted(queue for owned in queues for queue in owned) != [*range(8)] or len({*map(len, queues)}) != 1:
        new = messages(16)
        await client.send(topic, new)

        async def all_came(wanted: frozenset[str] = frozenset(bodies(new))) -> bool:
            return wanted <= {each.body for member in members for each in member.got}

        await until(all_came)
        queues = [{each.queue for each in member.got if each.body in bodies(new)} for member in members]


async def test_members_share_the_queues(client: Client, namesrv: str) -> None:
    topic, group = await new_topic(namesrv, queues=8), fresh("group")
    with trio.fail_after(LIMIT_S):
        async with client.consumer(topic, group) as one:
            async with client.consumer(topic, group) as other:
                await until_shared(client, topic, one, other)
            await until_shared(client, topic, one)


async def test_failed_messages_come_again(client: Client, namesrv: str) -> None:
    topic, sent = await new_topic(namesrv), messages(3)
    with trio.fail_after(LIMIT_S):
        await client.send(topic, sent)
        async with client.consumer(topic, fresh("group"), failures=2) as consumer:
            await consumer.wait_count(9)
    assert sorted((each.body, each.tag, each.key, each.times) for each in consumer.got) == sorted(
        (each["body"], each["tag"], each["key"], times) for each in sent for times in range(3)
    )


async def test_members_of_a_broadcast_group_get_all(client: Client, namesrv: str) -> None:
    topic, group, sent = await new_topic(namesrv), fresh("group"), messages(12)
    with trio.fail_after(LIMIT_S):
        async with (
            client.consumer(topic, group, broadcast=True) as one,
            client.consumer(topic, group, broadcast=True) as other,
        ):
            await client.send(topic, sent)
            for member in (one, other):
                await member.wait_count(len(sent))
    assert sorted(one.bodies()) == sorted(other.bodies()) == sorted(bodies(sent))


async def test_restarted_member_continues_where_it_ended(client: Client, namesrv: str) -> None:
    topic, group = await new_topic(namesrv, queues=1), fresh("group")
    with trio.fail_after(LIMIT_S):
        for _ in range(2):
            sent = messages(10)
            await client.send(topic, sent)
            async with client.consumer(topic, group) as consumer:
                await consumer.wait_count(len(sent))
            assert sorted(consumer.bodies()) == sorted(bodies(sent))
