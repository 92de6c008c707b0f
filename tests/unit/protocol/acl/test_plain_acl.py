import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.acl.accounts import DENY, PUB, SUB
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

FILE = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.{1,2}
  -
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB = PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB
  - accessKey: 'rocketmq2'
    secretKey: 0123456701
    whiteRemoteAddress: 192.168.1.*
    admin: on
"""


def test_the_file_is_read_as_rocketmq_does() -> None:
    rules = read_rules(FILE)
    assert [rules.white.has(host) for host in ("10.10.103.9", "192.168.0.2", "192.168.0.3")] == [True, True, False]
    first, second = rules.accounts.values()
    assert (first.access_key, first.secret_key, first.is_admin) == ("RocketMQ", "12345678", False)
    assert (first.topic_right, first.group_right) == (DENY, SUB)
    assert first.rights == {
        "%RETRY%groupA": DENY,
        "%RETRY%groupB": PUB,
        "topicA": DENY,
        "topicB": PUB | SUB,
        "topicC": SUB,
    }
    assert (second.secret_key, second.is_admin, second.white.has("192.168.1.7")) == ("21913025", True, True)


def test_tabs_after_unquoted_text_are_blanks() -> None:
    for blanks in ("\t", " \t ", "\t\t", "\t# a note", "\t\r"):
        text = FILE
        for value in ("RocketMQ", "12345678", "false", "SUB", "topicA=DENY", "groupB=PUB", "on", "10.10.103.*"):
            assert f"{value}\n" in text
            text = text.replace(f"{value}\n", f"{value}{blanks}\n")
        assert read_rules(text) == read_rules(FILE)


@pytest.mark.parametrize(
    "text",
    ["\taccounts:", "accounts:\n- accessKey:\tabc", "accounts:\n-\taccessKey: abc", "accounts: 'a'\t", "a: |\t\n b"],
)
def test_a_tab_that_snakeyaml_refuses_is_named(text: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"line {text.count(chr(10), 0, text.index(chr(9))) + 1}: .* a tab .*use blanks"
    ):
        read_rules(text)


@pytest.mark.parametrize(
    "text", ["", "# nobody\n", "---\n", "accounts:\n", "accounts: []\nglobalWhiteRemoteAddresses:"]
)
def test_empty_file_admits_no_one(text: str) -> None:
    rules = read_rules(text)
    assert not rules.accounts
    assert not rules.white


def account(more: str = "", key: str = "somebody", secret: str = "secret-42") -> str:
    return f"accounts:\n- accessKey: {key}\n  secretKey: {secret}\n  {more}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- 1", "line 1: here belong the fields"),
        ("account:\n", "line 1: there is no field 'account'"),
        ("accounts: 5", "line 1: here belongs a list"),
        ("accounts:\n- x", "line 2: here belong the fields accessKey"),
        ("accounts:\n- accessKey: [", "line 2: this is not YAML"),
        ("accounts: []\naccounts: []", "line 2: accounts is given twice"),
        ("globalWhiteRemoteAddresses: ['*', 127.*.0.5]", "line 1: address pattern"),
        ("globalWhiteRemoteAddresses: [7]", "line 1: address pattern"),
        (account(key="six666"), "line 2: accessKey and secretKey must be longer than 6"),
        (account(secret="''"), "line 2: accessKey and secretKey"),
        (account(secret="yes"), "line 3: secretKey is not text: put it in quotes"),
        (account(secret="1.2345678"), "line 3: secretKey is not text"),
        (account(secret="12345e678"), "line 3: secretKey is not text"),
        (account(secret="2020-01-01"), "line 3: secretKey is not text"),
        (account(secret="*secret-42"), "line 3: this is not YAML: found undefined alias ..."),
        (account("admin: sure"), "line 4: admin must be"),
        (account("admin: !!bool sure"), "line 4: admin must be"),
        (account(secret="0b_"), "line 3: secretKey is not text"),
        (account(secret="9" * 5000), "line 3: secretKey is not text"),
        (account("whiteRemoteAddress: 10.0.0.1/8"), "line 4: address pattern"),
        (account("defaultTopicPerm: PUB,SUB"), "line 4: 'PUB,SUB' is no right"),
        (account("defaultGroupPerm: PUB | SUB"), "line 4: 'PUB | SUB' is no right"),
        (account("topicPerms: [a=pub]"), "line 4: 'pub' is no right"),
        (account("topicPerms: [a=ANY]"), "line 4: 'ANY' is no right"),
        (account("topicPerms: [a]"), "line 4: topicPerms: 'a' is not NAME=RIGHT"),
        (account("groupPerms: [a=PUB, a=SUB]"), "line 4: groupPerms: a is given twice"),
        (account("topicPerm: [a=PUB]"), "line 4: there is no field 'topicPerm'"),
        (account() + "\n- {accessKey: somebody, secretKey: secret-43}", "line 5: accessKey somebody is given twice"),
    ],
)
def test_mistake_is_reported_by_line_without_secrets(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_rules(text)
    assert str(caught.value).startswith(reason)
    assert not any(secret in str(caught.value) for secret in ("secret-42", "secret-43", "2345"))


def test_a_secret_is_not_shown() -> None:
    rules = read_rules(account())
    assert "somebody" in repr(rules)
    assert "secret-42" not in repr(rules)


# --- changes ---

CHANGED = """# to be lost
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
    before = read_rules(CHANGED)
    text = set_account(
        CHANGED, changes_of({"accessKey": "somebody", "secretKey": "secret: #1", "topicPerms": "a=SUB,b=PUB"})
    )
    added = read_rules(text).accounts["somebody"]
    assert (added.secret_key, added.is_admin, sorted(added.rights)) == ("secret: #1", False, ["a", "b"])
    text = set_account(text, changes_of({"accessKey": "somebody", "admin": "true", "topicPerms": "", "Signature": "x"}))
    changed = read_rules(text).accounts["somebody"]
    assert (changed.secret_key, changed.is_admin, changed.rights) == ("secret: #1", True, {})
    assert read_rules(delete_account(text, "somebody")) == before
    assert "Signature" not in text


def test_white_addresses_are_replaced() -> None:
    text = set_white_addresses(CHANGED, split("10.0.0.{1,2}, 11.0.0.1"))
    rules = read_rules(text)
    assert [rules.white.has(host) for host in ("10.0.0.2", "11.0.0.1", "10.0.0.9")] == [True, True, False]
    assert rules.accounts == read_rules(CHANGED).accounts
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
        set_account(CHANGED, changes_of(fields))
    assert "short1" not in str(caught.value)


def test_changes_of_missing_entries_are_errors() -> None:
    with pytest.raises(ConfigError, match="there is no account nobody"):
        delete_account(CHANGED, "nobody")
    with pytest.raises(ConfigError, match="address pattern"):
        set_white_addresses(CHANGED, ["10.0.0.0/8"])
    with pytest.raises(ConfigError, match="line 1"):
        set_white_addresses("[]", [])


def test_no_secret_is_shown() -> None:
    assert public_accounts([CHANGED]) == {
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
