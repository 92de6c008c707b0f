from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.certificates import Authority, Identity, server_context
from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from triomq.client import ClientConfig, ClientInstance, ConfigError, TlsConfig
from triomq.client.connection.pool import dial
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ClientError, ConnectError
from triomq.protocol.wire.command import RemotingCommand


async def test_unreachable_broker_error_names_setting_to_change(
    fake_broker: FakeBroker, make_broker: BrokerFactory
) -> None:
    broker = await make_broker("broker-b")
    broker.add_topic("Topic")
    fake_broker.routes["Topic"] = broker.routes["Topic"]
    await broker.stop()
    async with ClientInstance(fake_broker.address) as instance:
        await instance.routes.topic_route("Topic")
        with pytest.raises(ConnectError) as caught:
            await instance.requests.invoke(broker.address, instance.requests.command(RequestCode.HEART_BEAT))
    text = str(caught.value)
    assert f"cannot connect to {broker.address}: Connection refused" in text
    assert f"broker 'broker-b' advertises this address through name server {fake_broker.address}" in text
    assert "--advertise HOST" in text
    assert 'advertise="as-dialled"' in text


async def test_as_dialled_reaches_broker_at_name_server_host(fake_broker: FakeBroker) -> None:
    port = fake_broker.address.rpartition(":")[2]
    fake_broker.routes["Topic"].broker_datas[0].broker_addrs[0] = f"172.17.0.3:{port}"
    async with ClientInstance(fake_broker.address, ClientConfig(advertise="as-dialled")) as instance:
        await instance.routes.topic_route("Topic")
        address = instance.brokers.find("broker-a")
        assert address == f"172.17.0.3:{port}"
        assert (await instance.requests.invoke(address, instance.requests.command(RequestCode.HEART_BEAT))).code == 0
        with pytest.raises(ConnectError, match=r'advertises 172\.17\.0\.3:1 .* because of advertise="as-dialled"'):
            await instance.requests.invoke("172.17.0.3:1", instance.requests.command(RequestCode.HEART_BEAT))


async def test_closed_connection_is_replaced_at_once(fake_broker: FakeBroker) -> None:
    async with ClientInstance(fake_broker.address) as instance:
        command = instance.requests.command(RequestCode.HEART_BEAT)
        await instance.requests.invoke(fake_broker.address, command)
        connection = instance.requests.connections.get(fake_broker.address)
        assert connection is not None
        connection.close("a test")
        assert (await instance.requests.invoke(fake_broker.address, command)).code == 0
        assert instance.requests.connections.addresses() == {fake_broker.address}
        await fake_broker.drop()
        await wait_all_tasks_blocked()
        assert not instance.requests.connections.addresses()


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "ho\u2488st", "\udcff"], ids=["empty", "long", "dot", "surrogate"])
async def test_impossible_host_name_cannot_be_dialled(host: str) -> None:
    with pytest.raises(ConnectError, match=f"cannot connect to {host}:1: "):
        await dial(f"{host}:1", 3)
    with pytest.raises(ConnectError, match="'null': must be host:port"):
        await dial("null", 3)


async def test_dialling_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    async def hang(*_arguments: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", hang)
    with pytest.raises(ConnectError, match="no connection within 3 s"):
        await dial("host:1", 3)
    assert trio.current_time() == pytest.approx(3)


CODE = 9999


def config(tls: TlsConfig | bool, **settings: Any) -> ClientConfig:
    return ClientConfig(tls=tls, **settings)


async def ask(broker: FakeBroker, tls: TlsConfig | bool, body: bytes = b"", address: str = "") -> bytes:
    async with ClientInstance(broker.address, config(tls)) as instance:
        command = RemotingCommand(CODE, body=body)
        return bytes((await instance.requests.invoke(address or broker.address, command)).body)


async def refusal(broker: FakeBroker, tls: TlsConfig | bool) -> str:
    with trio.fail_after(5), pytest.raises(ClientError) as caught:
        await ask(broker, tls)
    return str(caught.value)


async def test_server_is_trusted_by_signature_and_name(
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
async def test_peer_without_tls_gets_clear_error(answer: bytes, nursery: trio.Nursery) -> None:
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
