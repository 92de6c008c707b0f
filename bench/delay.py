"""A proxy that delays every byte, as a distant network does."""

from typing import Final

import trio

_READ_BYTES: Final = 256 * 1024
_WAITING_CHUNKS: Final = 4096  # per direction: a receiver that does not read stops the sender in the end


async def relay(listener: trio.SocketListener, target_port: int, delay_s: float) -> None:
    """Connect each client of ``listener`` to a port of loopback; bytes arrive ``delay_s`` later, at any rate."""

    async def serve(client: trio.SocketStream) -> None:
        try:
            async with client, await trio.open_tcp_stream("127.0.0.1", target_port) as server:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_pass_on, client, server, delay_s)
                    nursery.start_soon(_pass_on, server, client, delay_s)
        except* (OSError, trio.BrokenResourceError):
            pass

    await trio.serve_listeners(serve, [listener])


async def _pass_on(source: trio.SocketStream, target: trio.SocketStream, delay_s: float) -> None:
    sender, receiver = trio.open_memory_channel[tuple[float, bytes]](_WAITING_CHUNKS)

    async def read() -> None:
        data = b"any"
        while data:
            data = bytes(await source.receive_some(_READ_BYTES))
            await sender.send((trio.current_time() + delay_s, data))
        sender.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        async for due, data in receiver:
            await trio.sleep_until(due)
            await (target.send_all(data) if data else target.send_eof())
