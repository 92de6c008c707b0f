"""Listening sockets survive a full descriptor table and broken connections."""

import errno
import socket
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from triomq.broker.addresses import Address
from triomq.broker.network import listeners
from triomq.broker.network.listeners import VIP_PORT_DISTANCE, accept_loop, listen, listen_with_vip
from triomq.protocol.errors import ConfigError

LOOPBACK = Address("127.0.0.1", 0)


class Listener:
    """A real listening socket whose first accepts fail."""

    def __init__(self, *errors: int) -> None:
        self._sock = listen(LOOPBACK)
        self._errors = list(errors)
        self.port = self._sock.getsockname()[1]

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self._errors:
            raise OSError(self._errors.pop(0), "accept failed")
        return self._sock.accept()

    def close(self) -> None:
        self._sock.close()


async def first_accepted(listener: Listener) -> socket.socket:
    """Connect, and return the broker's end."""
    send, receive = trio.open_memory_channel[socket.socket](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_loop, cast(socket.socket, listener), send.send_nowait)
        with socket.create_connection(("127.0.0.1", listener.port)):
            sock = await receive.receive()
        nursery.cancel_scope.cancel()
    return sock


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
async def test_too_many_open_files_only_delay_a_connection(
    error: int, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with await first_accepted(Listener(error)):
        assert "raise the limit of open files" in caplog.text


async def test_connection_aborted_before_accept_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with await first_accepted(Listener(errno.ECONNABORTED)):
        assert not caplog.records


async def test_accepted_connection_is_non_blocking_with_nodelay() -> None:
    with await first_accepted(Listener()) as sock:
        assert not sock.getblocking()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_cancelled_accept_loop_closes_its_listener() -> None:
    sock = listen(LOOPBACK)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_loop, sock, lambda _: None)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sock.fileno() == -1


def test_free_port_is_chosen_with_vip_port() -> None:
    sock, vip = listen_with_vip(LOOPBACK)
    assert vip is not None
    with sock, vip:
        assert sock.getsockname()[1] - vip.getsockname()[1] == VIP_PORT_DISTANCE


def test_free_port_is_found_without_a_vip_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_listen_vip", lambda *_: None)
    sock, vip = listen_with_vip(LOOPBACK)
    with sock:
        assert vip is None


@pytest.mark.parametrize(
    ("host", "advice"), [("192.0.2.1", "not an address of this machine"), ("no such host", "not known")]
)
def test_unavailable_address_is_rejected_with_reason(host: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}:0: .*{advice}"):
        listen(Address(host, 0))


def test_privileged_port_is_rejected_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(ConfigError, match="choose one above 1023"):
        listen(Address("127.0.0.1", 80))
