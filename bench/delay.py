"""A proxy that delays every byte, as a distant network does, and our broker behind it."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, TypeAlias

import trio

from bench.processes import Server, free_port, triomq_server

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


ServerStart: TypeAlias = Callable[[], AbstractContextManager[Server]]


@contextmanager
def delayed_servers(folder: Path, delay_ms: float) -> Iterator[ServerStart]:
    """Yield a function that runs our broker, each time at the same ports; a round trip takes ``2 * delay_ms``."""
    broker, namesrv = free_port(), free_port()
    with _proxy(delay_ms / 1000, broker, namesrv) as (mapped_broker, mapped_namesrv):

        @contextmanager
        def start() -> Iterator[Server]:
            options = f"--listen 127.0.0.1:{broker} --namesrv-listen 127.0.0.1:{namesrv} --metrics 127.0.0.1:0"
            with triomq_server(folder, *options.split(), "--advertise", f"127.0.0.1:{mapped_broker}") as server:
                yield replace(server, namesrv=f"127.0.0.1:{mapped_namesrv}")

        yield start


@contextmanager
def _proxy(delay_s: float, *target_ports: int) -> Iterator[list[int]]:
    """Run the proxy in another process, so that it does not slow down the client; yields its ports."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(delay_s, target_ports, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(delay_s: float, target_ports: tuple[int, ...], ready: Connection) -> None:
    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            ports = []
            for target_port in target_ports:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                ports.append(listener.socket.getsockname()[1])
                nursery.start_soon(relay, listener, target_port, delay_s)
            ready.send(ports)

    trio.run(serve)
