"""TLS at the broker's ports: the first byte decides, a bad peer harms no other, certificates change at run time."""

import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import trio
from trio.testing import MockClock

from tests.certificates import Authority, Identity
from tests.integration.broker_wire import (
    Wire,
    broker_port,
    connected,
    namesrv_address,
    namesrv_port,
    pull_fields,
    request,
    running,
    send_fields,
    until,
)
from triomq.broker.config import TlsConfig
from triomq.broker.limits.peers import TLS_SESSION_BYTES
from triomq.broker.server import Broker
from triomq.broker.watched_file import WatchedFiles
from triomq.client import ClientConfig, Message, Producer
from triomq.client import TlsConfig as ClientTlsConfig
from triomq.common.tls import TlsSession
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ClientError
from triomq.protocol.record.record import decode_records

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
STALLED = 200


@pytest.fixture
def tls(identity: Identity) -> TlsConfig:
    return TlsConfig(cert=identity.cert, key=identity.key)


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.ca))


def secured(stream: trio.SocketStream, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    return trio.SSLStream(stream, context, server_hostname="localhost", https_compatible=True)


@asynccontextmanager
async def secure(port: int, context: ssl.SSLContext) -> AsyncGenerator[Wire]:
    async with connected(port) as wire:
        stream = secured(wire.stream, context)
        await stream.do_handshake()
        yield Wire(cast("trio.SocketStream", stream))


def handshakes(broker: Broker) -> int:
    assert broker.tls is not None
    return len(broker.tls.handshakes)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_plain_and_tls_peers_share_a_port(
    root: Path, mock_clock: MockClock, tls: TlsConfig, trusting: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    trusting.maximum_version = version
    bodies = [b"%d" % number * (number % 100) for number in range(1, 1001)]
    async with running(root, tls=tls) as broker:
        for port in (broker_port(broker), namesrv_port(broker)):
            async with connected(port) as plain, secure(port, trusting) as wire:
                for each in (plain, wire):
                    topics = await each.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                    assert topics.code == ResponseCode.SUCCESS
        async with secure(broker_port(broker), trusting) as wire, connected(broker_port(broker)) as plain:
            await wire.send(b"".join(request(SEND, send_fields(), body, opaque=n) for n, body in enumerate(bodies)))
            answers = [await wire.next() for _ in bodies]
            assert [answer.opaque for answer in answers] == [*range(len(bodies))]
            for each in (wire, plain):
                found: list[bytes] = []
                while len(found) < len(bodies):
                    pulled = await each.ask(PULL, pull_fields(queueOffset=len(found)))
                    found += [message.stored_body for message in decode_records(pulled.body)]
                assert found == bodies


async def test_a_tls_peer_that_reads_late_gets_everything(
    root: Path, mock_clock: MockClock, tls: TlsConfig, trusting: ssl.SSLContext
) -> None:
    body = os.urandom(3_000_000)
    async with running(root, tls=tls, unread_high_bytes=64 * 1024) as broker:
        async with secure(broker_port(broker), trusting) as wire:
            assert (await wire.put(body=body)).code == ResponseCode.SUCCESS
            await wire.send(b"".join(request(PULL, pull_fields(), opaque=n) for n in range(10)))
            (connection,) = broker.connections
            await until(lambda: connection.unread_bytes > len(body) / 2)
            for number in range(10):
                pulled = await wire.next()
                assert pulled.opaque == number
                assert [message.stored_body for message in decode_records(pulled.body)] == [body]
            assert connection.unread_bytes == 0


@pytest.mark.parametrize("data", [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" * 20_000])
async def test_broken_handshake_closes_only_its_connection(
    root: Path, mock_clock: MockClock, tls: TlsConfig, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    async with running(root, tls=tls) as broker, connected(broker_port(broker)) as bystander:
        await bystander.put()
        caplog.clear()
        async with connected(broker_port(broker)) as wire:
            await wire.send(data)
            if len(data) > 1:
                while await wire.stream.receive_some():  # an alert, perhaps
                    pass
                assert "TLS failed peer=127.0.0.1:" in caplog.text
        await until(lambda: len(broker.connections) == 1)
        assert await bystander.works()
        assert handshakes(broker) == 0


async def test_stalled_handshakes_end_without_delaying_others(
    root: Path, mock_clock: MockClock, tls: TlsConfig, trusting: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(root, tls=tls) as broker, AsyncExitStack() as stack:
        await stack.enter_async_context(secure(broker_port(broker), trusting))
        for _ in range(STALLED):
            wire = await stack.enter_async_context(connected(broker_port(broker)))
            await wire.send(b"\x16\x03\x01")
        await until(lambda: handshakes(broker) == STALLED)
        assert broker.context.budget.held_bytes > STALLED * 32 * 1024
        wire = await stack.enter_async_context(secure(broker_port(broker), trusting))
        assert (await wire.put()).code == ResponseCode.SUCCESS
        mock_clock.jump(11)
        await until(lambda: len(broker.connections) == 2)
        assert await wire.works()
        assert broker.context.budget.held_bytes == 0


async def test_enforcing_refuses_plain_peers(
    root: Path,
    mock_clock: MockClock,
    identity: Identity,
    trusting: ssl.SSLContext,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = TlsConfig(cert=identity.cert, key=identity.key, enforcing=True)
    async with running(root, tls=settings) as broker:
        async with connected(broker_port(broker)) as plain:
            await plain.send(request(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}))
            assert (await plain.stream.receive_some())[:2] == b"\x15\x03"
            assert await plain.stream.receive_some() == b""
        assert "connection without TLS refused peer=127.0.0.1:" in caplog.text
        async with secure(broker_port(broker), trusting) as wire:
            assert (await wire.put()).code == ResponseCode.SUCCESS
        with pytest.raises(ClientError, match=r"a TLS server \(connect with TLS\)"):
            async with Producer("g", namesrv=namesrv_address(broker)):
                pass


@pytest.mark.parametrize("client_auth", ["optional", "require"])
async def test_certificates_of_clients(
    root: Path, tmp_path: Path, authority: Authority, identity: Identity, client_auth: Literal["optional", "require"]
) -> None:
    settings = TlsConfig(cert=identity.cert, key=identity.key, client_ca=authority.ca, client_auth=client_auth)
    mine, strange = authority.issue("client", "client"), Authority(tmp_path / "other").issue("client", "client")
    async with running(root, tls=settings) as broker:

        async def send(shown: Identity | None) -> None:
            cert, key = (None, None) if shown is None else (shown.cert, shown.key)
            config = ClientConfig(tls=ClientTlsConfig(ca=authority.ca, cert=cert, key=key))
            async with Producer("g", namesrv=namesrv_address(broker), config=config) as producer:
                await producer.send(Message("T", b"x"))

        await send(mine)
        with pytest.raises(ClientError, match="unknown ca"):
            await send(strange)
        if client_auth == "optional":
            await send(None)
        else:
            with pytest.raises(ClientError, match="give your certificate"):
                await send(None)


def serial(context: ssl.SSLContext, port: int) -> Any:
    """The number of the certificate that the broker shows."""
    with socket.create_connection(("127.0.0.1", port)) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
            shown = wrapped.getpeercert()
            assert shown is not None
            return shown["serialNumber"]


async def test_changed_files_apply_and_connections_stay_open(
    root: Path,
    mock_clock: MockClock,
    authority: Authority,
    trusting: ssl.SSLContext,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    files = authority.issue("changing")
    looks: list[None] = []
    look = WatchedFiles._current_marks

    def counted_look(files: WatchedFiles[Any]) -> Any:
        looks.append(None)
        return look(files)

    monkeypatch.setattr(WatchedFiles, "_current_marks", counted_look)
    async with running(root, tls=TlsConfig(cert=files.cert, key=files.key)) as broker:
        port = broker_port(broker)

        async def shown() -> Any:
            return await trio.to_thread.run_sync(serial, trusting, port)

        async def told(text: str) -> None:
            threads = trio.to_thread.current_default_thread_limiter()
            for _ in range(50):  # two looks are enough, but a jump of the clock during a look is lost
                before = len(looks)
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(2)
                await until(lambda: len(looks) > before and not threads.borrowed_tokens)  # noqa: B023
                if text in caplog.text:
                    break
            assert text in caplog.text
            caplog.clear()

        async with secure(port, trusting) as wire:
            await wire.put()
            first = await shown()
            authority.issue("changing")
            await told("file read again")
            second = await shown()
            assert second != first
            files.key.write_text("nonsense")
            await told("changed files cannot be used, the old certificate stays in use: TLS: ")
            files.key.unlink()
            await told("No such file")
            assert await shown() == second
            authority.issue("changing")
            await told("file read again")
            assert await shown() not in (first, second)
            assert await wire.works()


async def test_permissive_with_required_certificates_warns_about_plaintext(
    root: Path, authority: Authority, identity: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    for enforcing in (True, False):
        caplog.clear()
        settings = TlsConfig(
            cert=identity.cert,
            key=identity.key,
            client_ca=authority.ca,
            client_auth="require",
            enforcing=enforcing,
        )
        async with running(root, tls=settings):
            assert ("clients without TLS need no certificate" in caplog.text) is not enforcing


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", 62), ("192.0.2.1", 32)])
async def test_memory_budget_limits_connections_with_tls(
    root: Path,
    mock_clock: MockClock,
    tls: TlsConfig,
    trusting: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    expected: int,
) -> None:
    async with running(root, tls=tls, memory_budget_bytes=64 * TLS_SESSION_BYTES) as broker, AsyncExitStack() as stack:
        await stack.enter_async_context(secure(broker_port(broker), trusting))
        is_local, admitted = host == "127.0.0.1", 0
        while broker.context.connection_limits.admits_tls(host, is_local=is_local):
            admitted += 1
        assert admitted == expected - is_local
        assert broker.statistics.refused_connections == 1
        if is_local:
            with pytest.raises((trio.BrokenResourceError, ConnectionError)):
                async with secure(broker_port(broker), trusting):
                    pytest.fail("there is no room")
            await stack.aclose()
            await until(lambda: not broker.connections)
            async with secure(broker_port(broker), trusting) as wire:
                await wire.works()


async def test_storm_of_handshakes_delays_no_other_peer(
    root: Path, mock_clock: MockClock, tls: TlsConfig, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more than a few of them, each about half a millisecond, without a look at the other connections."""
    steps: list[int] = []
    shake_hands = TlsSession.shake_hands

    def noting(session: TlsSession) -> bool:
        if session._object.server_side:
            steps.append(broker.context.reader.turns)
        return shake_hands(session)

    monkeypatch.setattr(TlsSession, "shake_hands", noting)
    async with running(root, tls=tls) as broker, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(broker_port(broker))) for _ in range(60)]
        async with trio.open_nursery() as nursery:
            for wire in wires:
                nursery.start_soon(secured(wire.stream, trusting).do_handshake)
        await until(lambda: handshakes(broker) == 0)
        assert len(steps) >= len(wires)
        assert max(Counter(steps).values()) == 4
