import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from tests.certificates import Authority, Identity, server_context
from tests.unit.client.fake_broker import FakeBroker
from triomq.client import ClientConfig, ClientInstance, ConfigError, Message, Producer, TlsConfig
from triomq.common.tls import TlsSession
from triomq.protocol.errors import ClientError
from triomq.protocol.wire.command import RemotingCommand

CODE = 9999


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("broker")


def config(tls: TlsConfig | bool, **settings: Any) -> ClientConfig:
    return ClientConfig(tls=tls, **settings)


async def ask(broker: FakeBroker, tls: TlsConfig | bool, body: bytes = b"", address: str = "") -> bytes:
    async with ClientInstance(broker.address, config(tls)) as instance:
        command = RemotingCommand(CODE, body=body)
        return bytes((await instance.requests.invoke(address or broker.address, command)).body)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_requests_of_any_size_pass_side_by_side(
    fake_broker: FakeBroker, authority: Authority, identity: Identity, version: ssl.TLSVersion
) -> None:
    fake_broker.tls = server_context(identity)
    fake_broker.tls.maximum_version = version
    fake_broker.handlers[CODE] = lambda command: command.reply(body=bytes(command.body)[::-1])
    bodies = [bytes([number]) * size for number, size in enumerate((0, 1, 16_384, 70_000, 300_000, 3_000_000))]

    async def exchange(instance: ClientInstance, body: bytes) -> None:
        command = RemotingCommand(CODE, body=b"<" + body)
        answer = await instance.requests.invoke(fake_broker.address, command, timeout_s=20)
        assert answer.body == body[::-1] + b"<"

    async with ClientInstance(fake_broker.address, config(TlsConfig(ca=authority.ca))) as instance:
        async with trio.open_nursery() as nursery:
            for body in bodies * 3:
                nursery.start_soon(exchange, instance, body)
    assert fake_broker.connected == 1


async def test_a_producer_uses_tls_to_name_server_and_broker(
    fake_broker: FakeBroker, authority: Authority, identity: Identity
) -> None:
    fake_broker.tls = server_context(identity)
    settings = config(TlsConfig(ca=str(authority.ca)))
    async with Producer("g", namesrv=fake_broker.address, config=settings) as producer:
        assert (await producer.send(Message("Topic", b"body"))).message_id


async def test_own_certificate_is_shown_to_a_server_that_wants_one(
    fake_broker: FakeBroker, authority: Authority, identity: Identity
) -> None:
    fake_broker.tls = server_context(identity)
    fake_broker.tls.load_verify_locations(authority.ca)
    fake_broker.tls.verify_mode = ssl.CERT_REQUIRED
    fake_broker.handlers[CODE] = lambda command: command.reply(body=b"yes")
    mine = authority.issue("client", "client")
    assert await ask(fake_broker, TlsConfig(ca=authority.ca, cert=mine.cert, key=mine.key)) == b"yes"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_a_client_without_certificate_learns_that_the_server_wants_one(
    authority: Authority, identity: Identity, nursery: trio.Nursery, version: ssl.TLSVersion
) -> None:
    context = server_context(identity)
    context.load_verify_locations(authority.ca)
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, version

    async def serve(stream: trio.SocketStream) -> None:
        session = TlsSession(context, is_server=True)
        with suppress(trio.BrokenResourceError):
            while data := await stream.receive_some():
                session.receive(data)
                with suppress(ssl.SSLError):
                    session.shake_hands()
                await stream.send_all(session.seal())
                session.sent(len(session.seal()))

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, [listener])
    address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    with pytest.raises(ClientError, match=r" give your certificate: TlsConfig\(cert=, key=\)"):
        async with ClientInstance(address, config(TlsConfig(ca=authority.ca))):
            pass
    nursery.cancel_scope.cancel()


async def refusal(broker: FakeBroker, tls: TlsConfig | bool) -> str:
    with trio.fail_after(5), pytest.raises(ClientError) as caught:
        await ask(broker, tls)
    return str(caught.value)


async def test_a_server_is_trusted_by_its_signature_and_its_name(
    fake_broker: FakeBroker, authority: Authority, tmp_path: Path
) -> None:
    fake_broker.handlers[CODE] = lambda command: command.reply(body=b"yes")
    fake_broker.tls = server_context(authority.issue("elsewhere", "broker.example"))
    modes: tuple[Literal["ca", "none"], ...] = ("ca", "none")
    for verify in modes:
        ca = authority.ca if verify == "ca" else None
        assert await ask(fake_broker, TlsConfig(ca=ca, verify=verify)) == b"yes"
    text = await refusal(fake_broker, TlsConfig(ca=authority.ca))
    assert "certificate is not accepted: IP address mismatch" in text
    assert 'give verify="ca" (--tls-verify ca)' in text
    for tls in (True, TlsConfig(ca=Authority(tmp_path).ca), TlsConfig(ca=Authority(tmp_path).ca, verify="ca")):
        text = await refusal(fake_broker, tls)
        assert "give the CA that signed it: TlsConfig(ca=FILE), --tls-ca FILE" in text
        assert fake_broker.address in text


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\x10plain", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_peer_without_tls_is_told(answer: bytes, nursery: trio.Nursery) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        if answer:
            await stream.send_all(answer)
        await stream.aclose()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, [listener])
    address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    with pytest.raises(ClientError, match="does it speak TLS") as caught:
        async with ClientInstance(address, config(True)):
            pass
    assert "--tls-cert" in str(caught.value)
    nursery.cancel_scope.cancel()


async def test_a_plain_client_at_a_tls_port_learns_what_to_change(fake_broker: FakeBroker, identity: Identity) -> None:
    fake_broker.tls = server_context(identity)
    text = await refusal(fake_broker, False)
    assert "Or does it want TLS?" in text or "the peer looks like a TLS server (connect with TLS)" in text


async def test_a_silent_peer_costs_the_time_to_connect(fake_broker: FakeBroker, nursery: trio.Nursery) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    settings = config(True, connect_timeout_s=0.05)
    with pytest.raises(ClientError, match=r"no connection with TLS within 0\.05 s"):
        async with ClientInstance(address, settings):
            pass
    await listener.aclose()


def test_impossible_settings_are_refused(authority: Authority, identity: Identity) -> None:
    wrong: list[dict[str, Any]] = [
        {"verify": False},
        {"cert": identity.cert},
        {"key": identity.key},
        {"verify": "none", "ca": authority.ca},
    ]
    for settings in wrong:
        with pytest.raises(ConfigError, match=r"tls: |verify: a bool is given"):
            TlsConfig(**settings)
    with pytest.raises(ConfigError, match="tls: a str is given; pass True or False or a TlsConfig"):
        ClientConfig(tls="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"TLS: cannot read the certificate .*absent\.pem"):
        ClientInstance("a:1", config(TlsConfig(ca=authority.ca.with_name("absent.pem"))))
