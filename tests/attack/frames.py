"""Attacks by frames: more of them, or larger ones, than a peer may cost."""

from typing import Final

import trio

from tests.attack.measure import Attack, Target
from tests.integration.broker_wire import request
from triomq.protocol.codes import CommandFlag, RequestCode

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


ATTACKS: Final = (Attack(name="one-way-pipeline", run=_pipeline, prepare=_make_topics),)
