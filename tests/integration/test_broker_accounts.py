"""Accounts over a socket: they are changed while the broker runs, and count at once for every connection."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.integration.broker_wire import Wire, broker_port, connected, request, running, vip_port
from triomq.broker.server import Broker
from triomq.protocol.acl.accounts import DENY
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.codes import CommandFlag, RequestCode
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import Credentials

ADMIN: Final = Credentials("operator", "secret-of-operator")
USER: Final = Credentials("somebody", "secret-of-somebody")
FALSE_ADMIN: Final = Credentials("operator", "secret-of-somebody")
FILE: Final = "accounts:\n- {accessKey: operator, secretKey: secret-of-operator, admin: true}\n"
NEW: Final = {"accessKey": "somebody", "secretKey": "secret-of-somebody", "topicPerms": "T=PUB", "admin": "false"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    path.chmod(0o640)
    return path


def text_of(path: Path) -> str:
    return path.read_text()


def state(path: Path) -> tuple[int, list[str]]:
    """Return the file's mode, and the names of files that begin as its name does."""
    return path.stat().st_mode & 0o777, [each.name for each in path.parent.glob("plain_acl*")]


@asynccontextmanager
async def guarded(path: Path, **settings: Any) -> AsyncGenerator[tuple[Broker, Wire]]:
    async with running(path.parent / "store", acl=path, **settings) as broker, connected(broker_port(broker)) as wire:
        yield broker, wire


async def ask(
    wire: Wire, account: Credentials, code: int, fields: Mapping[str, str], body: bytes = b""
) -> RemotingCommand:
    return await wire.ask(code, account.sign(fields, body), body)


async def can_send(wire: Wire) -> bool:
    fields = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return (await ask(wire, USER, RequestCode.SEND_MESSAGE_V2, fields, b"x")).code == 0


async def test_account_is_added_listed_changed_and_deleted(path: Path) -> None:
    async with guarded(path) as (broker, wire), connected(vip_port(broker)) as vip:
        assert not await can_send(wire)
        assert (await ask(wire, ADMIN, 50, NEW)).code == 0
        assert await can_send(wire)
        assert await can_send(vip)
        told = await ask(vip, ADMIN, 54, {})
        assert b"secret" not in told.body
        assert orjson.loads(told.body) == {
            "globalWhiteAddrs": [],
            "plainAccessConfigs": [
                {"accessKey": "operator", "admin": True},
                {"accessKey": "somebody", "admin": False, "topicPerms": ["T=PUB"]},
            ],
        }
        version = await ask(wire, ADMIN, 52, {})
        assert orjson.loads(version.ext_fields["version"])["counter"] == 2
        assert orjson.loads(version.ext_fields["allAclFileVersion"]).keys() == {"plain_acl.yml"}
        assert (await ask(wire, ADMIN, 50, {"accessKey": "somebody", "topicPerms": "T=SUB"})).code == 0
        assert not await can_send(wire)
        assert (await ask(wire, ADMIN, 51, {"accessKey": "somebody"})).code == 0
        assert "No acl config" in str((await ask(wire, USER, 105, {"topic": "T"})).remark)
        assert read_rules(text_of(path)) == read_rules(FILE)
        assert state(path) == (0o640, ["plain_acl.yml"])


async def test_white_addresses_count_at_once(path: Path) -> None:
    async with guarded(path) as (_, wire):
        assert (await ask(wire, ADMIN, 53, {"globalWhiteAddrs": "10.0.0.*,127.0.0.{1,2}"})).code == 0
        assert (await wire.ask(RequestCode.GET_BROKER_CONFIG)).code == 0
        assert (await wire.ask(53, {"globalWhiteAddrs": "", "aclFileFullPath": str(path)})).code == 0
        assert (await wire.ask(RequestCode.GET_BROKER_CONFIG)).code == 1


@pytest.mark.parametrize(
    ("code", "fields", "answer"),
    [
        (50, {}, (209, "accessKey is missing")),
        (50, {**NEW, "topicPerms": "T=pub"}, (209, "'pub' is no right")),
        (50, {**NEW, "secretKey": "short"}, (209, "must be longer than 6")),
        (51, {"accessKey": "somebody"}, (210, "there is no account somebody")),
        (53, {"globalWhiteAddrs": "::*"}, (211, "address pattern")),
        (53, {}, (211, "globalWhiteAddrs is missing")),
        (53, {"globalWhiteAddrs": "*", "aclFileFullPath": "/etc/passwd"}, (211, "does not name this broker's file")),
        (3001, {"username": "operator"}, (16, "the user operator exists already")),
        (3002, {"username": "somebody"}, (16, "there is no user somebody")),
        (3004, {}, (1, "field 'username' is missing")),
        (3006, {"subject": "User:somebody"}, (16, "there is no user somebody")),
        (3006, {"subject": "User:operator"}, (16, "policies are missing")),
        (3006, {"subject": "User:other"}, (16, "header and body name different subjects")),
        (3007, {"subject": "operator"}, (16, "subject operator is not User:NAME")),
        (3008, {"subject": "User:operator"}, (16, "the user operator has no policies")),
        (3009, {"subject": "User:somebody"}, (16, "there is no user somebody")),
    ],
)
async def test_a_wrong_change_is_refused_and_changes_nothing(
    path: Path, code: int, fields: dict[str, str], answer: tuple[int, str]
) -> None:
    body = b'{"subject": "User:operator"}' if fields.get("subject") in ("User:operator", "User:other") else b"{}"
    async with guarded(path) as (_, wire):
        response = await ask(wire, ADMIN, code, fields, body)
        assert (response.code, answer[1] in str(response.remark)) == (answer[0], True)
        assert str(path.parent) not in str(response.remark)
        assert (await ask(wire, ADMIN, 54, {})).code == 0
    assert text_of(path) == FILE


async def test_users_and_policies_are_answered_in_json(path: Path) -> None:
    more = path.parent / "acl" / "more.yml"
    more.parent.mkdir()
    more.write_text("accounts:\n- {accessKey: somebody, secretKey: secret-of-somebody, topicPerms: [T=PUB, U=DENY]}\n")
    user = {"username": "somebody", "userType": "Normal", "userStatus": "enable"}
    entries = [
        {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"},
        {"resource": "Topic:U", "actions": ["All"], "decision": "Deny"},
    ]
    acl = {"subject": "User:somebody", "policies": [{"policyType": "Custom", "entries": entries}]}
    only_u = {**acl, "policies": [{"policyType": "Custom", "entries": entries[1:]}]}
    async with running(path.parent / "store", acl=path.parent) as broker, connected(broker_port(broker)) as wire:
        for code, fields, answer in (
            (3004, {"username": "somebody"}, user),
            (3004, {"username": "some"}, None),
            (3005, {}, [{"username": "operator", "userType": "Super", "userStatus": "enable"}, user]),
            (3005, {"filter": "body"}, [user]),
            (3005, {"filter": "none"}, None),
            (3009, {"subject": "User:somebody"}, acl),
            (3009, {"subject": "User:operator"}, None),
            (3010, {}, [acl]),
            (3010, {"subjectFilter": "body", "resourceFilter": "U"}, [only_u]),
            (3010, {"subjectFilter": "operator"}, None),
        ):
            response = await ask(wire, ADMIN, code, fields)
            assert response.code == 0
            assert (orjson.loads(response.body) if response.body else None) == answer
        assert (await ask(wire, ADMIN, 3008, {"subject": "User:somebody", "resource": "Topic:T"})).code == 0
        assert read_rules(text_of(more)).accounts["somebody"].rights == {"U": DENY}
    assert text_of(path) == FILE


async def test_users_cannot_change_or_read_accounts(path: Path) -> None:
    fields = {**NEW, "admin": "true", "globalWhiteAddrs": "*", "username": "somebody", "subject": "User:somebody"}
    body = b'{"userType": "Super", "policies": [{"entries": [{"resource": "Topic:*", "actions": ["Pub", "Sub"]}]}]}'
    async with guarded(path) as (broker, wire), connected(vip_port(broker)) as vip:
        assert (await ask(wire, ADMIN, 50, NEW)).code == 0
        before = text_of(path)
        for port, code in product((wire, vip), (*range(50, 55), *range(3001, 3011))):
            response = await ask(port, USER, code, fields, body)
            assert (response.code, "Need admin permission" in str(response.remark)) == (1, True)
            assert "Check signature failed" in str((await ask(port, FALSE_ADMIN, code, fields, body)).remark)
            assert "No accessKey" in str((await port.ask(code, fields, body)).remark)
        assert text_of(path) == before
        assert await can_send(wire)


async def test_passwords_are_in_no_log_answer_or_audit(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    audit, header = path.parent / "audit.log", {"username": "newcomer"}
    answers: list[RemotingCommand] = []
    async with guarded(path, audit=audit) as (_, wire):
        for code, secret in ((3001, "password-1"), (3001, "password-2"), (3002, "password-3"), (3002, "short!")):
            answers.append(await ask(wire, ADMIN, code, header, b'{"password": "%b"}' % secret.encode()))
        answers += [await ask(wire, ADMIN, code, header) for code in (3004, 3005, 54)]
    assert [each.code for each in answers] == [0, 16, 0, 16, 0, 0, 0]
    assert "newcomer" in text_of(audit)
    seen = f"{caplog.text}{text_of(audit)}{answers}{b''.join(bytes(each.body) for each in answers)!r}"
    assert "password-" not in seen
    assert "short!" not in seen


async def test_oneway_change_is_checked_without_answer(path: Path) -> None:
    async with guarded(path) as (_, wire):
        await wire.send(request(50, USER.sign(NEW), flag=CommandFlag.ONEWAY))
        assert not await can_send(wire)
        await wire.send(request(50, ADMIN.sign(NEW), flag=CommandFlag.ONEWAY))
        assert bytes((await ask(wire, ADMIN, 54, {})).body).count(b"accessKey") == 2
        assert await can_send(wire)


async def test_account_requests_need_accounts(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as broker, connected(broker_port(broker)) as wire:
        codes = (*range(50, 55), *range(3001, 3011))
        assert {(await wire.ask(code)).code for code in codes} == {3}
