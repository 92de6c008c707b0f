from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.acl.accounts import DENY, PUB, SUB
from triomq.protocol.acl.plain_acl import read_rules
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


PIECES = st.sampled_from(
    ["accounts", "globalWhiteRemoteAddresses", "accessKey", "secretKey", "admin", "topicPerms", ": ", "\n", "- ", "  ",
     "[", "]", "{", "}", ",", "a=PUB", "=", "0b_", "0x_", "1_000", "9" * 5000, "1:2:3", "~", "&a ", "*a", "!!int ",
     "!!bool ", "!!binary ", "|", "'", '"', "<<", "? ", "---", "...", "%YAML 1.1", "\t", "10.0.0.1", "*", "yes", "1e5",
     "2020-01-01", "\u00e9", "\ufeff", "\x00"]
)  # fmt: skip


@given(st.lists(PIECES | st.characters(), max_size=30).map("".join))
def test_any_text_is_rules_or_an_error(text: str) -> None:
    with suppress(ConfigError):
        read_rules(text)


@given(st.integers(0, len(FILE)), st.integers(0, 5), st.lists(PIECES, max_size=2).map("".join))
def test_any_change_of_file_makes_rules_or_error(at: int, removed: int, added: str) -> None:
    with suppress(ConfigError):
        read_rules(FILE[:at] + added + FILE[at + removed :])
