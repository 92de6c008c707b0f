import errno
import socket

import pytest
import trio
from trio.testing import MockClock

from triomq.client.connection.dial import dial
from triomq.protocol.errors import ConnectError


async def test_dial_gives_a_connected_socket_without_delay() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        sock = await dial(f"127.0.0.1:{port}", 3)
        assert isinstance(sock, socket.socket)
        with sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not sock.getblocking()
            async with await listener.accept() as stream:
                sock.send(b"x")
                assert await stream.receive_some() == b"x"


async def test_refused_dial_error_names_address_reason_and_hint() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(
            ConnectError, match=f"cannot connect to 127.0.0.1:{port}: Connection refused; look at the setting"
        ):
            await dial(f"127.0.0.1:{port}", 3, "look at the setting")


@pytest.mark.parametrize(("address", "reason"), [("nowhere", "must be host:port"), ("h:70000", "must be host:port")])
async def test_an_impossible_address_is_a_connect_error(address: str, reason: str) -> None:
    with pytest.raises(ConnectError, match=reason):
        await dial(address, 3)


async def test_an_unknown_host_is_a_connect_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_arguments: object) -> None:
        await trio.lowlevel.checkpoint()
        raise socket.gaierror(errno.ENOENT, "Name or service not known")

    monkeypatch.setattr(trio, "open_tcp_stream", fail)
    with pytest.raises(ConnectError, match="Name or service not known"):
        await dial("host:1", 3)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "ho\u2488st", "\udcff"], ids=["empty", "long", "dot", "surrogate"])
async def test_a_name_that_no_host_can_have_cannot_be_dialled(host: str) -> None:
    with pytest.raises(ConnectError, match=f"cannot connect to {host}:1: "):
        await dial(f"{host}:1", 3)


async def test_dialling_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    async def hang(*_arguments: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", hang)
    with pytest.raises(ConnectError, match="no connection within 3 s"):
        await dial("host:1", 3)
    assert trio.current_time() == pytest.approx(3)
