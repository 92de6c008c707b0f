"""Attacks by use: more than a quota allows, from a separate address."""

from pathlib import Path
from typing import Final

import trio

from tests.attack.measure import Attack, Target
from tests.integration.broker_wire import request, send_fields
from triomq.protocol.codes import RequestCode

_ADDRESS: Final = "127.0.0.2"
_AT_ONCE: Final = 50
_FIELDS: Final = send_fields("FLOOD", g="1700000000000", i="UNIQ_KEY\x01C0A8", n="broker-a")
_SENDS: Final = request(RequestCode.SEND_MESSAGE_V2, _FIELDS, bytes(16 * 1024)) * _AT_ONCE


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
                await stream.send_all(_SENDS)
        nursery.cancel_scope.cancel()


ATTACKS: Final = (
    Attack(name="flood-above-quota", run=_flood, options=("--quotas", str(Path(__file__).with_suffix(".yml")))),
)
