import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.errors import ConfigError, ProtocolError
from triomq.protocol.wire.signing import Credentials, parse_credentials

FIELDS = {
    "a": "p", "b": "topicB", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
    "i": "KEYS\x01k", "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip
ACCOUNT = Credentials("RocketMQ", "12345678")


def test_a_signature_is_that_of_java() -> None:
    """The vector of wire.md 12, which a 4.9.7 broker accepted."""
    signed = ACCOUNT.sign(FIELDS, b"hi")
    assert signed == {**FIELDS, "AccessKey": "RocketMQ", "Signature": "bA03MickXVtzCOWHIyR+IPL+Roc="}


def test_mark_of_queries_by_unique_key_not_sent() -> None:
    """Whether it is signed differs between the versions of brokers."""
    assert ACCOUNT.sign({**FIELDS, "_UNIQUE_KEY_QUERY": "true"}, b"hi") == ACCOUNT.sign(FIELDS, b"hi")


def test_what_no_header_can_hold_is_not_signed() -> None:
    """Such text comes from a command line that is no UTF-8."""
    with pytest.raises(ProtocolError, match="UTF-8"):
        ACCOUNT.sign({"topic": "\udcff"})


@given(st.dictionaries(st.text(), st.text(), max_size=8), st.binary(max_size=50), st.text(min_size=1))
def test_values_are_signed_in_order_of_their_names(fields: dict[str, str], body: bytes, secret: str) -> None:
    fields = {name: value for name, value in fields.items() if name not in {"Signature", "_UNIQUE_KEY_QUERY"}}
    signed = {**fields, "AccessKey": "me"}
    names = sorted(signed, key=lambda name: name.encode("utf-16-be"))  # Java's order
    content = b"".join(signed[name].encode() for name in names) + body
    mac = hmac.new(secret.encode(), content, hashlib.sha1).digest()
    assert Credentials("me", secret).sign(fields, memoryview(body))["Signature"] == base64.b64encode(mac).decode()


def test_no_secret_is_in_text_of_account() -> None:
    account = Credentials("me", "hush", "token")
    assert str(account) == repr(account) == "Credentials(access_key='me')"


@pytest.mark.parametrize(
    ("text", "account"),
    [
        ("accessKey: me\nsecretKey: hush", Credentials("me", "hush")),
        ("# of the test\n\nsecretKey:  'a:b '\n accessKey: \"me\"\nother: x\nnonsense", Credentials("me", "a:b ")),
        ("accessKey: me\r\nsecretKey: hush\r\nsecurityToken: t\r\n", Credentials("me", "hush", "t")),
        ("accessKey: me\nsecretKey: hush\nsecurityToken:", Credentials("me", "hush")),
    ],
)
def test_account_is_read_as_apaches_tools_have_it(text: str, account: Credentials) -> None:
    assert parse_credentials(text) == account


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", "no accessKey and no secretKey"),
        ("secretKey: hush", "no accessKey;"),
        ("accessKey: hush\nsecretKey:", "no secretKey;"),
    ],
)
def test_missing_part_is_named_without_secrets(text: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=missing) as caught:
        parse_credentials(text)
    assert "hush" not in str(caught.value)


def test_an_account_needs_both_keys() -> None:
    for keys in (("", "hush"), ("hush", "")):
        with pytest.raises(ConfigError, match="must not be empty") as caught:
            Credentials(*keys)
        assert "hush" not in str(caught.value)
