"""Attacks on tables and logs: more names than anybody has, and texts without end."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
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


def _frames(name: str, make: Callable[[], tuple[bytes, ...]]) -> Attack:
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

    return Attack(name=name, prepare=prepare, run=run)


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
    _frames("many-groups", _many_groups),
    _frames("wrong-subscriptions", _wrong_subscriptions),
    _frames("long-client-id", _long_client_id),
    _very_many("offsets-of-nothing", RequestCode.UPDATE_CONSUMER_OFFSET, _COMMIT),
    _very_many("locks-of-nothing", RequestCode.LOCK_BATCH_MQ, body=_LOCK),
    _very_many("client-ids", RequestCode.HEART_BEAT, body=_PRODUCER),
    _very_many("groups-by-pulls", RequestCode.PULL_MESSAGE, _PULL, options=_SMALL_TABLES),
    _very_many("topics-by-sends", RequestCode.SEND_MESSAGE_V2, send_fields(_NUMBER), options=_SMALL_TABLES),
)
