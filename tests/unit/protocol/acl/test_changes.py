import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.acl.plain_acl import (
    changes_of,
    delete_account,
    public_accounts,
    read_document,
    read_rules,
    set_account,
    set_white_addresses,
    split,
)
from triomq.protocol.errors import ConfigError

FILE = """# to be lost
globalWhiteRemoteAddresses: [10.0.0.*]
accounts:
- accessKey: operator
  secretKey: 0123456701
  admin: yes
  whiteRemoteAddress:
- {accessKey: 12345678, secretKey: "12345e678", topicPerms: [a=PUB], groupPerms: []}
dataVersion: [{counter: 1, timestamp: 2}]
"""


def test_account_is_added_and_changed_and_rest_stays() -> None:
    before = read_rules(FILE)
    text = set_account(
        FILE, changes_of({"accessKey": "somebody", "secretKey": "secret: #1", "topicPerms": "a=SUB,b=PUB"})
    )
    added = read_rules(text).accounts["somebody"]
    assert (added.secret_key, added.is_admin, sorted(added.rights)) == ("secret: #1", False, ["a", "b"])
    text = set_account(text, changes_of({"accessKey": "somebody", "admin": "true", "topicPerms": "", "Signature": "x"}))
    changed = read_rules(text).accounts["somebody"]
    assert (changed.secret_key, changed.is_admin, changed.rights) == ("secret: #1", True, {})
    assert read_rules(delete_account(text, "somebody")) == before
    assert "Signature" not in text


def test_white_addresses_are_replaced() -> None:
    text = set_white_addresses(FILE, split("10.0.0.{1,2}, 11.0.0.1"))
    rules = read_rules(text)
    assert [rules.white.has(host) for host in ("10.0.0.2", "11.0.0.1", "10.0.0.9")] == [True, True, False]
    assert rules.accounts == read_rules(FILE).accounts
    assert not read_rules(set_white_addresses(text, [])).white


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "accessKey is missing"),
        ({"accessKey": "newcomer"}, "accessKey and secretKey must be longer"),
        ({"accessKey": "newcomer", "secretKey": "short1"}, "accessKey and secretKey must be longer"),
        ({"accessKey": "operator", "topicPerms": "a=pub"}, "'pub' is no right"),
        ({"accessKey": "operator", "whiteRemoteAddress": "::*"}, "address pattern"),
        ({"accessKey": "operator", "secretKey": "a\x80bcdefgh"}, "this is not YAML"),
    ],
)
def test_what_could_not_read_again_not_written(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        set_account(FILE, changes_of(fields))
    assert "short1" not in str(caught.value)


def test_changes_of_missing_entries_are_errors() -> None:
    with pytest.raises(ConfigError, match="there is no account nobody"):
        delete_account(FILE, "nobody")
    with pytest.raises(ConfigError, match="address pattern"):
        set_white_addresses(FILE, ["10.0.0.0/8"])
    with pytest.raises(ConfigError, match="line 1"):
        set_white_addresses("[]", [])


def test_no_secret_is_shown() -> None:
    assert public_accounts([FILE]) == {
        "globalWhiteAddrs": ["10.0.0.*"],
        "plainAccessConfigs": [
            {"accessKey": "operator", "admin": True},
            {"accessKey": "12345678", "admin": False, "topicPerms": ["a=PUB"], "groupPerms": []},
        ],
    }


KEYS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co")), min_size=7, max_size=12)


@given(KEYS, KEYS, st.booleans())
def test_any_account_can_be_written(key: str, secret: str, is_admin: bool) -> None:
    changes = {"accessKey": key, "secretKey": secret, "admin": "true" if is_admin else "false"}
    try:
        text = set_account("", changes_of(changes))
    except ConfigError:  # a character that YAML forbids
        return
    assert read_document(text) == ([], [{**changes, "admin": is_admin}])
    account = read_rules(text).accounts[key]
    assert (account.secret_key, account.is_admin) == (secret, is_admin)
