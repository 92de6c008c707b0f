"""``triomq acl`` against our broker: accounts are added, listed, changed, checked and deleted."""

import json
from pathlib import Path

import pytest

from tests.integration.cli_tools import complaint, ok, triomq
from tests.processes import Broker, start_triomq

FILE = "accounts:\n- {accessKey: operator, secretKey: secret-of-operator, admin: true}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plain_acl.yml").write_text(FILE)
    monkeypatch.setenv("TRIOMQ_CREDENTIALS", "env:OPERATOR")
    monkeypatch.setenv("OPERATOR", "accessKey: operator; secretKey: secret-of-operator")
    monkeypatch.setenv("SHOP", "accessKey: shop-service; secretKey: secret-of-shop")
    return tmp_path


def acl(broker: Broker, *words: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in ok("acl", *words, "--json", namesrv=broker.namesrv).splitlines()]


def test_the_life_of_an_account(folder: Path) -> None:
    with start_triomq(folder, "--acl", str(folder / "plain_acl.yml")) as broker:
        rights = ("--topic", "orders=PUB|SUB", "--topic", "logs=PUB", "--group", "billing=SUB")
        added = acl(broker, "set", "shop-service", "--secret", "env:SHOP", *rights)
        assert added == [{"account": "shop-service", "broker": broker.broker, "done": "added"}]
        acl(broker, "set", "shop-service", "--topic-default", "SUB", "--address", "10.0.0.*")
        (_, told) = acl(broker, "list")
        assert told == {
            "broker": broker.broker,
            "account": "shop-service",
            "admin": False,
            "addresses": "10.0.0.*",
            "topic_default": "SUB",
            "group_default": "DENY",
            "topics": "orders=PUB|SUB,logs=PUB",
            "groups": "billing=SUB",
        }
        checked = acl(broker, "check", "shop-service", "--topic", "logs", "--group", "other")
        assert [(each["what"], each["allowed"], each["why"]) for each in checked] == [
            ("administer", False, "admin: false"),
            ("send to logs", True, "topicPerms: logs=PUB"),
            ("read logs", False, "topicPerms: logs=PUB"),
            ("consume as other", False, "defaultGroupPerm: DENY"),
            ("everything, from its addresses", True, "whiteRemoteAddress: 10.0.0.*"),
        ]
        assert "operator" in ok("acl", "list", namesrv=broker.namesrv)
        assert "No default permission for topic:new" in complaint(
            1, "produce", "new", "--count", "1", "--credentials", "env:SHOP", namesrv=broker.namesrv
        )
        assert "is no right" in complaint(1, "acl", "set", "operator", "--topic", "a=b", namesrv=broker.namesrv)
        assert "this is the account shop-service, not another" in complaint(
            2, "acl", "set", "another", "--secret", "env:SHOP", namesrv=broker.namesrv
        )
        assert "has no account nobody" in complaint(2, "acl", "check", "nobody", namesrv=broker.namesrv)
        shop = ("--credentials", "env:SHOP", "--json")
        (pinged,) = json.loads(ok("ping", *shop, namesrv=broker.namesrv))["brokers"]
        assert (pinged["healthy"], pinged["version"]) == (True, None)
        assert "needs an administrator" in str(pinged["note"])
        acl(broker, "delete", "shop-service")
        unknown = triomq("ping", *shop, namesrv=broker.namesrv)
        assert (unknown.returncode, b"No acl config for shop-service" in unknown.stdout) == (3, True)
        assert len(acl(broker, "list")) == 1
    log = (folder / "broker.log").read_text()
    assert "secret-of" not in log


def test_a_broker_without_accounts_says_so(tmp_path: Path) -> None:
    with start_triomq(tmp_path) as broker:
        assert "has no accounts: start it with --acl" in complaint(1, "acl", "list", namesrv=broker.namesrv)
