"""Attacks by names: useless topics, each created by a send."""

from typing import Final

import trio

from tests.attack.measure import Attack, Target
from tests.integration.broker_wire import request, send_fields
from triomq.protocol.codes import RequestCode

_NUMBERS: Final = 20_000
_DIGITS: Final = 5
_WINDOW: Final = 64
_SENDS: Final = b"".join(
    request(RequestCode.SEND_MESSAGE_V2, send_fields(f"topic-{number:0{_DIGITS}}"), b"x") for number in range(_NUMBERS)
)
_SEND_BYTES: Final = len(_SENDS) // _NUMBERS


async def _make_topics(target: Target) -> None:
    """Send to a new topic each time, with many sends open."""
    step = _SEND_BYTES * _WINDOW
    async with target.connect() as wire:
        with trio.move_on_after(target.seconds):
            for begin in range(0, len(_SENDS), step):
                part = _SENDS[begin : begin + step]
                await wire.send(part)
                for _ in range(len(part) // _SEND_BYTES):
                    await wire.next()


ATTACKS: Final = (Attack(name="topics-by-sending", run=_make_topics),)
