"""TLS with Apache's brokers and clients (wire.md 1.3)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.certificates import Authority
from tests.interop.kit_driver import ApacheBrokers
from tests.interop.suite_tools import fresh
from triomq.client import Admin, ClientConfig, Message, MessageExt, Producer, PushConsumer, TlsConfig
from triomq.protocol.errors import ClientError

pytestmark = pytest.mark.jvm
LIMIT_S = 60


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def java_settings(folder: Path, settings: dict[str, object]) -> str:
    """Return the option of a JVM that makes RocketMQ read these settings of TLS."""
    file = folder / "tls.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return f"-Dtls.config.file={file}"


@pytest.fixture(scope="module", params=["4.9.7", "5.5.0"])
def apache(
    request: pytest.FixtureRequest,
    authority: Authority,
    apache_brokers: ApacheBrokers,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The name server's address of an Apache pair that knows its clients by their certificates."""
    folder, files = tmp_path_factory.mktemp("tls"), authority.issue("apache")
    settings = {
        "tls.test.mode.enable": "false",
        "tls.server.mode": "permissive",
        "tls.server.certPath": files.cert,
        "tls.server.keyPath": files.key,
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": authority.ca,
    }
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("JAVA_TOOL_OPTIONS", java_settings(tmp_path_factory.mktemp("java"), settings))
            broker = apache_brokers.start(request.param, folder)
        yield broker.namesrv
    finally:
        apache_brokers.stop(folder)


async def exchange(namesrv: str, config: ClientConfig) -> None:
    """Send small and large messages, and consume them."""
    topic, group = fresh("T"), fresh("G")
    bodies = [b"%d" % number * size for number, size in enumerate((1, 1, 100_000, 1_000_000, 4_000_000))]
    received: list[bytes] = []
    done = trio.Event()

    async def handle(message: MessageExt) -> None:
        received.append(message.body)
        if len(received) == len(bodies):
            done.set()

    with trio.fail_after(LIMIT_S):
        async with Admin(namesrv=namesrv, config=config) as admin:
            await admin.create_topic(topic, queues=2)
        async with Producer(group, namesrv=namesrv, config=config) as producer:
            for body in bodies:
                await producer.send(Message(topic, body))
        async with PushConsumer(
            group, namesrv=namesrv, config=config, subscriptions={topic: "*"}, on_message=handle, start="earliest"
        ):
            await done.wait()
    assert sorted(received) == sorted(bodies)


async def test_our_client_uses_tls_to_apache(apache: str, authority: Authority) -> None:
    mine = authority.issue("client", "client")
    await exchange(apache, ClientConfig(tls=TlsConfig(ca=authority.ca, cert=mine.cert, key=mine.key)))


async def test_our_client_is_told_what_apache_wants(apache: str, authority: Authority, tmp_path: Path) -> None:
    for tls, text in (
        (TlsConfig(ca=authority.ca), "give your certificate"),
        (TlsConfig(ca=Authority(tmp_path).ca), "give the CA that signed it"),
    ):
        with trio.fail_after(LIMIT_S), pytest.raises(ClientError, match=text):
            async with Admin(namesrv=apache, config=ClientConfig(tls=tls)) as admin:
                await admin.topics()
