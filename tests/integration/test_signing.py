"""Signed requests: a name server never gets one, and a broker's listener for administration gets them when it asks."""

import json
from pathlib import Path
from typing import Final

import pytest
import trio.testing

from tests.certificates import Authority
from tests.integration.broker_wire import namesrv_address, running
from tests.integration.cli_tools import complaint, ok
from tests.processes import start_triomq
from triomq.broker.addresses import Address
from triomq.broker.config import Listener, TlsConfig
from triomq.broker.network.connection import Connection, Port
from triomq.broker.pipeline import Pipeline
from triomq.broker.work import Answer
from triomq.client.admin.admin import Admin
from triomq.client.admin.diagnosis import FindingKind
from triomq.client.config import ClientConfig
from triomq.client.producer.producer import Producer
from triomq.protocol.codes import RequestCode
from triomq.protocol.record.message import Message
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import ACCESS_KEY, SIGNATURE, Credentials

ACCOUNTS: Final = """
accounts:
- {accessKey: operator, secretKey: secret-of-operator, admin: true}
- {accessKey: shop-service, secretKey: secret-of-shop, topicPerms: [orders=PUB]}
"""
OPERATOR: Final = ClientConfig(credentials=Credentials("operator", "secret-of-operator"))
SHOP: Final = ClientConfig(credentials=Credentials("shop-service", "secret-of-shop"))


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    return path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Port, int, bool]]:
    """Port, code and whether it is signed, of each request that a broker of this process gets one by one."""
    found = []
    serve = Pipeline.serve

    def note(self: Pipeline, connection: Connection, command: RemotingCommand, *rest: float) -> Answer:
        found.append((connection.port, command.code, bool({ACCESS_KEY, SIGNATURE} & command.ext_fields.keys())))
        return serve(self, connection, command, *rest)

    monkeypatch.setattr(Pipeline, "serve", note)
    return found


@pytest.mark.parametrize("admin_listen", [None, Address("127.0.0.1", 0)])
async def test_no_signature_reaches_a_name_server(
    admin_listen: Address | None, accounts: Path, served: list[tuple[Port, int, bool]]
) -> None:
    async with running(accounts.parent / "store", acl=accounts, admin_listen=admin_listen) as broker:
        namesrv = namesrv_address(broker)
        async with Admin(
            namesrv=namesrv if admin_listen is None else str(broker.admin_address), config=OPERATOR
        ) as admin:
            await admin.create_topic("orders")
            assert "orders" in await admin.topics()
            async with Producer("shop", namesrv=namesrv, config=SHOP) as producer:
                await producer.send(Message("orders", b"x"))
            assert not (await admin.diagnose()).findings
            await admin.delete_topic("orders")
        denied = broker.statistics.denied_requests
    assert {port for port, _, _ in served} >= {Port.BROKER, Port.NAMESRV}
    assert not [each for each in served if each[0] is Port.NAMESRV and each[2]]
    assert (RequestCode.GET_ROUTEINFO_BY_TOPIC, True) not in {each[1:] for each in served}
    assert denied == (admin_listen is not None)  # the producer asked the name server for the brokers


def test_tools_work_at_admin_listener_with_accounts(
    accounts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATOR", "accessKey: operator; secretKey: secret-of-operator")
    monkeypatch.setenv("SHOP", "accessKey: shop-service; secretKey: secret-of-shop")
    monkeypatch.setenv("STRANGER", "accessKey: shop-service; secretKey: a-wrong-secret")
    audit = tmp_path / "audit.jsonl"
    with start_triomq(
        tmp_path, "--acl", str(accounts), "--admin-listen", "127.0.0.1:0", "--audit", str(audit)
    ) as broker:
        ok("topic", "create", "orders", "--credentials", "env:OPERATOR", namesrv=broker.admin)
        ok("produce", "orders", "--count", "1", "--credentials", "env:SHOP", namesrv=broker.admin)
        for code, account, reason in ((1, "SHOP", "Need admin permission"), (1, "STRANGER", "Check signature failed")):
            assert reason in complaint(
                code, "topic", "delete", "orders", "--credentials", f"env:{account}", namesrv=broker.admin
            )
        ok("topic", "delete", "orders", "--credentials", "env:OPERATOR", namesrv=broker.admin)
    lines = map(json.loads, audit.read_text().splitlines())
    assert {(line["account"], line["request"]) for line in lines if line["event"] == "administration"} == {
        ("operator", "GET_BROKER_CLUSTER_INFO"),
        ("operator", "GET_TOPIC_CONFIG"),
        ("operator", "UPDATE_AND_CREATE_TOPIC"),
        ("operator", "DELETE_TOPIC_IN_BROKER"),
        ("operator", "DELETE_TOPIC_IN_NAMESRV"),
    }


@pytest.mark.parametrize(
    ("host", "is_guarded", "tls", "is_replayable"),
    [
        ("0.0.0.0", True, None, True),
        ("0.0.0.0", True, False, True),
        ("0.0.0.0", True, True, False),
        ("0.0.0.0", False, None, False),
        ("127.0.0.1", True, None, False),
    ],
)
async def test_accounts_without_tls_are_reported(
    accounts: Path,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    host: str,
    is_guarded: bool,
    tls: bool | None,
    is_replayable: bool,
) -> None:
    identity = authority.issue("broker")
    listener = Listener(broker=Address(host, 0), namesrv=Address("127.0.0.1", 0))
    async with running(
        accounts.parent / "store",
        listeners=(listener,),
        acl=accounts if is_guarded else None,
        insecure=not is_guarded,
        tls=None if tls is None else TlsConfig(cert=identity.cert, key=identity.key, enforcing=tls),
    ) as broker:
        await trio.testing.wait_all_tasks_blocked()
        line = f"signed requests can be replayed, as TLS is not required (--tls enforcing): {host}:0"
        assert (line in caplog.text) is is_replayable
        if tls is None:
            async with Admin(namesrv=namesrv_address(broker), config=OPERATOR) as admin:
                found = {finding.kind for finding in (await admin.diagnose()).findings}
            assert (FindingKind.REPLAYABLE in found) is is_replayable
