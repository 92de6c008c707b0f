"""Attacks on tables and logs: more names than anybody has, texts without end, and floods of requests."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import orjson
import trio

from tests.attack.measure import HONEST_TOPIC, Attack, Target
from tests.integration.broker_wire import Wire, pull_fields, request, send_fields
from triomq.protocol.codes import CommandFlag, RequestCode

_ONEWAY: Final = int(CommandFlag.ONEWAY)
_REPEATS: Final = 300_000
_PER_SEND: Final = 10_000
_PLACE: Final = b"0000000"  # of a number in a frame
_SMALL_TABLES: Final = ("--max-topics", "2000", "--max-groups", "2000")


def _heartbeat(client_id: str, groups: list[dict[str, Any]], producers: int = 0) -> bytes:
    body = {
        "clientID": client_id,
        "consumerDataSet": groups,
        "producerDataSet": [{"groupName": f"p{number}"} for number in range(producers)],
    }
    return request(RequestCode.HEART_BEAT, body=orjson.dumps(body))


@cache
def _many_groups() -> tuple[bytes, ...]:
    return (_heartbeat("many", [{"groupName": f"group-{number}"} for number in range(400_000)]),)


@cache
def _wrong_subscriptions() -> tuple[bytes, ...]:
    """Two members of one group that differ in everything, with invalid expressions; 14 MiB each."""

    def member(client_id: str, expression: str) -> bytes:
        subscriptions = [
            {"topic": f"topic-{number}", "subString": expression, "expressionType": "SQL92", "subVersion": 1}
            for number in range(95_000)
        ]
        return _heartbeat(client_id, [{"groupName": "wrong", "subscriptionDataSet": subscriptions}])

    return member("one", "a > 'it has no end, so that nobody can read it at all"), member("other", "b > 'nor this")


@cache
def _long_client_id() -> tuple[bytes, ...]:
    return (_heartbeat("\n" * 7_500_000, [{"groupName": "lines"}], 1),)


# --- subscriptions ------------------------------------------------------------------------------------------

_MEMBERS: Final = 200
_WIDE: Final = "\U0001f600"  # each character of its text takes 4 bytes


@cache
def _large_heartbeats() -> tuple[bytes, ...]:
    """Each of 660 KB: half of them with many tags, the others with a text that takes four times its length."""
    tags = [f"tag-{number:05}" for number in range(50_000)]
    many = {"subString": "*", "tagsSet": tags}
    wide = {"subString": _WIDE + "x" * 660_000}
    return tuple(
        _heartbeat(
            f"member-{number}",
            [
                {
                    "groupName": f"large-{number}",
                    "subscriptionDataSet": [{"topic": HONEST_TOPIC, **(wide if number % 2 else many)}],
                }
            ],
        )
        for number in range(_MEMBERS)
    )


def _check(expression: str) -> bytes:
    subscription = {"topic": HONEST_TOPIC, "subString": expression, "expressionType": "SQL92"}
    body = {"clientId": "c", "group": "G", "subscriptionData": subscription}
    return request(RequestCode.CHECK_CLIENT_CONFIG, body=orjson.dumps(body))


def _repeated(
    name: str, frames: Iterable[bytes], prepare: Callable[[Target], Awaitable[None]] | None = None, at_once: int = 1
) -> Attack:
    """Send requests again and again, each of them several times at once, and read the answers."""
    kept = tuple(frames)

    async def run(target: Target) -> None:
        async with target.connect() as wire:
            with trio.move_on_after(target.seconds):
                for frame in cycle(kept):
                    await wire.send(frame * at_once)
                    for _ in range(at_once):
                        await wire.next()

    return Attack(name=name, run=run) if prepare is None else Attack(name=name, run=run, prepare=prepare)


def _sql_tokens() -> Iterator[bytes]:
    """Comments without an end, none like another."""
    for number in range(500):
        yield _check(f"a{number}=1 OR /*@" + "/*@" * 2000)
        yield _check(f"a{number}=1" + " OR a=--1" * 600)


_WRONG: Final = "a=1 OR " * 870 + "a >"
_TERMS: Final = " OR ".join(["zz=1"] * 700)
_LONG_PROPERTIES: Final = (
    "zz\x01\x02" * 8_000,
    "zz\x01" + "1" * 32_000,
    "".join(f"{chr(97 + n % 26)}\x01b\x02" for n in range(8_000)),
)


async def _send_long_properties(target: Target) -> None:
    async with target.connect() as wire:
        for number in range(300):
            await wire.put("LONG-PROPERTIES", b"x", i=_LONG_PROPERTIES[number % len(_LONG_PROPERTIES)])


_FILTERED_PULL: Final = request(
    RequestCode.PULL_MESSAGE, pull_fields("LONG-PROPERTIES", subscription=_TERMS, expressionType="SQL92")
)


def _frames(name: str, make: Callable[[], tuple[bytes, ...]], *, by_many: bool = False) -> Attack:
    """Send each frame on a new connection, and wait for the answer or the end."""

    async def prepare(_target: Target) -> None:
        make()
        await trio.lowlevel.checkpoint()

    async def run(target: Target) -> None:
        async with trio.open_nursery() as nursery:
            for frame in make():
                nursery.start_soon(send, target, frame)

    async def send(target: Target, frame: bytes) -> None:
        async with target.connect() as wire:
            await wire.send(frame)
            await wire.receive()
            await trio.sleep(target.seconds)  # what the broker logs of its members, it logs within some seconds

    return Attack(name=name, prepare=prepare, run=run, by_many=by_many)


def _very_many(
    name: str, code: int, fields: Mapping[str, Any] | None = None, body: object = None, options: tuple[str, ...] = ()
) -> Attack:
    """Send very many one-way requests, each with another number in the place of zeros."""
    content = b"" if body is None else orjson.dumps(body)
    head, *rest = request(code, fields, content, flag=_ONEWAY).replace(b"%", b"%%").split(_PLACE)
    pattern = b"%07d".join((head, *rest))

    def parts() -> Iterator[bytes]:
        for first in range(0, _REPEATS, _PER_SEND):
            yield b"".join([pattern % ((number,) * len(rest)) for number in range(first, first + _PER_SEND)])

    async def run(target: Target) -> None:
        async with target.connect() as wire:
            for part in parts():
                await wire.send(part)
            await _served(wire)

    return Attack(name=name, run=run, options=options)


async def _served(wire: Wire) -> None:
    """Return when all that was sent has been served."""
    await wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": HONEST_TOPIC, "queueId": 0})


# --- floods -------------------------------------------------------------------------------------------------

_TOPICS: Final = 1000
_REQUEST: Final = request(RequestCode.GET_ALL_TOPIC_CONFIG, flag=CommandFlag.ONEWAY)
_PIPELINED_BYTES: Final = 1_700_000


async def _make_topics(target: Target) -> None:
    async with target.connect() as wire:
        for number in range(_TOPICS):
            await wire.put(f"topic-{number}")


async def _pipeline(target: Target) -> None:
    """Nobody waits for the answers."""
    async with target.connect() as wire:
        await wire.send(_REQUEST * (_PIPELINED_BYTES // len(_REQUEST)))
        await trio.sleep(target.seconds)


_NUMBERS: Final = 20_000
_DIGITS: Final = 5
_WINDOW: Final = 64
_SENDS: Final = b"".join(
    request(RequestCode.SEND_MESSAGE_V2, send_fields(f"topic-{number:0{_DIGITS}}"), b"x") for number in range(_NUMBERS)
)
_SEND_BYTES: Final = len(_SENDS) // _NUMBERS


async def _send_to_new_topics(target: Target) -> None:
    """Send to a new topic each time, with many sends open."""
    step = _SEND_BYTES * _WINDOW
    async with target.connect() as wire:
        with trio.move_on_after(target.seconds):
            for begin in range(0, len(_SENDS), step):
                part = _SENDS[begin : begin + step]
                await wire.send(part)
                for _ in range(len(part) // _SEND_BYTES):
                    await wire.next()


_ADDRESS: Final = "127.0.0.2"
_AT_ONCE: Final = 50
_FLOOD_FIELDS: Final = send_fields("FLOOD", g="1700000000000", i="UNIQ_KEY\x01C0A8", n="broker-a")
_FLOOD: Final = request(RequestCode.SEND_MESSAGE_V2, _FLOOD_FIELDS, bytes(16 * 1024)) * _AT_ONCE


async def _flood(target: Target) -> None:
    """Send as fast as the broker refuses: unlimited, these would be hundreds of megabytes."""
    stream = await trio.open_tcp_stream("127.0.0.1", target.port, local_address=_ADDRESS)
    async with stream, trio.open_nursery() as nursery:

        async def read() -> None:
            while await stream.receive_some():
                pass

        nursery.start_soon(read)
        with trio.move_on_after(target.seconds):
            while True:
                await stream.send_all(_FLOOD)
        nursery.cancel_scope.cancel()


_NUMBER: Final = _PLACE.decode()
_COMMIT: Final = {"consumerGroup": f"G{_NUMBER}", "topic": HONEST_TOPIC, "queueId": f"1{_NUMBER}", "commitOffset": 7}
_LOCK: Final = {
    "clientId": "locker",
    "consumerGroup": "locker",
    "mqSet": [{"topic": _NUMBER, "brokerName": "broker-a", "queueId": queue_id} for queue_id in range(4)],
}
_PRODUCER: Final = {"clientID": _NUMBER, "producerDataSet": [{"groupName": "P"}]}
_PULL: Final = pull_fields(HONEST_TOPIC, queue_id=1, consumerGroup=f"G{_NUMBER}")

ATTACKS: Final = (
    Attack(name="one-way-pipeline", run=_pipeline, prepare=_make_topics),
    Attack(name="topics-by-sending", run=_send_to_new_topics),
    Attack(name="flood-above-quota", run=_flood, options=("--quotas", str(Path(__file__).with_name("quotas.yml")))),
    _frames("many-groups", _many_groups),
    _frames("wrong-subscriptions", _wrong_subscriptions),
    _frames("long-client-id", _long_client_id),
    _frames("large-heartbeats", _large_heartbeats, by_many=True),
    _repeated("sql-tokens", _sql_tokens()),
    _repeated("wrong-sql", [_check(_WRONG)], at_once=50),
    _repeated("sql-on-long-properties", [_FILTERED_PULL], _send_long_properties, at_once=20),
    _very_many("offsets-of-nothing", RequestCode.UPDATE_CONSUMER_OFFSET, _COMMIT),
    _very_many("locks-of-nothing", RequestCode.LOCK_BATCH_MQ, body=_LOCK),
    _very_many("client-ids", RequestCode.HEART_BEAT, body=_PRODUCER),
    _very_many("groups-by-pulls", RequestCode.PULL_MESSAGE, _PULL, options=_SMALL_TABLES),
    _very_many("topics-by-sends", RequestCode.SEND_MESSAGE_V2, send_fields(_NUMBER), options=_SMALL_TABLES),
)
