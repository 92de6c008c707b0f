"""Each sentence on what an account can and cannot do (docs/accounts.md), checked against a broker with accounts."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
import pytest

from tests.integration import broker_wire as wires
from tests.interop.test_acl_verdicts import V1
from triomq.broker.server import Broker
from triomq.protocol.codes import CommandFlag, ResponseCode
from triomq.protocol.codes import RequestCode as Code
from triomq.protocol.names import FORBIDDEN_TOPICS
from triomq.protocol.record.batch import encode_batch
from triomq.protocol.requests.catalogue import CATALOGUE, Right
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Resource
from triomq.protocol.wire.signing import Credentials

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "accounts.md"
#: ``topical`` and ``grouped`` have one of the two rights for reading.
FILE: Final = """
accounts:
- {accessKey: operator, secretKey: secret-of-operator, admin: true}
- {accessKey: no-rights, secretKey: secret-of-no-rights}
- {accessKey: the-sender, secretKey: secret-of-the-sender, topicPerms: [orders=PUB, DefaultCluster_REPLY_TOPIC=PUB]}
- {accessKey: the-reader, secretKey: secret-of-the-reader, topicPerms: [orders=SUB], groupPerms: [billing=SUB]}
- {accessKey: topical, secretKey: secret-of-topical, topicPerms: [orders=SUB]}
- {accessKey: grouped, secretKey: secret-of-grouped, groupPerms: [billing=SUB]}
- {accessKey: by-default, secretKey: secret-of-by-default, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
   topicPerms: [secret=DENY], groupPerms: [hidden=DENY]}
- {accessKey: part-admin, secretKey: secret-of-part-admin, admin: true, topicPerms: [orders=PUB|SUB]}
- {accessKey: by-address, secretKey: secret-of-by-address, whiteRemoteAddress: 127.0.0.1}
"""
DENIAL: Final = "org.apache.rocketmq.acl.common.AclException: "
PASSED: Final = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.QUERY_NOT_FOUND)
CHECKS: Final[list[tuple[str, Callable[["Door"], Awaitable[object]]]]] = []


class Asked(NamedTuple):
    """A request."""

    code: int
    fields: Mapping[str, Any]
    body: bytes = b""

    def signed(self, account: str, secret: str = "") -> "Asked":
        texts = {name: str(value) for name, value in self.fields.items()}
        fields = Credentials(account, secret or f"secret-of-{account}").sign(texts, self.body)
        return self._replace(fields=fields)


class Door:
    """A broker with the accounts of ``FILE``, and a connection to it; ``None`` for an account does not sign."""

    def __init__(self, broker: Broker, wire: wires.Wire, path: Path) -> None:
        self.broker = broker
        self.wire = wire
        self.path = path

    async def send(self, asked: Asked) -> RemotingCommand:
        await self.wire.send(wires.request(*asked))
        while not (answer := await self.wire.next()).flag & CommandFlag.RESPONSE:  # a notice to a member
            pass
        return answer

    async def ask(self, account: str | None, asked: Asked) -> RemotingCommand:
        return await self.send(asked.signed(account) if account else asked)

    async def allowed(self, account: str | None, *requests: Asked) -> RemotingCommand:
        """Return the answer to the last request."""
        answers = [await self.ask(account, asked) for asked in requests]
        for asked, answer in zip(requests, answers, strict=True):
            assert answer.code in PASSED, (account, asked, answer.remark)
        return answers[-1]

    async def denied(self, account: str | None, *requests: Asked, reason: str = "") -> None:
        for asked in requests:
            answer = await self.ask(account, asked)
            assert str(answer.remark).startswith(DENIAL + reason), (account, asked, answer)

    def every(self, right: Right | None = None) -> list[Asked]:
        """Return each request that the broker serves, or those with a right, on ``orders`` and ``billing``."""
        names = {Resource.TOPIC: "orders", Resource.GROUP: "billing"}
        bodies = {asked.code: asked.body for asked in (heartbeat(), *LOCKS, SUBSCRIPTION)}
        return [
            Asked(code, {n: names[kind] for n, kind, _ in row.resources if kind in names}, bodies.get(code, b""))
            for code, row in CATALOGUE.items()
            if code in self.broker.pipeline.served and right in (None, row.right)
        ]


Check: TypeAlias = Callable[[Door], Awaitable[object]]


def says(sentence: str) -> Callable[[Check], None]:
    """Register the check of a sentence."""
    return lambda check: CHECKS.append((sentence, check))


# --- requests -----------------------------------------------------------------------------------------------


def send(topic: str = "orders", **fields: Any) -> Asked:
    return Asked(Code.SEND_MESSAGE_V2, wires.send_fields(topic, **fields), b"hello")


def pull(topic: str = "orders", group: str = "billing", code: int = Code.PULL_MESSAGE) -> Asked:
    return Asked(code, wires.pull_fields(topic, consumerGroup=group, suspendTimeoutMillis=0))


def heartbeat(group: str = "billing", topic: str = "orders", client_id: str = "c-1") -> Asked:
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False, "subscriptionDataSet": [tags(topic)],
    }  # fmt: skip
    return Asked(Code.HEART_BEAT, {}, orjson.dumps({"clientID": client_id, "consumerDataSet": [consumer]}))


def tags(topic: str) -> dict[str, Any]:
    return {"topic": topic, "subString": "*", "expressionType": "TAG", "tagsSet": [], "codeSet": [], "subVersion": 1}


def commit(group: str = "billing") -> Asked:
    return Asked(Code.UPDATE_CONSUMER_OFFSET, {**QUEUE, "consumerGroup": group, "commitOffset": 1})


def query(topic: str = "orders", key: str = "k") -> Asked:
    times = {"beginTimestamp": 0, "endTimestamp": 2**62}
    return Asked(Code.QUERY_MESSAGE, {"topic": topic, "key": key, "maxNum": 9, **times})


QUEUE: Final = {"topic": "orders", "queueId": 0}
_LOCK: Final = {"consumerGroup": "billing", "clientId": "c-1", "mqSet": [{**QUEUE, "brokerName": "broker-a"}]}
LOCKS: Final = [Asked(code, {}, orjson.dumps(_LOCK)) for code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ)]
_CHECK: Final = {"clientId": "c-1", "group": "billing", "subscriptionData": tags("orders")}
SUBSCRIPTION: Final = Asked(Code.CHECK_CLIENT_CONFIG, {}, orjson.dumps(_CHECK))
MEMBERS: Final = Asked(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "billing"})
LEAVE: Final = Asked(Code.UNREGISTER_CLIENT, {"clientID": "c-1", "consumerGroup": "billing"})
BATCH: Final = encode_batch([(0, b"a", b""), (0, b"b", b"")])
SENDS: Final = (
    send(), Asked(Code.SEND_MESSAGE, {**V1, "topic": "orders"}, b"x"),
    Asked(Code.SEND_BATCH_MESSAGE, wires.send_fields("orders", m="true"), BATCH),
)  # fmt: skip
ROUTE: Final = Asked(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "secret"})
SETTINGS: Final = Asked(Code.GET_BROKER_CONFIG, {})
TRACE: Final = send("RMQ_SYS_TRACE_TOPIC")
NEW: Final = {"accessKey": "new-account", "secretKey": "secret-of-new-account", "admin": "false"}
ADD: Final = Asked(Code.UPDATE_AND_CREATE_ACL_CONFIG, {**NEW, "topicPerms": "orders=PUB"})
DELETE: Final = Asked(Code.DELETE_ACL_CONFIG, {"accessKey": "new-account"})
ACCOUNTS: Final = (
    *(Asked(code, {}) for code in (Code.GET_BROKER_CLUSTER_ACL_CONFIG, Code.GET_BROKER_CLUSTER_ACL_INFO)),
    ADD, DELETE, Asked(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "*"}),
)  # fmt: skip

# --- sentences that are rows: each request passes for the first accounts, and is denied for the others ------------

# fmt: off
ROWS: Final[tuple[tuple[str, str, str, tuple[Asked, ...]], ...]] = (
    ("An account with PUB on a topic can send messages to it, one by one and in batches.",
     "the-sender by-default operator", "no-rights the-reader", SENDS),
    ("An account with PUB on a topic can create the topic with its first message.",
     "by-default", "no-rights the-sender", (send("new"),)),
    ("Every account can write traces to `RMQ_SYS_TRACE_TOPIC`.",
     "no-rights the-reader", "not-an-account", (TRACE,)),
    ("An account with SUB on a topic and on a group can pull the topic's messages as the group.",
     "the-reader by-default", "no-rights the-sender topical grouped", (pull(), pull(code=Code.LITE_PULL_MESSAGE))),
    ("An account with SUB on a topic and on a group can read and commit the group's offsets in the topic.",
     "the-reader by-default", "no-rights the-sender topical grouped",
     (commit(), Asked(Code.QUERY_CONSUMER_OFFSET, {**QUEUE, "consumerGroup": "billing"}))),
    ("An account with SUB on a topic and on a group can join the group as a consumer of the topic.",
     "the-reader", "no-rights the-sender topical grouped", (heartbeat(),)),
    ("An account with SUB on a topic and on a group can lock and unlock the topic's queues for the group.",
     "the-reader", "no-rights the-sender topical grouped", (heartbeat(), *LOCKS)),
    ("An account with SUB on a topic and on a group can have the broker check a subscription of the group.",
     "the-reader by-default", "no-rights the-sender topical grouped", (SUBSCRIPTION,)),
    ("An account with SUB on a group can send to the group's retry topic and read it.",
     "grouped", "no-rights the-sender topical", (send("%RETRY%billing"), pull("%RETRY%billing"))),
    ("An account with SUB on a topic can query the topic's messages by key.",
     "topical by-default", "no-rights the-sender grouped", (query(),)),
    ("An account with SUB on a topic can read the offsets and times of the topic's queues.",
     "topical by-default", "no-rights the-sender grouped",
     tuple(Asked(code, {**QUEUE, "timestamp": 0}) for code in (29, 30, 31, 32))),
    ("Every account can read the route of every topic.",
     "no-rights the-sender", "not-an-account", (ROUTE,)),
    ("An administrator without `topicPerms` and `groupPerms` can send to every topic and read it as every group.",
     "operator", "by-default part-admin", (send("secret"), pull("secret", "hidden"))),
    ("An account with SUB only on a topic cannot send to it.", "the-sender", "the-reader topical", SENDS),
    ("An account with PUB only on a topic cannot read it.", "topical", "the-sender", (query(),)),
    ("An account without SUB on a group cannot read as the group, join it or move its offsets.",
     "the-reader", "topical", (pull(), heartbeat(), commit())),
    ("An account cannot join a group for a topic on which it has no SUB.", "the-reader", "grouped", (heartbeat(),)),
    ("An account with DENY on a topic or group cannot use it, whatever its default rights are.", "operator",
     "by-default", (send("secret"), query("secret"), pull("secret"), pull(group="hidden"), commit("hidden"))),
    ("An administrator with `topicPerms` or `groupPerms` cannot use other topics and groups beyond its default rights.",
     "operator", "part-admin", (send("secret"), query("secret"), pull("secret"), pull(group="hidden"))),
)
# fmt: on


@pytest.mark.parametrize(("allowed", "denied", "asked"), [pytest.param(*rest, id=name) for name, *rest in ROWS])
async def test_only_accounts_with_the_right_pass(
    door: Door, allowed: str, denied: str, asked: tuple[Asked, ...]
) -> None:
    for account in denied.split():
        await door.denied(account, *asked)
    for account in allowed.split():
        await door.allowed(account, *asked)


# --- can ----------------------------------------------------------------------------------------------------


@says("An account with PUB on a topic can recall a delayed message of the topic.")
async def _(door: Door) -> None:
    delayed = await door.allowed("the-sender", send(i="TIMER_DELAY_SEC\x0160\x02UNIQ_KEY\x01A"))
    handle = Asked(Code.RECALL_MESSAGE, {"topic": "orders", "recallHandle": delayed.ext_fields["recallHandle"]})
    await door.denied("the-reader", handle)
    await door.allowed("the-sender", handle)


@says("An account with PUB on the reply topic of the cluster can answer the requests of other clients.")
async def _(door: Door) -> None:
    requester = {"clientID": "c-2", "producerDataSet": [{"groupName": "P"}]}
    await door.allowed("by-default", Asked(Code.HEART_BEAT, {}, orjson.dumps(requester)))
    reply = send("DefaultCluster_REPLY_TOPIC", i="MSG_TYPE\x01reply\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01c-2")
    reply = reply._replace(code=Code.SEND_REPLY_MESSAGE_V2)
    await door.denied("the-reader", reply)
    async with wires.connected(wires.broker_port(door.broker)) as wire:
        await wire.send(wires.request(*reply.signed("the-sender")))
        assert (await door.wire.next()).code == Code.PUSH_REPLY_MESSAGE_TO_CLIENT


@says("An account with SUB on a group can list the members of the group, and leave it.")
async def _(door: Door) -> None:
    await door.allowed("the-reader", heartbeat())
    await door.denied("topical", MEMBERS, LEAVE)
    assert b"c-1" in (await door.allowed("grouped", MEMBERS)).body
    await door.allowed("the-reader", LEAVE)


@says("An administrator can send every request of administration.")
async def _(door: Door) -> None:
    for asked in door.every(Right.ADMIN):
        assert DENIAL not in str((await door.ask("operator", asked)).remark)


@says("An administrator can read a message by its id, whatever its topic is.")
async def _(door: Door) -> None:
    assert b"secret" in (await door.allowed("operator", await view(door, "secret"))).body


@says("An administrator can add, change and delete accounts, and open connections have the new rights at once.")
async def _(door: Door) -> None:
    await door.denied("new-account", send())
    await door.allowed("operator", ADD)
    await door.allowed("new-account", send())
    await door.allowed("operator", ADD._replace(fields={**NEW, "topicPerms": "orders=SUB"}))
    await door.denied("new-account", send())
    await door.allowed("operator", DELETE)
    await door.denied("new-account", ROUTE)


@says("A client at an address of `globalWhiteRemoteAddresses` can do everything without an account.")
async def _(door: Door) -> None:
    await door.denied(None, SETTINGS, send("secret"))
    await door.allowed("operator", Asked(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "127.0.0.1"}))
    await door.allowed(None, SETTINGS, send("secret"))


@says("A client at an account's `whiteRemoteAddress` can do everything with the access key, without a signature.")
async def _(door: Door) -> None:
    for code, fields, body in (SETTINGS, send("secret")):
        await door.allowed(None, Asked(code, {**fields, "AccessKey": "by-address"}, body))
        await door.denied(None, Asked(code, {**fields, "AccessKey": "operator"}, body))


# --- cannot -------------------------------------------------------------------------------------------------


@says("A client without an account cannot do anything at a broker's port.")
async def _(door: Door) -> None:
    await door.denied(None, *door.every(), reason="No accessKey is configured")


@says("A client cannot use an account without its secret.")
async def _(door: Door) -> None:
    wrong = [asked.signed("operator", "not the secret") for asked in (send(), SETTINGS, ROUTE)]
    await door.denied(None, *wrong, reason="Check signature failed")


@says("A client cannot change the fields or the body of a signed request.")
async def _(door: Door) -> None:
    code, fields, body = right = send().signed("operator")
    for changed, content in (({"b": "secret"}, body), ({"new": "1"}, body), ({}, b"HELLO")):
        await door.denied(None, Asked(code, {**fields, **changed}, content), reason="Check signature failed")
    await door.allowed(None, right)


@says("A client cannot use the account of an earlier request on its connection.")
async def _(door: Door) -> None:
    await door.allowed("operator", SETTINGS)
    await door.denied(None, SETTINGS)
    await door.denied("no-rights", SETTINGS)


@says("A deleted account cannot do anything, on open connections either.")
async def _(door: Door) -> None:
    await door.allowed("operator", ADD)
    await door.allowed("new-account", send())
    await door.allowed("operator", DELETE)
    await door.denied("new-account", *door.every(), reason="No acl config for new-account")


@says("An account without rights cannot do anything but read routes, write traces and decide transactions.")
async def _(door: Door) -> None:
    free = {Code.GET_ROUTEINFO_BY_TOPIC, Code.END_TRANSACTION}
    await door.denied("no-rights", *(asked for asked in door.every() if asked.code not in free))
    await door.allowed("no-rights", ROUTE, TRACE)


@says("An account cannot get more rights at the VIP port.")
async def _(door: Door) -> None:
    async with wires.connected(wires.vip_port(door.broker)) as door.wire:
        await door.denied("topical", *SENDS)
        await door.denied("by-default", *door.every(Right.ADMIN))
        await door.denied(None, *door.every())
        await door.allowed("the-sender", *SENDS)


@says("A denied request cannot store a message or create a topic, one-way requests included.")
async def _(door: Door) -> None:
    for asked in (send("new"), send("orders")):
        await door.wire.send(wires.request(*asked.signed("topical"), flag=CommandFlag.ONEWAY))
        await door.denied("topical", asked)
    assert door.broker.topics.get("new") is None
    assert door.broker.store.reader.max_offset_in_queue("orders", 0) == 1


@says("An account that is not an administrator cannot send any request of administration.")
async def _(door: Door) -> None:
    await door.denied("by-default", *door.every(Right.ADMIN), reason="Need admin permission for request code=")


@says("An account that is not an administrator cannot read a message by its id, even with SUB on its topic.")
async def _(door: Door) -> None:
    await door.denied("the-reader", await view(door, "orders"))


@says("An account that is not an administrator cannot see or change the accounts.")
async def _(door: Door) -> None:
    await door.denied("by-default", *ACCOUNTS)
    assert door.path.read_text() == FILE


@says("An administrator cannot read a secret of an account, or the path of the file, in any answer.")
async def _(door: Door) -> None:
    for asked in door.every(Right.ADMIN):
        answer = (await door.ask("operator", asked)).encode()
        assert (b"secret-of-" in answer, str(door.path).encode() in answer) == (False, False)


@says("No account can send to the topics in which delayed messages and transactions wait.")
async def _(door: Door) -> None:
    for topic in FORBIDDEN_TOPICS:
        assert (await door.ask("operator", send(topic))).code == ResponseCode.NO_PERMISSION


@says("No account can send to the broker, read from it or administer it at the name server's port.")
async def _(door: Door) -> None:
    async with wires.connected(wires.namesrv_port(door.broker)) as door.wire:
        for asked in (*SENDS, pull(), query(), heartbeat(), commit(), SETTINGS, *ACCOUNTS):
            assert (await door.ask("operator", asked)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# --- the page -----------------------------------------------------------------------------------------------


async def view(door: Door, topic: str) -> Asked:
    """Send a message, and return the request that reads it: its id contains its offset."""
    message_id = (await door.allowed("operator", send(topic))).ext_fields["msgId"]
    return Asked(Code.VIEW_MESSAGE_BY_ID, {"offset": int(message_id[16:], 16)})


@pytest.fixture
async def door(tmp_path: Path) -> Any:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    async with wires.running(tmp_path / "store", acl=path) as broker:
        async with wires.connected(wires.broker_port(broker)) as wire:
            opened = Door(broker, wire, path)
            await opened.allowed("operator", *(send(topic, i="KEYS\x01k") for topic in ("orders", "secret")))
            yield opened


def sentences() -> list[str]:
    """Return the items of the two sections, which hold nothing else but headings."""
    found = []
    for section in ("What an account can do", "What an account cannot do"):
        _, _, rest = PAGE.read_text().partition(f"\n## {section}\n")
        for paragraph in re.split(r"\n(?=- |\n)", rest.partition("\n## ")[0]):
            text = " ".join(paragraph.split())
            if text and not text.startswith("### "):
                assert text.startswith("- "), f"not an item of a list: {text}"
                found.append(text.removeprefix("- "))
    return found


def test_each_sentence_has_one_check() -> None:
    assert Counter(sentences()) == Counter([*(row[0] for row in ROWS), *(sentence for sentence, _ in CHECKS)])


@pytest.mark.parametrize("check", [pytest.param(check, id=sentence) for sentence, check in CHECKS])
async def test_the_sentence_holds(door: Door, check: Check) -> None:
    await check(door)
