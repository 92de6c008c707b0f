"""The audit: its lines, the secrets that it omits, and requests that do not wait for it."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.commands import make_command
from tests.unit.broker.recording import PLAIN, MakeBroker, Peer
from triomq.broker.audit import MAX_IN_MINUTE, MAX_WAITING, Audit
from triomq.broker.config import NameServerConfig
from triomq.broker.network.connection import Port
from triomq.broker.server import Broker
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ConfigError
from triomq.protocol.java import read_properties
from triomq.protocol.requests.catalogue import CATALOGUE, TO_CLIENT
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import camel_case
from triomq.protocol.wire.signing import Credentials

ACCOUNTS: Final = """
accounts:
- {accessKey: operator, secretKey: secret-of-operator, admin: true}
- {accessKey: sender-1, secretKey: secret-of-sender, topicPerms: [T=PUB]}
"""
ADMIN: Final = Credentials("operator", "secret-of-operator")
SENDER: Final = Credentials("sender-1", "secret-of-sender")


@pytest.fixture
def broker(make_broker: MakeBroker, tmp_path: Path) -> Iterator[Broker]:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    broker = make_broker(acl=accounts, audit=tmp_path / "audit.jsonl")
    yield broker
    audit_of(broker).close()


def audit_of(broker: Broker) -> Audit:
    assert broker.pipeline.access.audit is not None
    return broker.pipeline.access.audit


def written(broker: Broker) -> list[dict[str, Any]]:
    audit_of(broker)._write()
    assert broker.config.audit is not None
    lines = broker.config.audit.read_text().splitlines()
    return [json.loads(line) for line in lines]


def request(code: int, account: Credentials, body: bytes = b"", **fields: str) -> RemotingCommand:
    return make_command(code, 7, 0, account.sign(fields, body), body)


def entry(event: str, account: str | None, request: str, resource: dict[str, str], reason: str = "") -> dict[str, Any]:
    why = {"reason": reason} if reason else {}
    return {
        "time": "2026-11-18T11:06:40.000+00:00", "event": event, "account": account, "address": "192.0.2.9:50001",
        "request": request, "resource": resource, "allowed": not reason, **why,
    }  # fmt: skip


def test_line_names_account_and_request(peer: Peer) -> None:
    nobody = Credentials("a-mistyped-secret", "0123456789")
    peer.answer(request(RequestCode.GET_ALL_TOPIC_CONFIG, ADMIN))
    peer.answer(request(RequestCode.GET_ALL_TOPIC_CONFIG, ADMIN))
    peer.answer(request(25, ADMIN, b"rocketmqHome=$(id)\ntransactionCheckMax=16\nnonsense"))
    peer.answer(request(200, ADMIN, b'{"groupName":"G","consumeEnable":true}'))
    peer.answer(request(RequestCode.DELETE_TOPIC_IN_BROKER, SENDER, topic="T", b="tmp"))
    peer.answer(request(RequestCode.GET_MAX_OFFSET, nobody, topic="T", queueId="0"))
    peer.answer(request(RequestCode.SEND_MESSAGE, Credentials("sender-1", "wrong-secret"), topic="T"))
    peer.answer(request(103, SENDER, brokerName="b"))
    peer.answer(request(999, SENDER))
    assert written(peer.broker) == [
        entry("login", "operator", "GET_ALL_TOPIC_CONFIG", {}),
        entry("administration", "operator", "GET_ALL_TOPIC_CONFIG", {}),
        entry("administration", "operator", "GET_ALL_TOPIC_CONFIG", {}),
        entry("administration", "operator", "UPDATE_BROKER_CONFIG", {"settings": "rocketmqHome,transactionCheckMax"}),
        entry("administration", "operator", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", {"group": "G"}),
        entry(
            "denied", "sender-1", "DELETE_TOPIC_IN_BROKER", {"topic": "T"},
            "Need admin permission for request code=215, but accessKey=sender-1 is not",
        ),
        entry("denied", None, "GET_MAX_OFFSET", {"topic": "T"}, "there is no such account"),
        entry(
            "denied", "sender-1", "SEND_MESSAGE", {"topic": "T"}, "Check signature failed for accessKey=sender-1"
        ),
        entry(
            "denied", "sender-1", "REGISTER_BROKER", {"broker": "b"},
            "request 103 is for brokers, and 192.0.2.9 is not in --brokers-from",
        ),
        entry("login", "sender-1", "999", {}),
    ]  # fmt: skip


def test_a_plain_send_is_a_login_once(peer: Peer) -> None:
    peer.read(*(request(RequestCode.SEND_MESSAGE_V2, SENDER, b"x", **PLAIN) for _ in range(3)))
    assert [response.code for response in peer.sent] == [0, 0, 0]
    assert written(peer.broker) == [entry("login", "sender-1", "SEND_MESSAGE_V2", {"topic": "T"})]


def test_without_accounts_only_administration_is_recorded(make_broker: MakeBroker, tmp_path: Path) -> None:
    peer = Peer(make_broker(audit=tmp_path / "audit.jsonl"))
    for code in peer.broker.pipeline.served:
        peer.answer(request(code, SENDER, brokerName="b"))
    found = written(peer.broker)
    audit_of(peer.broker).close()
    assert {each["account"] for each in found} == {None}
    codes = [RequestCode[each["request"]] for each in found if each["event"] == "administration"]
    denied = [RequestCode[each["request"]] for each in found if each["event"] == "denied"]
    expected = [code for code in peer.broker.pipeline.served if CATALOGUE[code].is_administration]
    assert sorted([*codes, *(code for code in denied if CATALOGUE[code].is_administration)]) == sorted(expected)
    assert len(found) == len(codes) + len(denied)


#: What each attribute of a header names.
NAMED: Final = {
    "topic": "topic", "group": "group", "consumer_group": "group", "producer_group": "group", "group_name": "group",
    "src_group": "group", "dest_group": "group", "broker_name": "broker", "namespace": "namespace", "key": "key",
    "access_key": "account", "username": "account", "subject": "account",
}  # fmt: skip
ADMINISTRATION: Final = sorted(
    code for code, row in CATALOGUE.items() if row.is_administration and row.kind is not TO_CLIENT
)
WIRES: Final = sorted({*map(camel_case, NAMED), *"abcdefg", "subGroup", "Topic", "defaultTopic", "secretKey"})


@given(code=st.sampled_from(ADMINISTRATION), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
def test_line_has_the_names_of_the_decoded_header(broker: Broker, code: int, data: st.DataObject) -> None:
    row = CATALOGUE[code]
    fields = data.draw(st.dictionaries(st.sampled_from(WIRES), st.sampled_from(("payments", "tmp", "x")), min_size=4))
    for field in () if row.header is None else dataclasses.fields(row.header):  # so that it can be decoded
        fields.setdefault(camel_case(field.name), "1")
    expected: dict[str, str] = {}
    header = None if row.header is None else row.header.decode(fields)
    for name in () if header is None else [field.name for field in dataclasses.fields(header) if field.name in NAMED]:
        kind = NAMED[name]
        expected[kind] = ",".join(filter(None, (expected.get(kind), getattr(header, name))))
    peer = Peer(broker, port=Port.ADMIN)
    audit_of(broker).note("administration", peer, make_command(code, 7, 0, fields, b""), "operator")
    found = written(broker)[-1]["resource"]
    assert {kind: name for kind, name in found.items() if kind != "settings"} == expected


SETTING_LINES: Final = (*"x#!= \n\r\x0b\x0c\x1c\u2028\\", "\\u0070", "maxA", "b.1=2")


@given(st.lists(st.sampled_from(SETTING_LINES), max_size=40).map("".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
def test_settings_are_those_that_the_processor_reads(broker: Broker, text: str) -> None:
    line = noted(broker, RequestCode.UPDATE_BROKER_CONFIG, text.encode())
    names = list(read_properties(text))
    shown = [name for name in names if re.fullmatch(r"[A-Za-z][A-Za-z0-9.]*", name)]
    assert line["resource"].get("settings", "") == ",".join(shown)
    assert line.get("cut", 0) == len(names) - len(shown)


def noted(broker: Broker, code: int, body: bytes) -> dict[str, Any]:
    audit_of(broker).note("administration", Peer(broker), make_command(code, 7, 0, {}, body), "operator")
    return written(broker)[-1]


@pytest.mark.parametrize(
    ("code", "body", "resource", "cut"),
    [
        (25, b"#" * 5000 + b"\ntransactionCheckMax=16", {"settings": "transactionCheckMax"}, 0),
        (25, b"\n".join(b"s%s%d=1" % (b"x" * 50, i) for i in range(100)), None, 62),
        (25, b"c2VjcmV0/+=\nbrokerIP1=x", {"settings": "brokerIP1"}, 1),
        (25, b"#" * 70_000 + b"\ntransactionCheckMax=16", {}, 1),
        (200, b'{"group\\u004eame":"\\u0070ay"}', {"group": "pay"}, 0),
        (200, b'{"groupName":"tmp","groupName":"payments"}', {"group": "payments"}, 0),
        (200, b'{"a":{"groupName":"tmp"},"groupName":"payments"}', {"group": "payments"}, 0),
        (200, b'{"groupName":"%s"}' % (b"g" * 300), {"group": "g" * 255}, 1),
        (200, b'{"groupName":"%s"}' % (b"g" * 3000), {"group": "g" * 255}, 1),
        (200, b'{"groupName":"g","a":%s1%s}' % (b"[" * 4000, b"]" * 4000), {}, 1),
        (200, b'{"groupName":', {}, 1),
    ],
)
def test_body_hides_no_names(broker: Broker, code: int, body: bytes, resource: dict[str, str] | None, cut: int) -> None:
    line = noted(broker, code, body)
    assert resource is None or line["resource"] == resource
    assert line.get("cut", 0) == cut


SECRETS: Final = st.text("0123456789abcdefXYZ+/=", min_size=12, max_size=40)
NAMES: Final = st.sampled_from(("T", "G", "operator", "b"))
FIELD: Final = st.sampled_from(
    ("secretKey", "Signature", "SecurityToken", "i", "properties", "value", "key", "x", "clientId", "remark")
)


@given(
    code=st.one_of(st.sampled_from(RequestCode), st.integers(0, 2**31 - 1)),
    port=st.sampled_from(Port),
    account=st.one_of(st.sampled_from((ADMIN, SENDER)), st.builds(Credentials, SECRETS, SECRETS)),
    names=st.dictionaries(st.sampled_from(("topic", "b", "group", "consumerGroup", "brokerName")), NAMES),
    secrets=st.dictionaries(FIELD, SECRETS, min_size=1),
    body=SECRETS,
    signs=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_secret_gets_in(
    broker: Broker,
    code: int,
    port: Port,
    account: Credentials,
    names: dict[str, str],
    secrets: dict[str, str],
    body: str,
    signs: bool,
) -> None:
    if code in (100, 101, 102):
        secrets.pop("key", None)  # the name of an entry of the key-value table
    peer = Peer(broker, port=port)
    content = f"transactionCheckMax={body}".encode()
    fields = account.sign({**names, **secrets}, content) if signs else {**names, **secrets}
    if not signs:
        fields["AccessKey"] = account.secret_key
    peer.answer(make_command(code, 7, 0, fields, content))
    text = json.dumps(written(broker))
    told = {*secrets.values(), body, account.secret_key, fields.get("Signature", account.secret_key)}
    assert not [secret for secret in told if secret in text]


def small(path: Path, size: int = 1000) -> Audit:
    config = NameServerConfig(root=path.parent, audit=path, audit_file_bytes=size, audit_files=2)
    audit = Audit(config, lambda: 1_795_000_000_000)
    audit.open()
    return audit


def note(audit: Audit, peer: Peer, count: int) -> None:
    command = request(RequestCode.GET_BROKER_CONFIG, ADMIN)
    for _ in range(count):
        audit.note("administration", peer, command, "operator")


def test_full_files_are_limited_and_private(peer: Peer, tmp_path: Path) -> None:
    audit = small(tmp_path / "audit.jsonl")
    for _ in range(20):
        note(audit, peer, 3)
        audit._write()
    audit.close()
    files = sorted(tmp_path.glob("audit.jsonl*"))
    assert [path.name for path in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert all(0 < path.stat().st_size <= 1000 for path in files)


def test_dropped_lines_are_counted_by_event(peer: Peer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = small(tmp_path / "audit.jsonl", 10_000_000)
    note(audit, peer, MAX_WAITING + 5)
    audit._write()
    note(audit, peer, 1)
    audit.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert len(lines) == MAX_WAITING + 2
    lost = {"time": "2026-11-18T11:06:40.000+00:00", "event": "lost", "count": 5, "events": {"administration": 5}}
    assert lines[MAX_WAITING] == lost
    assert (audit.lost, caplog.text.count("misses lines")) == (5, 1)


def test_floods_of_events_are_limited_each_minute(peer: Peer, tmp_path: Path) -> None:
    audit = small(tmp_path / "audit.jsonl", 10_000_000)
    command = request(RequestCode.GET_MAX_OFFSET, SENDER)
    for _ in range(MAX_IN_MINUTE + 5):
        audit.note("denied", peer, command, None, "no")
    for _ in range(MAX_IN_MINUTE + 7):
        peer.logins = frozenset()  # a new connection
        audit.login(peer, command, "sender-1")
    note(audit, peer, 1)
    audit.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert Counter(line["event"] for line in lines) == {
        "denied": MAX_IN_MINUTE, "login": MAX_IN_MINUTE, "administration": 1, "lost": 1,
    }  # fmt: skip
    assert lines[-1]["events"] == {"denied": 5, "login": 7}
    assert audit.lost == 12


def test_half_of_the_queue_is_for_administration(peer: Peer, tmp_path: Path) -> None:
    now_ms = [1_795_000_000_000]
    config = NameServerConfig(root=tmp_path, audit=tmp_path / "audit.jsonl")
    audit = Audit(config, lambda: now_ms[0])
    audit.open()
    command = request(RequestCode.GET_MAX_OFFSET, SENDER)
    for _ in range(2 * MAX_WAITING):  # the disk hangs for some minutes
        now_ms[0] += 100
        audit.note("denied", peer, command, None, "no")
        peer.logins = frozenset()
        audit.login(peer, command, "sender-1")
    note(audit, peer, MAX_WAITING // 2)
    audit.close()
    text = (tmp_path / "audit.jsonl").read_text()
    assert text.count('"event":"administration"') == MAX_WAITING // 2
    assert text.count('"event":"lost"') == 1


def test_full_disk_loses_lines_and_logs_once(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    audit = small(Path("/dev/full"))
    for _ in range(3):
        note(audit, peer, 2)
        audit._write()
    audit.close()
    assert audit.lost >= 6
    assert caplog.text.count("No space left on device") == 1


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing/audit: No such file .*--audit"):
        small(tmp_path / "missing" / "audit")


async def test_a_thread_writes_while_the_server_runs(peer: Peer, tmp_path: Path) -> None:
    audit = small(tmp_path / "audit.jsonl", 100_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit.run)
        for count in (1, 2):
            note(audit, peer, 1)
            while len((tmp_path / "audit.jsonl").read_text().splitlines()) < count:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    note(audit, peer, 1)
    audit.close()
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 3
