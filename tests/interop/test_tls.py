"""TLS with Apache's brokers and clients (wire.md 1.3)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.certificates import Authority, java_settings
from tests.interop.clusters import QUICK_CHECKS
from tests.interop.kit_driver import (
    ApacheBrokers,
    Verdicts,
    check_verdict,
    java_classpath,
    run_scenarios,
    wanted_scenarios,
)
from tests.interop.suite_tools import Inbox, fresh, push_consumer
from tests.interop.test_mixed_group import QUEUES, Group, shared
from tests.processes import Broker, start_triomq
from triomq.client import Admin, ClientConfig, Message, Producer, PushConsumer, TlsConfig
from triomq.protocol.errors import ClientError

pytestmark = pytest.mark.jvm
LIMIT_S = 60
#: Long and short answers, requests of the broker, one-way requests, many at once.
SCENARIOS: Final = (
    pytest.param("push_concurrent_star", marks=pytest.mark.smoke), "send_large_body_compressed", "send_async",
    "send_oneway", "rebalance_join_leave", "transaction_check_back", "consumer_running_info", "request_reply",
    "big_burst",
)  # fmt: skip


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


@pytest.fixture(scope="module")
def java(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Java clients use TLS, show a certificate and check the broker's."""
    mine = authority.issue("java", "java")
    settings = {
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.ca,
        "tls.client.certPath": mine.cert,
        "tls.client.keyPath": mine.key,
    }
    with pytest.MonkeyPatch.context() as environment:
        file = java_settings(tmp_path_factory.mktemp("java"), settings)
        environment.setenv("JAVA_TOOL_OPTIONS", f"-Dtls.enable=true {file}")
        yield


@contextmanager
def tls_broker(folder: Path, authority: Authority, *options: str) -> Iterator[Broker]:
    files = authority.issue("triomq")
    with start_triomq(
        folder, *QUICK_CHECKS, "--tls-cert", str(files.cert), "--tls-key", str(files.key), *options
    ) as broker:
        yield broker


@pytest.fixture(scope="module", params=["4.9", "5"], ids=["client 4.9", "client 5"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest,
    client: str,
    java: None,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Verdicts]:
    """One run of the kit for each client, at a broker that takes nothing but TLS with a certificate."""
    folder = tmp_path_factory.mktemp("triomq")
    with tls_broker(folder, authority, "--tls", "enforcing", "--tls-client-ca", str(authority.ca)) as broker:
        scenarios = wanted_scenarios(request, client=client)
        yield run_scenarios(("run.sh", "--client", client), broker.namesrv, scenarios, tmp_path_factory.mktemp("logs"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java_client_passes_over_tls(verdicts: Verdicts, scenario: str) -> None:
    check_verdict(verdicts, scenario)


@pytest.mark.slow
async def test_plain_and_tls_members_share_a_group(java: None, authority: Authority, tmp_path: Path) -> None:
    """A Java member and one of ours with TLS, and one of ours without."""
    config = ClientConfig(tls=TlsConfig(ca=authority.ca))

    with tls_broker(tmp_path, authority) as broker, ExitStack() as stack, trio.fail_after(LIMIT_S):
        group = Group(broker.namesrv, "concurrent", tmp_path, java_classpath("4.9.7"))
        stack.callback(group.close)
        async with Admin(namesrv=broker.namesrv) as admin:
            await admin.create_topic(group.topic, QUEUES)
            group.join_java()
            group.join_python()
            async with PushConsumer(
                group.name,
                namesrv=broker.namesrv,
                config=config,
                subscriptions={group.topic: "*"},
                on_message=Inbox().take,
            ):
                await shared(admin, group, 3, 3, 2, within_s=40)
            await shared(admin, group, 4, 4)


async def exchange(namesrv: str, config: ClientConfig) -> None:
    """Send small and large messages, and consume them."""
    topic, group = fresh("T"), fresh("G")
    bodies = [b"%d" % number * size for number, size in enumerate((1, 1, 100_000, 1_000_000, 4_000_000))]
    inbox = Inbox()
    with trio.fail_after(LIMIT_S):
        async with Admin(namesrv=namesrv, config=config) as admin:
            await admin.create_topic(topic, queues=2)
        async with Producer(group, namesrv=namesrv, config=config) as producer:
            for body in bodies:
                await producer.send(Message(topic, body))
        async with push_consumer(namesrv, topic, inbox.take, group=group, config=config):
            await inbox.wait_count(len(bodies))
    assert sorted(inbox.bodies()) == sorted(bodies)


async def test_our_client_uses_tls_to_apache(apache: str, authority: Authority) -> None:
    mine = authority.issue("client", "client")
    await exchange(apache, ClientConfig(tls=TlsConfig(ca=authority.ca, cert=mine.cert, key=mine.key)))


async def test_client_error_names_tls_of_apache(apache: str, authority: Authority, tmp_path: Path) -> None:
    for tls, text in (
        (TlsConfig(ca=authority.ca), "give your certificate"),
        (TlsConfig(ca=Authority(tmp_path).ca), "give the CA that signed it"),
    ):
        with trio.fail_after(LIMIT_S), pytest.raises(ClientError, match=text):
            async with Admin(namesrv=apache, config=ClientConfig(tls=tls)) as admin:
                await admin.topics()
