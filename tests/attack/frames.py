"""Attacks by frames: more of them, or larger ones, than a peer may cost."""

from contextlib import AsyncExitStack
from typing import Final

import trio

from tests.attack.measure import Attack, Target
from tests.integration.broker_wire import Wire, request
from triomq.protocol.codes import CommandFlag, RequestCode

_TOPICS: Final = 1000
_REQUEST: Final = request(RequestCode.GET_ALL_TOPIC_CONFIG, flag=CommandFlag.ONEWAY)
_PIPELINED_BYTES: Final = 1_700_000
_PEERS: Final = 200
_FRAME_BYTES: Final = 16_000_000


async def _make_topics(target: Target) -> None:
    async with target.connect() as wire:
        for number in range(_TOPICS):
            await wire.put(f"topic-{number}")


async def _pipeline(target: Target) -> None:
    """Nobody waits for the answers."""
    async with target.connect() as wire:
        await wire.send(_REQUEST * (_PIPELINED_BYTES // len(_REQUEST)))
        await trio.sleep(target.seconds)


async def _leave_frames_unfinished(target: Target) -> None:
    begun = _FRAME_BYTES.to_bytes(4) + bytes(_FRAME_BYTES - 1024)

    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(target.connect()) for _ in range(_PEERS)]
        with trio.move_on_after(target.seconds):
            async with trio.open_nursery() as nursery:
                for wire in wires:
                    nursery.start_soon(_send, wire, begun)
            await trio.sleep_forever()


async def _send(wire: Wire, data: bytes) -> None:
    try:
        await wire.send(data)
    except trio.BrokenResourceError:  # the broker had enough
        return


ATTACKS: Final = (
    Attack(name="one-way-pipeline", run=_pipeline, prepare=_make_topics),
    Attack(name="unfinished-frames", run=_leave_frames_unfinished),
)
