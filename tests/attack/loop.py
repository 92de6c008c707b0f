"""Attacks by work: requests of one connection that take the broker long, each of them or all together."""

import itertools
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

import trio

from tests.attack.measure import Attack, Target
from tests.integration.broker_wire import Wire, pull_fields, request, send_fields
from tests.subscriptions import tag_subscription
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData
from triomq.protocol.codes import CommandFlag, RequestCode
from triomq.protocol.record.batch import encode_batch

_ONEWAY: Final = CommandFlag.ONEWAY


async def _make_topic(wire: Wire, topic: str, queues: int) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    answer = await wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == 0, answer


async def _send_all(wire: Wire, frames: Iterable[bytes]) -> None:
    """Send one-way requests, and wait until they are served."""
    await wire.send(b"".join(frames))
    await wire.send(request(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0}, opaque=7))
    while (await wire.next()).opaque != 7:
        pass


async def _repeat(target: Target, *requests: bytes) -> None:
    """Send requests again and again and read the answers, for a while."""
    async with target.connect() as wire:
        end = trio.current_time() + target.seconds
        while trio.current_time() < end:
            for each in requests:
                await wire.send(each)
            for _ in requests:
                await wire.next()


# --- a long queue -------------------------------------------------------------------------------------------

_UNITS: Final = 300_000
_PULLS: Final = 100


async def _fill(target: Target) -> None:
    messages = encode_batch((0, b"x", b"") for _ in range(1000))
    batch = request(RequestCode.SEND_BATCH_MESSAGE, send_fields("LONG", m="true"), messages)
    async with target.connect() as wire:
        for _ in range(_UNITS // 1000):
            await wire.send(batch)
            assert (await wire.next()).code == 0


async def _pull_nothing(target: Target) -> None:
    fields = pull_fields("LONG", subscription="no such tag", maxMsgNums=_UNITS)
    await _repeat(target, *[request(RequestCode.PULL_MESSAGE, fields)] * _PULLS)


# --- many offsets -------------------------------------------------------------------------------------------

_WIDE_TOPICS: Final = tuple(f"WIDE-{number}" for number in range(8))
_QUEUES: Final = 65_536
_OFFSETS: Final = 500_000


async def _commit_offsets(target: Target) -> None:
    async with target.connect() as wire:
        for topic in _WIDE_TOPICS:
            await _make_topic(wire, topic, _QUEUES)
            fields = {"consumerGroup": "G", "topic": topic, "commitOffset": 1}
            queues = range(_OFFSETS // len(_WIDE_TOPICS))
            code = RequestCode.UPDATE_CONSUMER_OFFSET
            await _send_all(wire, [request(code, {**fields, "queueId": each}, flag=_ONEWAY) for each in queues])


async def _ask_for_all_offsets(target: Target) -> None:
    clone = {"srcGroup": "G", "destGroup": "G2", "topic": "", "offline": "true"}
    await _repeat(
        target,
        request(RequestCode.CLONE_GROUP_OFFSET, clone),
        request(RequestCode.QUERY_CORRECTION_OFFSET, {"topic": _WIDE_TOPICS[0], "compareGroup": "G"}),
        request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G2", "cleanOffset": "true"}),
        request(RequestCode.GET_ALL_CONSUMER_OFFSET),
    )


async def _ask_for_all_queues(target: Target) -> None:
    await _repeat(
        target,
        request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": _WIDE_TOPICS[0]}),
        request(RequestCode.GET_CONSUME_STATS, {"topic": _WIDE_TOPICS[0], "consumerGroup": "G"}),
    )


async def _make_wide_topic(target: Target) -> None:
    async with target.connect() as wire:
        await _make_topic(wire, _WIDE_TOPICS[0], _QUEUES)


# --- many queues --------------------------------------------------------------------------------------------

_LOCKED: Final = 150_000
_DELETED: Final = 4_000


async def _lock(target: Target) -> None:
    queue = '{"brokerName":"broker-a","queueId":%d,"topic":"T"}'

    def lock(queues: int) -> bytes:
        members = ",".join(queue % number for number in range(queues))
        body = f'{{"clientId":"c","consumerGroup":"G","mqSet":[{members}]}}'
        return request(RequestCode.LOCK_BATCH_MQ, body=body.encode())

    await _repeat(target, lock(_LOCKED), lock(4_000))  # one is refused, the other is not


async def _fill_queues(target: Target) -> None:
    async with target.connect() as wire:
        await _make_topic(wire, "DELETED", _DELETED)
        code = RequestCode.SEND_MESSAGE_V2
        sends = [request(code, send_fields("DELETED", queue_id), b"x", flag=_ONEWAY) for queue_id in range(_DELETED)]
        await _send_all(wire, sends)


async def _delete_topic(target: Target) -> None:
    async with target.connect() as wire:
        assert (await wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "DELETED"})).code == 0


# --- many peers and pulls -----------------------------------------------------------------------------------

_HELD: Final = 100_000
_MEMBERS: Final = 1_500


async def _hold_pulls(target: Target) -> None:
    """One message arrives for all of them."""
    pull = request(RequestCode.PULL_MESSAGE, pull_fields("HELD", 1, sysFlag=6, suspendTimeoutMillis=600_000))
    last = request(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0}, opaque=7)
    all_held = trio.Event()

    async def read(wire: Wire) -> None:
        answers = 0
        while answers < _HELD:
            if (await wire.next()).opaque == 7:
                all_held.set()
            else:
                answers += 1

    async with target.connect() as wire, target.connect() as sender, trio.open_nursery() as nursery:
        await sender.put("HELD")
        nursery.start_soon(read, wire)
        await wire.send(pull * _HELD + last)
        await all_held.wait()
        await sender.put("HELD")


async def _join_and_leave(target: Target) -> None:
    subscriptions = [tag_subscription("T", "*", 1)]

    def join(number: int) -> bytes:
        consumer = ConsumerData(group_name="CROWD", subscription_data_set=subscriptions)
        return request(RequestCode.HEART_BEAT, body=HeartbeatData(f"c{number}", [], [consumer]).encode())

    frames = [join(number) for number in range(_MEMBERS)]
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for frame in frames:
            wire = await stack.enter_async_context(target.connect())
            nursery.start_soon(_read, wire)
            await wire.send(frame)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    await trio.sleep(2)


async def _read(wire: Wire) -> None:
    while True:
        await wire.stream.receive_some()


# --- long texts ---------------------------------------------------------------------------------------------

_KEYED: Final = 600
_KEYS: Final = 6_500


async def _send_keys(target: Target) -> None:
    keys = " ".join(f"{number:x}" for number in range(_KEYS))
    frame = request(RequestCode.SEND_MESSAGE_V2, send_fields("KEYED", i=f"KEYS\x01{keys}"), b"x", flag=_ONEWAY)
    async with target.connect() as wire:
        await _send_all(wire, [frame] * _KEYED)
        fields = {"topic": "KEYED", "key": "a", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 2**62}
        await wire.ask(RequestCode.QUERY_MESSAGE, fields)  # when all are indexed


def _check(tags: int) -> list[bytes]:
    expressions = ("||".join(f"{first}{number:x}" for number in range(tags)) for first in "abcdef")
    body = '{"clientId":"c","group":"G","subscriptionData":{"subString":"%s","topic":"T"}}'
    return [request(RequestCode.CHECK_CLIENT_CONFIG, body=(body % each).encode()) for each in expressions]


async def _check_expressions(target: Target) -> None:
    await _repeat(target, _check(1_500_000)[0], *_check(2_000) * 10)


async def _parse_sql(target: Target) -> None:
    """Each expression is another one, and as long as one may be."""
    body = '{"clientId":"c","group":"G","subscriptionData":{"subString":"%s","topic":"T","expressionType":"SQL92"}}'
    async with target.connect() as wire:
        with trio.move_on_after(target.seconds):
            for number in itertools.count(1000):
                expression = f"a={number}" + " OR a=1" * 870
                await wire.send(request(RequestCode.CHECK_CLIENT_CONFIG, body=(body % expression).encode()))
                await wire.next()


async def _send_irregular_json(target: Target) -> None:
    def irregular(size: int) -> bytes:
        return b'{"a":{0:0},"b":[' + b"{0:0}," * (size // 6) + b"0]}"

    await _repeat(
        target,
        request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=irregular(3_500_000)),
        request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=irregular(8_000)),
        request(RequestCode.REGISTER_BROKER, _REGISTRATION, irregular(3_500_000)),
        request(RequestCode.REGISTER_BROKER, _REGISTRATION, irregular(12_000)),
    )


_REGISTRATION: Final[dict[str, Any]] = {
    "brokerName": "other", "brokerAddr": "127.0.0.1:9", "clusterName": "C", "haServerAddr": "", "brokerId": 0,
    "compressed": "false", "bodyCrc32": 0,
}  # fmt: skip


ATTACKS: Final = (
    Attack(name="pulls-of-nothing", prepare=_fill, run=_pull_nothing),
    Attack(name="all-offsets", prepare=_commit_offsets, run=_ask_for_all_offsets),
    Attack(name="all-queues", prepare=_make_wide_topic, run=_ask_for_all_queues),
    Attack(name="locks", run=_lock),
    Attack(name="topic-deletion", prepare=_fill_queues, run=_delete_topic),
    Attack(name="held-pulls", run=_hold_pulls),
    Attack(name="members-leaving", run=_join_and_leave, by_many=True),
    Attack(name="many-keys", run=_send_keys),
    Attack(name="long-expressions", run=_check_expressions),
    Attack(name="long-sql", run=_parse_sql),
    Attack(name="irregular-json", run=_send_irregular_json),
)
