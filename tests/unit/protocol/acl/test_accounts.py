"""Whether a request may pass, by table: code x fields x account."""

import base64
import hmac

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from triomq.protocol.acl.accounts import (
    DENY,
    PUB,
    SUB,
    Account,
    AclRules,
    check,
    fields_to_sign,
    is_signed,
    passes_as_send,
)
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.codes import SerializeType
from triomq.protocol.errors import ProtocolError, RefusedError
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import Credentials

STRICT = read_rules("""
globalWhiteRemoteAddresses: [10.9.9.9]
accounts:
- {accessKey: the-admin, secretKey: secret-1, admin: true}
- {accessKey: part-admin, secretKey: secret-2, admin: true, topicPerms: [T=SUB]}
- {accessKey: publisher, secretKey: secret-3, topicPerms: [T=PUB]}
- {accessKey: subscriber, secretKey: secret-4, topicPerms: [T=SUB], groupPerms: [G=SUB], whiteRemoteAddress: 10.1.1.1}
- {accessKey: nothing, secretKey: secret-5}
""")
SECRETS = {account.access_key: account.secret_key for account in STRICT.accounts.values()}
FAR = "10.2.2.2"


QUEUE = {"topic": "T", "brokerName": "b", "queueId": 0}
HEARTBEAT = orjson.dumps(
    {
        "clientID": "c",
        "producerDataSet": [{"groupName": "P"}],
        "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]}],
    }
)
LOCK = orjson.dumps({"consumerGroup": "G", "clientId": "c", "mqSet": [QUEUE]})
CHECK = orjson.dumps({"clientId": "c", "group": "G", "subscriptionData": {"topic": "T"}})


def request(
    code: int, fields: dict[str, str], body: bytes = b"", account: str = "", secret: str | None = None
) -> RemotingCommand:
    if account:
        fields = Credentials(account, secret or SECRETS.get(account, "none")).sign(fields, body)
    return RemotingCommand(code, ext_fields=fields, body=body)


def verdict(rules: AclRules, command: RemotingCommand, host: str = FAR) -> str:
    try:
        check(rules, CATALOGUE[command.code], command, host)
    except RefusedError as exc:
        return str(exc)
    return ""


def allowed(rules: AclRules, code: int, fields: dict[str, str], body: bytes = b"") -> str:
    """Return the initials of the accounts that may."""
    return "".join(
        account[0] if account != "part-admin" else "A"
        for account in SECRETS
        if not verdict(rules, request(code, fields, body, account))
    )


OFFSET = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "0"}
EVERYBODY = "tApsn"


@pytest.mark.parametrize(
    ("code", "fields", "body", "who"),
    [
        (10, {"topic": "T"}, b"x", "tp"),
        (10, {"topic": "%RETRY%G"}, b"x", "ts"),
        (310, {"b": "T", "a": "P"}, b"x", "tp"),
        (310, {"b": "%RETRY%other", "a": "G"}, b"x", "t"),
        (310, {"b": "%DLQ%G", "a": "P"}, b"x", "t"),
        (12, {"topic": "%DLQ%G"}, b"", "t"),
        (310, {"b": "RMQ_SYS_TRACE_TOPIC", "a": "P"}, b"x", EVERYBODY),
        (320, {"b": "T", "a": "P"}, b"x", "tp"),
        (320, {"b": "RMQ_SYS_TRACE_TOPIC", "a": "P"}, b"x", EVERYBODY),
        (10, {"topic": "RMQ_SYS_TRACE_TOPIC"}, b"x", EVERYBODY),
        (324, {"topic": "T"}, b"x", "tp"),
        (325, {"b": "T"}, b"x", "tp"),
        (324, {"topic": "RMQ_SYS_TRACE_TOPIC"}, b"x", "t"),  # only sends are traces
        (325, {"b": "RMQ_SYS_TRACE_TOPIC"}, b"x", "t"),
        (370, {"topic": "T"}, b"", "tp"),
        (370, {"topic": "RMQ_SYS_TRACE_TOPIC"}, b"", "t"),
        (11, {"topic": "T", "consumerGroup": "G"}, b"", "ts"),
        (11, {"topic": "T", "consumerGroup": "other"}, b"", "t"),
        (11, {"topic": "other", "consumerGroup": "G"}, b"", "t"),
        (361, {"topic": "T", "consumerGroup": "G"}, b"", "ts"),
        (12, {"topic": "T"}, b"", "tAs"),
        (14, OFFSET, b"", "ts"),
        (15, OFFSET, b"", "ts"),
        (29, {"topic": "T"}, b"", "tAs"),
        (30, {"topic": "T"}, b"", "tAs"),
        (31, {"topic": "%RETRY%G"}, b"", "ts"),
        (32, {"topic": "other"}, b"", "t"),
        (33, {"offset": "1"}, b"", "tA"),
        (34, {}, HEARTBEAT, "ts"),
        (35, {"clientID": "c", "consumerGroup": "G"}, b"", "ts"),
        (35, {"clientID": "c", "producerGroup": "P"}, b"", EVERYBODY),
        (36, {"group": "G"}, b"", "ts"),
        (37, {"producerGroup": "P"}, b"", EVERYBODY),
        (38, {"consumerGroup": "G"}, b"", "ts"),
        (41, {}, LOCK, "ts"),
        (42, {}, LOCK, "ts"),
        (46, {}, CHECK, "ts"),
        (105, {"topic": "T"}, b"", EVERYBODY),
        *((code, {}, b"", "tA") for code in (17, 21, 25, 26, 50, 51, 52, 53, 54, 100, 103, 200, 202, 207, 208, 215)),
        *((code, {}, b"", "tA") for code in (222, 309, 314)),
    ],
)
def test_who_may_what(code: int, fields: dict[str, str], body: bytes, who: str) -> None:
    assert allowed(STRICT, code, fields, body) == who


DEFAULTS = read_rules("""
accounts:
- {accessKey: default, secretKey: secret-1, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: entries, secretKey: secret-2, topicPerms: [RMQ_SYS_TRANS_HALF_TOPIC=SUB, c_REPLY_TOPIC=PUB|SUB]}
- {accessKey: the-admin, secretKey: secret-3, admin: true}
""")
COPIES = "defaultTopicPerm: PUB|SUB, but only topicPerms give SUB on a topic that holds messages of other topics"


@pytest.mark.parametrize(
    "topic",
    ["RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SCHEDULE_TOPIC_XXXX",
     "rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_new", "rmq_sys_TRACE_DATA_x", "c_REPLY_TOPIC"],
)  # fmt: skip
def test_default_right_reads_no_system_topic(topic: str) -> None:
    default, entries, admin = DEFAULTS.accounts.values()
    pull = request(11, {"topic": topic, "consumerGroup": "G"}, b"", "default", default.secret_key)
    assert verdict(DEFAULTS, pull) == f"No default permission for topic:{topic}"
    assert default.may(topic, PUB)
    assert default.reason(topic) == COPIES
    assert admin.may(topic, SUB)
    assert entries.may(topic, SUB) is (topic in entries.rights)


@pytest.mark.parametrize(
    "topic", ["T", "TBW102", "c", "orders_REPLY", "RMQ", "%RETRY%c_REPLY_TOPIC", "SELF_TEST_TOPIC"]
)
def test_default_right_reads_other_topics(topic: str) -> None:
    account = Account("default", "secret-1", topic_right=SUB, group_right=SUB)
    assert account.may(topic, SUB)
    assert "only" not in account.reason(topic)


@pytest.mark.parametrize(
    ("topic_right", "group_right", "entries", "may", "reason"),
    [
        (PUB | SUB, SUB, {"%RETRY%G": DENY}, DENY, "groupPerms: G=DENY"),
        (PUB | SUB, DENY, {}, DENY, "defaultGroupPerm: DENY"),
        (PUB | SUB, PUB, {}, DENY, "defaultGroupPerm: PUB"),
        (PUB | SUB, SUB, {}, PUB | SUB, "defaultTopicPerm: PUB|SUB"),
        (SUB, DENY, {"%RETRY%G": SUB}, SUB, "defaultTopicPerm: SUB"),
        (DENY, SUB, {}, DENY, "defaultTopicPerm: DENY"),
        (SUB, SUB, {"%DLQ%G": DENY}, DENY, "topicPerms: %DLQ%G=DENY"),
        (DENY, DENY, {"%DLQ%G": SUB}, SUB, "topicPerms: %DLQ%G=SUB"),
        (DENY, SUB, {"%DLQ%G": PUB}, PUB, "topicPerms: %DLQ%G=PUB"),
    ],
)
def test_dead_letters_need_right_on_group(
    topic_right: int, group_right: int, entries: dict[str, int], may: int, reason: str
) -> None:
    account = Account("somebody", "secret-1", topic_right=topic_right, group_right=group_right, rights=entries)
    assert [account.may("%DLQ%G", right) for right in (PUB, SUB)] == [bool(may & PUB), bool(may & SUB)]
    assert account.reason("%DLQ%G") == reason


@pytest.mark.parametrize(
    ("account", "secret", "text"),
    [
        ("", None, "No accessKey is configured"),
        ("stranger", None, "No acl config for stranger"),
        ("publisher", "wrong", "Check signature failed for accessKey=publisher"),
        ("publisher", None, "No default permission for group:G"),
    ],
)
def test_a_denial_says_why_in_rocketmqs_words(account: str, secret: str | None, text: str) -> None:
    assert verdict(STRICT, request(38, {"consumerGroup": "G"}, b"", account, secret)) == text
    no_topic = verdict(STRICT, request(10, {"topic": "none"}, b"", "publisher"))
    no_admin = verdict(STRICT, request(17, {}, b"", "publisher"))
    assert no_topic == "No default permission for topic:none"
    assert no_admin == "Need admin permission for request code=17, but accessKey=publisher is not"


@pytest.mark.parametrize(
    ("account", "host", "passes"),
    [("", "10.9.9.9", True), ("", "10.1.1.1", False), ("subscriber", "10.1.1.1", True), ("nothing", "10.1.1.1", False)],
)
def test_white_address_needs_no_signature_and_no_right(account: str, host: str, passes: bool) -> None:
    command = RemotingCommand(17, ext_fields={"AccessKey": account} if account else {})
    assert (not verdict(STRICT, command, host)) is passes


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [(10, {}, b""), (310, {"b": ""}, b""), (11, {"topic": "T"}, b""), (30, {}, b""), (36, {}, b""), (38, {}, b""),
     (41, {}, b'{"clientId":"c","mqSet":[]}'), (46, {}, b"{}")],
)  # fmt: skip
def test_request_without_resource_is_denied(code: int, fields: dict[str, str], body: bytes) -> None:
    for account in SECRETS:
        assert "does not say on what it acts" in verdict(STRICT, request(code, fields, body, account))


@pytest.mark.parametrize("code", [34, 41, 46])
def test_unreadable_body_is_denied(code: int) -> None:
    with pytest.raises(ProtocolError):
        check(STRICT, CATALOGUE[code], request(code, {}, b"{", "the-admin"), FAR)


TEXTS = st.text(max_size=8)
FIELDS = st.dictionaries(TEXTS.filter(lambda name: name not in ("Signature", "_UNIQUE_KEY_QUERY")), TEXTS, max_size=5)
NOBODY = STRICT.accounts["nothing"]
SIGNER = Credentials("nothing", "secret-5")


@given(FIELDS, st.binary(max_size=20), st.integers(min_value=0))
@example({"\ue000": "0", "\U00010000": "1"}, b"", 0)  # Java's order is another one than Python's
def test_a_signature_is_for_all_that_was_sent(fields: dict[str, str], body: bytes, at: int) -> None:
    signed = SIGNER.sign(fields, body)
    assert is_signed(NOBODY, signed, body)
    assert is_signed(NOBODY, {**signed, "_UNIQUE_KEY_QUERY": "true"}, body)
    assert not is_signed(NOBODY, signed, body + b"!")
    assert not is_signed(NOBODY, {**signed, "more": "text"}, body)
    assert not is_signed(STRICT.accounts["publisher"], signed, body)
    name = sorted(signed)[at % len(signed)]
    assert not is_signed(NOBODY, {**signed, name: signed[name] + "x"}, body)
    assert not is_signed(NOBODY, {key: value for key, value in signed.items() if key != "Signature"}, body)


@given(st.text(min_size=7, max_size=200), st.binary(max_size=200))
def test_a_signer_computes_hmac_sha1(secret: str, content: bytes) -> None:
    signature = base64.b64encode(hmac.digest(secret.encode(), content, "sha1"))
    assert Account("somebody", secret).signer.sign(content) == signature


@pytest.mark.parametrize("topic", ["T", "other", "%RETRY%G", "%DLQ%G", "RMQ_SYS_TRACE_TOPIC", ""])
def test_quick_send_check_never_allows_more(topic: str) -> None:
    passed = 0
    for account in (*SECRETS, "stranger"):
        for secret in (None, "wrong"):
            command = request(310, {"b": topic, "a": "G"}, b"x", account, secret)
            short = passes_as_send(STRICT, command.ext_fields, b"x")
            assert not short or not verdict(STRICT, command)
            passed += short
    assert bool(passed) is (topic not in ("%RETRY%G", "%DLQ%G", ""))


@pytest.mark.parametrize(
    "change", [{"AccessKey": None}, {"AccessKey": []}, {"b": 5}, {"b": None}, {"b": ["T"]}, {"a": 1}, {"Signature": 1}]
)
def test_short_way_leaves_odd_values_to_long_way(change: dict[str, object]) -> None:
    command = request(310, {"b": "T", "a": "P"}, b"x", "publisher")
    assert passes_as_send(STRICT, command.ext_fields, b"x")
    assert not passes_as_send(STRICT, {**command.ext_fields, **change}, b"x")


def test_the_mark_of_a_query_may_be_signed() -> None:
    fields = {"topic": "T", "AccessKey": "nothing", "_UNIQUE_KEY_QUERY": "true"}
    marked = SIGNER.sign({**fields, "_a": "true"})["Signature"]  # sorts and counts like the mark
    signed = {**fields, "Signature": marked}
    assert is_signed(NOBODY, signed, b"")


def test_null_is_signed_as_text() -> None:
    header = {"code": 30, "extFields": {"AccessKey": "nothing", "a": None, "topic": "T", "z": True}}
    signature = SIGNER.sign({"a": "null", "topic": "T", "z": "true"})["Signature"]
    header["extFields"]["Signature"] = signature  # type: ignore[index]
    command = RemotingCommand.from_json(header, b"")
    assert "a" not in command.ext_fields
    assert is_signed(NOBODY, fields_to_sign(command), b"")


def test_empty_text_of_binary_header_is_null() -> None:
    fields = {"a": "", "topic": "T"}
    binary = RemotingCommand(30, ext_fields=SIGNER.sign({**fields, "a": "null"}), serialize_type=SerializeType.ROCKETMQ)
    binary.ext_fields["a"] = ""
    assert is_signed(NOBODY, fields_to_sign(RemotingCommand.decode(binary.encode()[4:])), b"")
    assert is_signed(NOBODY, fields_to_sign(RemotingCommand(30, ext_fields=SIGNER.sign(fields))), b"")
    binary.ext_fields["AccessKey"] = ""
    assert verdict(STRICT, binary) == "No accessKey is configured"
