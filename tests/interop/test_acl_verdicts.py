"""A 4.9.7 broker with accounts is the judge of requests.

Our check of accounts, addresses and signatures decides alike if it checks only the rights that RocketMQ checks.  Our
broker, which checks the rights of each request, denies every request that the judge denies.
"""

import socket
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from hmac import digest
from typing import Any, Final, TypeAlias

import orjson
import pytest

from tests.interop.kit_driver import ApacheBrokers
from tests.processes import start_triomq
from triomq.protocol.acl.accounts import PUB, SUB, AclRules, Needs, authenticate, check_rights
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.bodies.client import HeartbeatData
from triomq.protocol.codes import CommandFlag, RequestCode, SerializeType
from triomq.protocol.errors import ProtocolError, RefusedError
from triomq.protocol.names import RETRY_PREFIX, TRACE_TOPIC, retry_topic
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter, build_frame

pytestmark = pytest.mark.jvm

FILE: Final = """
globalWhiteRemoteAddresses: [127.9.0.*, 127.8.0.1, "127.7.0.{1,2}", 127.6.1-2.*]
accounts:
- {accessKey: the-admin, secretKey: secret-1, admin: true}
- {accessKey: part-admin, secretKey: secret-2, admin: yes, topicPerms: [T=SUB]}
- {accessKey: publisher, secretKey: secret-3, topicPerms: [T=PUB, U=DENY], defaultTopicPerm: SUB}
- accessKey: subscriber
  secretKey: 0123456701
  topicPerms: [T=SUB]
  groupPerms: [G=SUB]
  whiteRemoteAddress: 127.5.0.*
- {accessKey: both-of-them, secretKey: secret-5, defaultTopicPerm: "PUB|SUB", defaultGroupPerm: "SUB|PUB"}
- {accessKey: nothing, secretKey: secret-6, whiteRemoteAddress: "127.4.0.3,127.4.0.5"}
"""
SECRETS: Final = {
    "the-admin": "secret-1", "part-admin": "secret-2", "publisher": "secret-3", "subscriber": "21913025",
    "both-of-them": "secret-5", "nothing": "secret-6", "stranger": "secret-7",
}  # fmt: skip
HOME: Final = "127.0.0.1"
DENIED: Final = "org.apache.rocketmq.acl.common.AclException: "


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request.  ``None`` among the fields is null; ``signed`` and ``signature`` replace the computed ones."""

    name: str
    code: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""
    account: str | None = None
    secret: str | None = None
    signed: str | None = None
    signature: str | None = None
    is_binary: bool = False
    source: str = HOME

    def frame(self) -> bytes:
        fields = dict(self.fields)
        if self.account is not None:
            fields["AccessKey"] = self.account
            content = "".join(
                java_text(fields[name]) for name in sorted(fields, key=lambda name: name.encode("utf-16-be"))
            )
            key = (self.secret or SECRETS.get(self.account, "none")).encode()
            mac = digest(key, (content if self.signed is None else self.signed).encode() + self.body, sha1)
            fields["Signature"] = b64encode(mac).decode() if self.signature is None else self.signature
        if self.is_binary:
            command = RemotingCommand(self.code, 1, 0, fields, self.body, serialize_type=SerializeType.ROCKETMQ)
            return command.encode()
        header = {"code": self.code, "opaque": 1, "flag": 0, "language": "JAVA", "version": 407, "extFields": fields}
        return build_frame(SerializeType.JSON, orjson.dumps(header), self.body)


def java_text(value: Any) -> str:
    return {None: "null", True: "true"}.get(value, str(value)) if not isinstance(value, str) else value


def connect(address: tuple[str, int], source: str) -> socket.socket:
    """Connect from a source address; a broker that was just started may take a moment to listen."""
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(address, 20, (source, 0))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


class Broker:
    """Connections to one broker, one from each source address."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.sockets: dict[str, socket.socket] = {}

    def verdict(self, case: Case) -> str:
        """Return the text of the denial, "" if the request passed."""
        sock = self.sockets.get(case.source)
        if sock is None:
            sock = self.sockets[case.source] = connect(self.address, case.source)
        sock.sendall(case.frame())
        splitter = FrameSplitter()
        while True:
            data = sock.recv(65536)
            assert data, f"connection closed by {case}"
            frames, error = splitter.split(data)
            assert error is None
            for frame in frames:
                answer = RemotingCommand.decode(frame)
                if answer.flag & CommandFlag.RESPONSE:
                    remark = answer.remark or ""
                    return remark.removeprefix(DENIED).partition(", org.apache")[0] if remark.startswith(DENIED) else ""

    def close(self) -> None:
        for sock in self.sockets.values():
            sock.close()


QUEUE: Final = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
SUBSCRIPTION: Final = {
    "topic": "T", "subString": "*", "expressionType": "TAG", "tagsSet": [], "codeSet": [], "subVersion": 1,
}  # fmt: skip


def heartbeat(group: str, *topics: str) -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "unitMode": False,
        "subscriptionDataSet": [{**SUBSCRIPTION, "topic": topic} for topic in topics],
    }
    return orjson.dumps({"clientID": "c", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": [consumer]})


LOCK: Final = orjson.dumps({"consumerGroup": "G", "clientId": "c", "mqSet": [QUEUE]})
CHECK: Final = orjson.dumps({"clientId": "c", "group": "G", "subscriptionData": SUBSCRIPTION})
V1: Final = {
    "producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
    "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false",
}  # fmt: skip
V2: Final = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "KEYS\x01k", "j": "0",
}  # fmt: skip
PULL: Final = {
    "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip
OFFSET: Final = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "0"}
QUERY: Final = {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"}
BACK: Final = {"offset": "1", "group": "G", "delayLevel": "0"}

#: Requests that name topics and groups, as clients write them and with other names.
REQUESTS: Final[tuple[tuple[int, Mapping[str, Any], bytes], ...]] = (
    *((10, {**V1, "topic": topic}, b"x") for topic in ("T", "U", "V", "%RETRY%G", "%DLQ%G", "RMQ_SYS_TRACE_TOPIC")),
    (10, {name: value for name, value in V1.items() if name != "topic"}, b"x"),
    (10, {**V1, "topic": "%RETRY%G", "group": "other"}, b"x"),
    *((310, {**V2, "b": topic}, b"x") for topic in ("T", "U", "V", "%RETRY%G", "%DLQ%G", "RMQ_SYS_TRACE_TOPIC", "")),
    *((310, {**V2, "b": "%RETRY%other", "a": group}, b"x") for group in ("G", "other")),
    (320, V2, b""), (324, V1, b"x"), (325, V2, b"x"),
    *((11, {**PULL, **change}, b"") for change in ({}, {"topic": "V"}, {"topic": "%RETRY%G"}, {"consumerGroup": "H"})),
    *((12, {**QUERY, "topic": topic}, b"") for topic in ("T", "U", "V")),
    *((14, {**OFFSET, **change}, b"") for change in ({}, {"topic": "V"}, {"consumerGroup": "H"})),
    *((15, {**OFFSET, **change}, b"") for change in ({}, {"topic": "V"}, {"consumerGroup": "H"})),
    (15, {"topic": "T"}, b""), (38, {}, b""), (35, {}, b""),
    *((code, {"topic": "T", "queueId": "0", "timestamp": "0"}, b"") for code in (29, 30, 31, 32)),
    *((34, {}, body) for body in (heartbeat("G", "T"), heartbeat("G", "T", "V"), heartbeat("H", "%RETRY%G"), b"{}")),
    *((35, {"clientID": "c", "consumerGroup": group}, b"") for group in ("G", "H")),
    (35, {"clientID": "c", "producerGroup": "P"}, b""),
    *((36, {**BACK, "group": group}, b"") for group in ("G", "other")),
    *((38, {"consumerGroup": group}, b"") for group in ("G", "other")),
    (41, {}, LOCK), (42, {}, LOCK), (46, {}, CHECK),
)  # fmt: skip
#: Their answers could take long, or they would change the accounts.
LEFT_OUT: Final = {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG}
OTHER_CODES: Final = [code for code in RequestCode if code not in {each[0] for each in REQUESTS} | LEFT_OUT]


def cases() -> Iterator[Case]:
    for account in (None, *SECRETS):
        for number, (code, fields, body) in enumerate(REQUESTS):
            yield Case(name=f"request {number}", code=code, fields=fields, body=body, account=account)
        for code in (*OTHER_CODES, 999, 200_050):
            yield Case(name="code", code=code, account=account)
    yield from signatures()
    for source in ("127.9.0.9", "127.9.1.9", "127.8.0.1", "127.8.0.2", "127.7.0.2", "127.7.0.12", "127.6.2.9",
                   "127.6.3.1", "127.5.0.77", "127.4.0.5", "127.4.0.4"):  # fmt: skip
        for wanted in (None, *SECRETS):
            for code, fields, body in ((310, {**V2, "b": "V"}, b"x"), (17, {}, b""), (34, {}, heartbeat("other"))):
                yield Case(
                    name="address", code=code, fields=fields, body=body, account=wanted, signature="", source=source
                )


def signatures() -> Iterator[Case]:
    """Ways to sign, odd ones too."""
    for is_binary in (False, True):

        def case(name: str, code: int = 310, fields: Mapping[str, Any] = V2, **rest: Any) -> Case:
            more = {"account": "publisher", "body": b"x", "is_binary": is_binary, **rest}  # noqa: B023
            return Case(name=f"{name} binary={is_binary}", code=code, fields=fields, **more)  # noqa: B023

        yield case("right")
        yield case("another secret", secret="secret-2")
        yield case("no signature", signature="")
        yield case("nothing signed", signed="")
        yield case("empty account", account="")
        yield case("names and values", fields={**V2, "zz": "\u00e9\u4e2d\U0001f600"})
        yield case("order of UTF-16", fields={**V2, "\uff5e": "1", "\U0001f600": "2"})
        yield case("an empty value as empty text", fields={**V2, "l": ""})
        yield case("an empty value as null", fields={**V2, "zz": ""}, signed=signed_with("null"))
        yield case("the mark of unique keys signed", 12, {**QUERY, "_UNIQUE_KEY_QUERY": "true"})
        marked = "".join(v for _, v in sorted({**QUERY, "AccessKey": "publisher"}.items()))
        yield case("the mark of unique keys not signed", 12, {**QUERY, "_UNIQUE_KEY_QUERY": "true"}, signed=marked)
        yield case("the mark on a send", fields={**V2, "_UNIQUE_KEY_QUERY": "1"}, signed=signed_with(""))
        yield case("a token", fields={**V2, "SecurityToken": "token"})
    yield Case(name="null", code=310, fields={**V2, "zz": None}, body=b"x", account="publisher")
    yield Case(name="null as nothing", code=310, fields={**V2, "zz": None}, account="publisher", signed=signed_with(""))
    yield Case(name="true", code=310, fields={**V2, "zz": True}, body=b"x", account="publisher")
    yield Case(name="number", code=310, fields={**V2, "zz": 12}, body=b"x", account="publisher")
    yield Case(name="float", code=310, fields={**V2, "zz": 1.5}, body=b"x", account="publisher")


def signed_with(last: str) -> str:
    return "".join(value for _, value in sorted({**V2, "AccessKey": "publisher"}.items())) + last


SENDS: Final = {RequestCode.SEND_MESSAGE: ("topic", "group"), RequestCode.SEND_MESSAGE_V2: ("b", "a")}
#: Code to the fields that name topic and group of a consumer.
READS: Final = {
    RequestCode.PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.QUERY_MESSAGE: ("topic", ""),
    RequestCode.UPDATE_CONSUMER_OFFSET: ("topic", "consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ("", "consumerGroup"),
    RequestCode.CONSUMER_SEND_MSG_BACK: ("", "group"),
    RequestCode.UNREGISTER_CLIENT: ("", "consumerGroup"),
}
ADMINISTRATION: Final = {
    RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_BROKER_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.DELETE_SUBSCRIPTIONGROUP,
}  # fmt: skip


def subscribing(topics: Iterable[str | None], groups: Iterable[str | None]) -> Needs:
    names = [*topics, *(retry_topic(group) if group is not None else None for group in groups)]
    return Needs({name: SUB for name in names if name is not None})


def needs_in_rocketmq(command: RemotingCommand) -> Needs:
    """Return the rights that RocketMQ 4.9.7 checks.  Source: PlainAccessValidator.java."""
    fields, code = command.ext_fields, command.code
    if code in SENDS:
        topic, group = map(fields.get, SENDS[RequestCode(code)])
        if topic is not None and topic.startswith(RETRY_PREFIX):  # 10 has no field "group", so nothing is checked
            return subscribing((), (group,))
        return Needs({} if topic is None else {topic: PUB})
    if code in READS:
        topic, group = map(fields.get, READS[RequestCode(code)])
        return subscribing((topic,), (group,))
    if code == RequestCode.HEART_BEAT:
        consumers = HeartbeatData.decode(command.body).consumer_data_set
        topics = [subscription.topic for data in consumers for subscription in data.subscription_data_set]
        return subscribing(topics, [data.group_name for data in consumers])
    return Needs({}, admin=code in ADMINISTRATION)


def verdict_in_rocketmq(rules: AclRules, case: Case) -> str:
    """Return our text of the denial with the rights that RocketMQ checks, "" if the request passes."""
    command = RemotingCommand.decode(case.frame()[4:])
    try:
        needed = needs_in_rocketmq(command)  # before all else: a bad body is an error of another kind
        account = authenticate(rules, command, case.source)
        if account is not None and needed.rights.get(TRACE_TOPIC) != PUB:
            check_rights(account, needed, command.code)
    except RefusedError as exc:
        return str(exc)
    except ProtocolError:
        pass
    return ""


Brokers: TypeAlias = tuple[Broker, ...]
"""The judge, and ours."""


@pytest.fixture(scope="module")
def brokers(apache_brokers: ApacheBrokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    folder, ours = tmp_path_factory.mktemp("judge"), tmp_path_factory.mktemp("ours")
    try:
        started = apache_brokers.start("4.9.7", folder, acl=True)
        for path in (folder / "home" / "conf" / "plain_acl.yml", ours / "plain_acl.yml"):
            path.write_text(FILE)
        apache_brokers.stop_broker(folder, kill=True)
        apache_brokers.start_broker(folder)
        with start_triomq(ours, "--acl", str(ours / "plain_acl.yml")) as own:
            found = tuple(map(Broker, (started.broker, own.broker)))
            yield found
            for each in found:
                each.close()
    finally:
        apache_brokers.stop(folder)


def is_alike(judged: str, found: str) -> bool:
    """Whether two verdicts are the same; which missing right is named first is Java's hash order."""
    if judged.startswith("No default permission") and found.startswith("No default permission"):
        return True
    return judged == found


def is_meant_to_pass(case: Case, judged: str) -> bool:
    """Whether our stricter rules allow what RocketMQ denies.

    A consumer that sends to its own retry topic may name any producer group; 5.x clients sign the mark of queries; the
    time of a promotion, a request of ours, needs no account.
    """
    if case.code == RequestCode.GET_PROMOTION:
        return True
    if judged.startswith("No default permission for group"):
        return "%RETRY%G" in (case.fields.get("b"), case.fields.get("topic")) and case.code in (10, 310)
    return signs_mark(case, judged)


def signs_mark(case: Case, judged: str) -> bool:
    """Whether the mark of a query is signed, as 5.x clients do; 4.9 brokers deny that."""
    return judged.startswith("Check signature failed") and case.name.startswith("the mark of unique keys signed")


def test_every_request_is_judged_alike(brokers: Brokers) -> None:
    judge, own = brokers
    rules = read_rules(FILE)
    different = []
    passed = 0
    for case in cases():
        judged, found, strictly = judge.verdict(case), verdict_in_rocketmq(rules, case), own.verdict(case)
        passed += not judged
        if not is_alike(judged, found) and not signs_mark(case, judged):
            different.append(f"{case}\n  judge: {judged!r}\n  found: {found!r}")
        if judged and not strictly and not is_meant_to_pass(case, judged):
            different.append(f"{case}\n  judge: {judged!r}\n  passed although the rules are stricter")
    assert not different, "\n".join([f"{len(different)} differences", *different[:40]])
    assert passed > 100
