"""``python -m tests.attack.ping HOST:PORT TOPIC``: an honest client beside an attack, in a separate process.

Asks for the end of a queue every 2 ms and sends a message to it every 100 ms until its stdin ends, then writes its
measurements as JSON.
"""

import json
import os
import sys
import time
from contextlib import suppress
from typing import Final

import trio

from tests.integration.broker_wire import Wire
from triomq.protocol.codes import RequestCode, ResponseCode

INTERVAL_S: Final = 0.002
_PINGS_PER_SEND: Final = 50
_END: Final = {"queueId": "0"}


async def ping(address: str, topic: str) -> dict[str, object]:
    """Ask and send until stdin ends; return the time of each answer in ms, and the bodies of stored messages."""
    host, port = address.rsplit(":", 1)
    wire = Wire(await trio.open_tcp_stream(host, int(port)))
    seen_ms: list[float] = []
    stored: list[str] = []

    async def ask_on() -> None:
        await wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, **_END})
        print(flush=True)  # the attack may begin
        while True:
            for _ in range(_PINGS_PER_SEND):
                began = time.perf_counter()
                try:
                    await wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, **_END})
                finally:  # an answer that did not come before the end counts too
                    seen_ms.append((time.perf_counter() - began) * 1000)
                await trio.sleep(INTERVAL_S)
            body = f"honest {len(stored)}"
            if (await wire.put(topic, body.encode())).code == ResponseCode.SUCCESS:
                stored.append(body)

    await wire.works()
    print(flush=True)  # ready
    async with wire.stream, trio.open_nursery() as nursery:
        nursery.start_soon(ask_on)
        await trio.to_thread.run_sync(sys.stdin.read)
        await trio.sleep(0.1)  # the answer to the send before counts too
        nursery.cancel_scope.cancel()
    return {"seen_ms": seen_ms, "stored": stored}


if __name__ == "__main__":
    with suppress(PermissionError):
        os.nice(-10)  # the attackers take the rest of the machine; only the broker's answer times count
    print(json.dumps(trio.run(ping, sys.argv[1], sys.argv[2])))
