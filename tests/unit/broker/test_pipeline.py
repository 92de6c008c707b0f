"""Which port serves which requests, and for which accounts; a denied request changes nothing."""

import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.commands import make_command
from tests.unit.broker.recording import PLAIN, MakeBroker, Peer
from triomq.broker.network.connection import Connection, Port
from triomq.broker.server import Broker
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.requests.catalogue import CATALOGUE, NAME_SERVER_STATE, PUBLIC, ROUTE
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import Credentials
from triomq.storage.reading.cold_read import PAUSE, Work

ADMIN = Credentials("operator", "secret-of-operator")
SENDER = Credentials("sender-1", "secret-of-sender")
NOBODY = Credentials("nobody-1", "secret-of-nobody")
FILE = """
accounts:
- {accessKey: operator, secretKey: secret-of-operator, admin: true}
- {accessKey: sender-1, secretKey: secret-of-sender, topicPerms: [T=PUB]}
- {accessKey: nobody-1, secretKey: secret-of-nobody}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    return path


@pytest.fixture
def broker(make_broker: MakeBroker, path: Path) -> Broker:
    broker = make_broker(acl=path)
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    return broker


def request(
    account: Credentials | None, code: int, fields: Mapping[str, Any], body: bytes = b"", *, flag: int = 0
) -> RemotingCommand:
    texts = {name: str(value) for name, value in fields.items()}
    return make_command(code, 7, flag, account.sign(texts, body) if account else texts, body)


def test_all_but_refused_codes_are_served(make_broker: MakeBroker) -> None:
    served = make_broker().pipeline.served
    assert set(served) == {code for code, row in CATALOGUE.items() if not row.refused}
    assert not [code for code, (_, method) in served.items() if inspect.iscoroutinefunction(method)]


@pytest.mark.parametrize(
    ("port", "unserved"),
    [
        (Port.BROKER, set()),
        (Port.ADMIN, set()),
        (Port.VIP, {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}),
        (Port.NAMESRV, {code for code, row in CATALOGUE.items() if not row.kind.is_for_name_server}),
    ],
)
def test_ports_serve_their_codes(make_broker: MakeBroker, port: Port, unserved: set[int]) -> None:
    peer = Peer(make_broker(), "127.0.0.1:50003", port)
    never = {code for code, row in CATALOGUE.items() if row.refused}
    found = {code for code in CATALOGUE if peer.answer(request(None, code, {}))[0] == 3}
    assert found == unserved | never


def test_every_code_of_both_ports_wants_an_account(broker: Broker) -> None:
    for port in (Port.BROKER, Port.VIP, Port.ADMIN):
        peer = Peer(broker, "127.0.0.1:50003", port)
        for code in (*CATALOGUE, 999):
            before = broker.statistics.denied_requests
            answered, kind = peer.answer(request(None, code, {})), code in CATALOGUE and CATALOGUE[code].kind
            if port is Port.ADMIN and kind is ROUTE:  # as the name server's port
                assert answered == (1, "GetRouteInfoRequestHeader: field 'topic' is missing")
                continue
            if kind is PUBLIC:
                assert answered[0] == 0
                continue
            assert answered == (1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured")
            is_counted = kind is not NAME_SERVER_STATE  # else the peer may not know yet that it asks a broker
            assert broker.statistics.denied_requests == before + is_counted


def test_unknown_code_needs_an_account(peer: Peer) -> None:
    for account in (ADMIN, NOBODY):
        command = request(account, 999, {})
        assert peer.answer(command) == (3, " request type 999 not supported")


def test_name_server_port_needs_no_account(broker: Broker) -> None:
    command = request(None, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    code, _ = Peer(broker, port=Port.NAMESRV).answer(command)
    assert code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("account", "code"),
    [(ADMIN, 0), (SENDER, 0), (NOBODY, 1), (None, 1), (Credentials("sender-1", "not the secret"), 1)],
)
@pytest.mark.parametrize("extra", [{}, {"l": "0"}])  # by the short way, and not
def test_plain_sends_are_checked_too(peer: Peer, account: Credentials | None, code: int, extra: dict[str, str]) -> None:
    sends = [request(account, RequestCode.SEND_MESSAGE_V2, {**PLAIN, **extra, "e": queue}, b"x") for queue in range(3)]
    peer.read(*sends)
    assert [response.code for response in peer.sent] == [code] * 3
    stored = [peer.broker.store.reader.max_offset_in_queue("T", queue) for queue in range(3)]
    assert stored == [1 - code] * 3


def test_denials_are_logged_rarely_and_without_secrets(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for _ in range(3):
        peer.get(RequestCode.GET_MAX_OFFSET, NOBODY.sign({"topic": "T", "queueId": "0"}))
    monkeypatch.setattr("triomq.protocol.event_log.monotonic", lambda: monotonic() + 60)
    peer.get(RequestCode.GET_MAX_OFFSET, NOBODY.sign({"topic": "x" * 5000, "queueId": "0"}))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "code=30 reason=No default permission for topic:T" in warnings[0]
    assert all(len(warning) < 500 for warning in warnings)
    signature = NOBODY.sign({"topic": "T", "queueId": "0"})["Signature"]
    assert not [text for text in ("secret-of", signature) if text in caplog.text]


def test_command_repr_shows_no_secrets() -> None:
    command = request(SENDER, 50, {"secretKey": "the-new-secret", "accessKey": "somebody"})
    assert "the-new-secret" not in repr(command)
    assert command.ext_fields["Signature"] not in repr(command)
    assert "somebody" in repr(command)


def test_one_way_question_is_not_run(make_broker: MakeBroker) -> None:
    peer, run = Peer(make_broker()), list[int]()

    def work(_connection: Connection, command: RemotingCommand) -> Work[None]:
        run.append(command.code)
        yield PAUSE

    for code in (RequestCode.QUERY_MESSAGE, RequestCode.LOCK_BATCH_MQ):
        peer.broker.pipeline.served[code] = CATALOGUE[code], work
        assert peer.broker.pipeline.serve(peer.as_connection, request(None, code, {}, flag=CommandFlag.ONEWAY)) is None
    assert run == [RequestCode.LOCK_BATCH_MQ]
