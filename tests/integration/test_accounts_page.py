"""Each sentence on what an account can and cannot do (docs/accounts.md), checked against a broker with accounts."""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
import pytest
import trio

from tests import processes
from tests.integration import broker_wire as wires
from tests.interop.test_acl_verdicts import V1
from triomq.broker.opening import open_broker
from triomq.broker.server import Broker
from triomq.broker.services.housekeeping import elapsed_ms
from triomq.protocol import names
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.codes import CommandFlag, ResponseCode
from triomq.protocol.codes import RequestCode as Code
from triomq.protocol.record.batch import encode_batch
from triomq.protocol.record.index_unit import key_hash
from triomq.protocol.requests.catalogue import CATALOGUE, PUBLIC, Right
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Resource
from triomq.protocol.wire.signing import Credentials
from triomq.storage.message_store import system_clock_ms

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "accounts.md"
#: ``topical`` and ``grouped`` have one of the two rights for reading; ``limited`` has a quota.
FILE: Final = """
accounts:
- {accessKey: operator, secretKey: secret-of-operator, admin: true}
- {accessKey: no-rights, secretKey: secret-of-no-rights}
- {accessKey: the-sender, secretKey: secret-of-the-sender, topicPerms: [orders=PUB, DefaultCluster_REPLY_TOPIC=PUB]}
- {accessKey: the-reader, secretKey: secret-of-the-reader, topicPerms: [orders=SUB], groupPerms: [billing=SUB]}
- {accessKey: topical, secretKey: secret-of-topical, topicPerms: [orders=SUB]}
- {accessKey: grouped, secretKey: secret-of-grouped, groupPerms: [billing=SUB]}
- {accessKey: by-default, secretKey: secret-of-by-default, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
   topicPerms: [secret=DENY, hiddenAa=DENY], groupPerms: [hidden=DENY]}
- {accessKey: part-admin, secretKey: secret-of-part-admin, admin: true, topicPerms: [orders=PUB|SUB]}
- {accessKey: limited, secretKey: secret-of-limited, topicPerms: [orders=PUB|SUB], groupPerms: [billing=SUB]}
- {accessKey: by-address, secretKey: secret-of-by-address, whiteRemoteAddress: 127.0.0.1}
"""
QUOTAS: Final = "accounts: {limited: {in_bytes_per_s: 1000}}"
DENIAL: Final = "org.apache.rocketmq.acl.common.AclException: "
PASSED: Final = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.QUERY_NOT_FOUND)


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
    """A broker with the accounts of ``FILE`` and a connection to it; ``None`` for an account does not sign."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ahead_ms = 0
        self.broker: Broker
        self.wire: wires.Wire

    @asynccontextmanager
    async def connected(self, port: int = 0) -> AsyncGenerator[wires.Wire]:
        """Use another connection within the block."""
        before = self.wire
        async with wires.connected(port or wires.broker_port(self.broker)) as self.wire:
            yield self.wire
        self.wire = before

    def pass_time(self, passed_ms: int) -> None:
        self.ahead_ms += passed_ms
        self.broker.clock_moved()

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

    async def denied(self, account: str | None, *requests: Asked, text: str = DENIAL) -> None:
        for asked in requests:
            answer = await self.ask(account, asked)
            assert answer.code not in PASSED, (account, asked)
            assert text in str(answer.remark), (account, asked, answer)

    def every(self, right: Right | None = None) -> list[Asked]:
        """Return each request that needs an account, or those with a right, on ``orders`` and ``billing``."""
        given = {Resource.TOPIC: "orders", Resource.GROUP: "billing"}
        bodies = {asked.code: asked.body for asked in (heartbeat(), *LOCKS, SUBSCRIPTION)}
        return [
            Asked(code, {n: given[kind] for n, kind, _ in row.resources if kind in given}, bodies.get(code, b""))
            for code, row in CATALOGUE.items()
            if code in self.broker.pipeline.served and right in (None, row.right) and row.kind is not PUBLIC
        ]


Check: TypeAlias = Callable[[Door], Awaitable[object]]


def says(sentence: str) -> Callable[[Check], None]:
    """Register the check of a sentence."""
    return lambda check: CHECKS.append((sentence, check))


# --- requests -----------------------------------------------------------------------------------------------


def send(topic: str = "orders", **fields: Any) -> Asked:
    return Asked(Code.SEND_MESSAGE_V2, wires.send_fields(topic, **fields), b"hello")


def delayed(topic: str, *properties: str) -> Asked:
    return send(topic, i="\x02".join(("TIMER_DELAY_SEC\x0160", *properties)))


def pull(topic: str = "orders", group: str = "billing", code: int = Code.PULL_MESSAGE) -> Asked:
    return Asked(code, wires.pull_fields(topic, consumerGroup=group, suspendTimeoutMillis=0))


def heartbeat(group: str = "billing", topic: str = "orders", client_id: str = "c-1") -> Asked:
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False, "subscriptionDataSet": [tags(topic)],
    }  # fmt: skip
    return Asked(Code.HEART_BEAT, {}, orjson.dumps({"clientID": client_id, "consumerDataSet": [consumer]}))


def producer(client_id: str = "c-2") -> Asked:
    body = {"clientID": client_id, "producerDataSet": [{"groupName": "P"}]}
    return Asked(Code.HEART_BEAT, {}, orjson.dumps(body))


def tags(topic: str) -> dict[str, Any]:
    return {"topic": topic, "subString": "*", "expressionType": "TAG", "tagsSet": [], "codeSet": [], "subVersion": 1}


def commit(group: str = "billing") -> Asked:
    return Asked(Code.UPDATE_CONSUMER_OFFSET, {**QUEUE, "consumerGroup": group, "commitOffset": 1})


def query(topic: str = "orders", key: str = "k") -> Asked:
    times = {"beginTimestamp": 0, "endTimestamp": 2**62}
    return Asked(Code.QUERY_MESSAGE, {"topic": topic, "key": key, "maxNum": 9, **times})


REPLIES: Final = "DefaultCluster_REPLY_TOPIC"
QUEUE: Final = {"topic": "orders", "queueId": 0}
_LOCK: Final = {"consumerGroup": "billing", "clientId": "c-1", "mqSet": [{**QUEUE, "brokerName": "broker-a"}]}
LOCKS: Final = [Asked(code, {}, orjson.dumps(_LOCK)) for code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ)]
_CHECK: Final = {"clientId": "c-1", "group": "billing", "subscriptionData": tags("orders")}
SUBSCRIPTION: Final = Asked(Code.CHECK_CLIENT_CONFIG, {}, orjson.dumps(_CHECK))
MEMBERS: Final = Asked(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "billing"})
UNREGISTER: Final = Asked(Code.UNREGISTER_CLIENT, {"clientID": "c-2", "producerGroup": "P"})
LEAVE: Final = Asked(Code.UNREGISTER_CLIENT, {"clientID": "c-1", "consumerGroup": "billing"})
BATCH: Final = encode_batch([(0, b"a", b""), (0, b"b", b"")])
SENDS: Final = (
    send(), Asked(Code.SEND_MESSAGE, {**V1, "topic": "orders"}, b"x"),
    Asked(Code.SEND_BATCH_MESSAGE, wires.send_fields("orders", m="true"), BATCH),
)  # fmt: skip
ROUTE: Final = Asked(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "secret"})
SETTINGS: Final = Asked(Code.GET_BROKER_CONFIG, {})
TRACE: Final = send(names.TRACE_TOPIC)
HALF: Final = send(f=4, g=0, i="TRAN_MSG\x01true\x02UNIQ_KEY\x01A\x02PGROUP\x01P")
HOLDING: Final = tuple(
    query(topic) for topic in (names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.HALF_TOPIC, names.TRACE_TOPIC, REPLIES)
)
UNDECIDED: Final = "No such transaction, or no permission for its topic"
UNSIGNED: Final = "Check signature failed"
NOT_FOUND: Final = "look message by offset failed"
NEW: Final = {"accessKey": "new-account", "secretKey": "secret-of-new-account", "admin": "false"}
ADD: Final = Asked(Code.UPDATE_AND_CREATE_ACL_CONFIG, {**NEW, "topicPerms": "orders=PUB"})
DELETE: Final = Asked(Code.DELETE_ACL_CONFIG, {"accessKey": "new-account"})
ACCOUNTS: Final = (
    *(Asked(code, {}) for code in (Code.GET_BROKER_CLUSTER_ACL_CONFIG, Code.GET_BROKER_CLUSTER_ACL_INFO)),
    ADD, DELETE, Asked(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "*"}),
    Asked(Code.AUTH_GET_USER, {"username": "operator"}), Asked(Code.AUTH_LIST_USER, {}),
    Asked(Code.AUTH_GET_ACL, {"subject": "User:operator"}), Asked(Code.AUTH_LIST_ACL, {}),
)  # fmt: skip

# fmt: off
CLAIMS: Final[dict[str, Check]] = {
    "A client cannot use an account without its secret.":
        lambda door: door.denied(
            None, *(each.signed("operator", "wrong secret") for each in (send(), SETTINGS, ROUTE)), text=UNSIGNED),
    "An account cannot reply to clients or recall messages by naming the trace topic.":
        lambda door: door.denied("no-rights", TRACE._replace(code=Code.SEND_REPLY_MESSAGE_V2),
            Asked(Code.SEND_REPLY_MESSAGE, {**V1, "topic": names.TRACE_TOPIC}),
            Asked(Code.RECALL_MESSAGE, {"topic": names.TRACE_TOPIC, "recallHandle": "x"})),
    "An account that is not an administrator cannot send any request of administration.":
        lambda door: door.denied("by-default", *door.every(Right.ADMIN), text="Need admin permission"),
    "No account can send to the topics in which delayed messages and transactions wait.":
        lambda door: door.denied("operator", *map(send, names.FORBIDDEN_TOPICS), text="is forbidden for clients"),
    "No account can change the offsets of the broker's own groups or delete the groups.":
        lambda door: door.denied("operator", commit(names.TRANSACTION_GROUP),
            Asked(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": names.TRANSACTION_GROUP, "removeOffset": "true"}),
            text="belongs to the broker"),
}
# fmt: on
CHECKS: Final = list(CLAIMS.items())

# --- sentences that are rows: each request passes for the first accounts, and is denied for the others ------------

# fmt: off
ROWS: Final[tuple[tuple[str, str, str, tuple[Asked, ...]], ...]] = (
    ("An account with PUB on a topic can send messages to it, one by one and in batches.",
     "the-sender by-default operator", "no-rights the-reader", SENDS),
    ("An account with PUB on a topic can create the topic with its first message.",
     "by-default", "no-rights the-sender", (send("new"),)),
    ("Every account can write traces to `RMQ_SYS_TRACE_TOPIC`.",
     "no-rights the-reader", "not-an-account", (TRACE,)),
    ("Every account can join and leave producer groups.",
     "no-rights the-reader", "not-an-account", (producer(), UNREGISTER)),
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
    ("An account that has only SUB on a topic cannot send to it.", "the-sender", "the-reader topical", SENDS),
    ("An account that has only PUB on a topic cannot read it.", "topical", "the-sender", (query(),)),
    ("An account without SUB on a group cannot read as the group, join it or move its offsets.",
     "the-reader", "topical", (pull(), heartbeat(), commit())),
    ("An account cannot join a group for a topic on which it has no SUB.", "the-reader", "grouped", (heartbeat(),)),
    ("An account with DENY on a topic or group cannot use it, whatever its default rights are.", "operator",
     "by-default", (send("secret"), query("secret"), pull("secret"), pull(group="hidden"), commit("hidden"))),
    ("An account cannot read topics that hold messages of other topics by its default rights.", "operator",
     "by-default", HOLDING),
    ("An account cannot read or write the dead letters of a group on which it has no SUB by its default rights.",
     "operator", "by-default", (query("%DLQ%hidden"), send("%DLQ%hidden"))),
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
    sent = await door.allowed("the-sender", delayed("orders", "UNIQ_KEY\x01A"))
    handle = Asked(Code.RECALL_MESSAGE, {"topic": "orders", "recallHandle": sent.ext_fields["recallHandle"]})
    await door.denied("the-reader", handle)
    await door.allowed("the-sender", handle)


@says("An account with PUB on the reply topic of the cluster can answer the requests of other clients.")
async def _(door: Door) -> None:
    await door.allowed("by-default", producer("c-2"))
    requester = door.wire
    reply = send(REPLIES, i="MSG_TYPE\x01reply\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01c-2")
    reply = reply._replace(code=Code.SEND_REPLY_MESSAGE_V2)
    await door.denied("the-reader", reply)
    async with door.connected() as wire:
        await wire.send(wires.request(*reply.signed("the-sender")))
        assert (await requester.next()).code == Code.PUSH_REPLY_MESSAGE_TO_CLIENT


@says("An account with PUB on a topic can commit and roll back the transactions of the topic.")
async def _(door: Door) -> None:
    for decision in (8, 12):
        await door.allowed("the-sender", await begin(door, decision))
    assert len(door.broker.transactions.undecided) == 0


@says("An account with SUB on a topic and on a group can send a message of the topic back for the group.")
async def _(door: Door) -> None:
    asked = await back(door, send())
    await door.denied("topical", asked)
    await door.denied("grouped", asked, text=NOT_FOUND)
    await door.allowed("the-reader", asked)


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


@says("An administrator can do the same with users and policies of RocketMQ 5.")
async def _(door: Door) -> None:
    async def policies(code: Code, *actions: str) -> RemotingCommand:
        entries = [{"resource": "Topic:orders", "actions": actions, "decision": "Allow"}]
        body = {"subject": "User:new-account", "policies": [{"entries": entries}]}
        return await door.allowed("operator", Asked(code, {"subject": "User:new-account"}, orjson.dumps(body)))

    user, by_name = {"username": "new-account", "password": NEW["secretKey"]}, {"username": "new-account"}
    await door.allowed("operator", Asked(Code.AUTH_CREATE_USER, by_name, orjson.dumps(user)))
    await door.denied("new-account", send())
    await policies(Code.AUTH_CREATE_ACL, "Pub")
    await door.allowed("new-account", send())
    await policies(Code.AUTH_UPDATE_ACL, "Sub")
    await door.denied("new-account", send())
    await door.allowed("operator", Asked(Code.AUTH_UPDATE_USER, by_name, b'{"userType": "Super"}'))
    await door.allowed("new-account", SETTINGS)
    await door.allowed("operator", Asked(Code.AUTH_DELETE_ACL, {"subject": "User:new-account"}))
    await door.allowed("new-account", send())
    await door.allowed("operator", Asked(Code.AUTH_DELETE_USER, by_name))
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


@says("A client cannot change the fields or the body of a signed request.")
async def _(door: Door) -> None:
    code, fields, body = right = send().signed("operator")
    for changed, content in (({"b": "secret"}, body), ({"new": "1"}, body), ({}, b"HELLO")):
        await door.denied(None, Asked(code, {**fields, **changed}, content), text=UNSIGNED)
    await door.allowed(None, right)


@says("A client cannot use the account of an earlier request on its connection.")
async def _(door: Door) -> None:
    await door.allowed("operator", SETTINGS)
    await door.denied(None, SETTINGS)
    await door.denied("no-rights", SETTINGS)


@says("A client without an account cannot do anything at a broker's port but read the time of the broker's promotion.")
async def _(door: Door) -> None:
    await door.denied(None, *door.every(), text="No accessKey is configured")
    assert [code for code, row in CATALOGUE.items() if row.kind is PUBLIC] == [Code.GET_PROMOTION]
    await door.allowed(None, Asked(Code.GET_PROMOTION, {}))


@says("A deleted account cannot do anything, on open connections either.")
async def _(door: Door) -> None:
    await door.allowed("operator", ADD)
    await door.allowed("new-account", send())
    await door.allowed("operator", DELETE)
    await door.denied("new-account", *door.every(), text="No acl config for new-account")


@says("An account without rights cannot do more than read routes, write traces, and join and leave producer groups.")
async def _(door: Door) -> None:
    free = {Code.GET_ROUTEINFO_BY_TOPIC, Code.END_TRANSACTION}
    await door.denied("no-rights", *(asked for asked in door.every() if asked.code not in free))
    await door.denied("no-rights", await begin(door), text=UNDECIDED)


@says("An account cannot commit or roll back transactions of a topic on which it has no PUB.")
async def _(door: Door) -> None:
    for decision in (8, 12):
        await door.denied("the-reader", await begin(door, decision), text=UNDECIDED)
    assert len(door.broker.transactions.undecided) == 2


@says("An account cannot get the checks of transactions of a topic on which it has no PUB.")
async def _(door: Door) -> None:
    await begin(door)
    await door.allowed("the-sender", producer("c-1"))
    owner = door.wire
    async with door.connected() as other:
        await door.allowed("the-reader", producer("c-2"))
        for _ in range(12):  # each time one of the members is drawn
            door.pass_time(door.broker.config.transaction_check_interval_ms + 1)
            assert (await owner.next()).code == Code.CHECK_TRANSACTION_STATE
        await other.ask(*ROUTE.signed("the-reader"))  # nothing came before the answer


@says("An account cannot send back a message of a topic on which it has no SUB.")
async def _(door: Door) -> None:
    asked = await back(door, send("secret"))
    await door.denied("the-reader", asked, text=NOT_FOUND)
    await door.allowed("operator", asked)


@says("An account cannot find a message of another topic by a key with the same hash.")
async def _(door: Door) -> None:
    await door.allowed("operator", send("hiddenAa", i="KEYS\x014711"))
    while not (await door.allowed("operator", query("hiddenAa", "4711"))).body:
        pass  # the index follows
    await door.denied("by-default", query("hiddenAa", "4711"))
    assert key_hash("hiddenAa", "4711") == key_hash("hiddenBB", "4711")
    assert (await door.ask("by-default", query("hiddenBB", "4711"))).code == ResponseCode.QUERY_NOT_FOUND


@says("An account cannot recall a delayed message of a topic by a request for another topic.")
async def _(door: Door) -> None:
    handle = (await door.allowed("operator", delayed("secret", "UNIQ_KEY\x01A"))).ext_fields["recallHandle"]
    recall = Asked(Code.RECALL_MESSAGE, {"topic": "orders", "recallHandle": handle})
    await door.denied("the-sender", recall, text="topic not match")
    await door.allowed("the-sender", delayed("orders", "UNIQ_KEY\x01B", "TIMER_DEL_UNIQKEY\x01A"))
    door.pass_time(120_000)
    await wires.wait_for(lambda: door.broker.store.reader.max_offset_in_queue("secret", 0) == 2)


@says("An account cannot use the client id of a connected client of another account.")
async def _(door: Door) -> None:
    await door.allowed("the-reader", heartbeat(client_id="c-1"))
    async with door.connected():
        await door.denied("by-default", producer("c-1"), heartbeat(client_id="c-1"), *LOCKS, LEAVE)
        await door.allowed("the-reader", heartbeat(client_id="c-1"))


@says("An account cannot get more rights at the VIP port.")
async def _(door: Door) -> None:
    async with door.connected(wires.vip_port(door.broker)):
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


@says("An account that is not an administrator cannot read a message by its id, even with SUB on its topic.")
async def _(door: Door) -> None:
    await door.denied("the-reader", await view(door, "orders"))


@says("An account that is not an administrator cannot see or change the accounts.")
async def _(door: Door) -> None:
    await door.denied("by-default", *ACCOUNTS)
    assert (door.folder / "plain_acl.yml").read_text() == FILE


@says("An administrator cannot read a secret of an account, or the path of the file, in any answer.")
async def _(door: Door) -> None:
    for asked in (*door.every(Right.ADMIN), *ACCOUNTS):
        answer = (await door.ask("operator", asked)).encode()
        assert (b"secret-of-" in answer, str(door.folder / "plain_acl.yml").encode() in answer) == (False, False)


@says("No account can send back a message that waits for its time or for a decision.")
async def _(door: Door) -> None:
    for sent in (delayed("orders"), HALF, send(i="DELAY\x013")):
        await door.denied("operator", await back(door, sent), text=NOT_FOUND)


@says("No account can change a topic, a group or a setting without a line in the `--audit` file that names it.")
async def _(door: Door) -> None:
    await door.ask("operator", Asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": "payments", "b": "tmp"}))
    padding = b" " * 5000
    await door.ask("operator", Asked(Code.UPDATE_BROKER_CONFIG, {}, b"#" + padding + b"\nfileReservedTime=72"))
    group = orjson.dumps({"groupName": "billing", "consumeEnable": True}) + padding
    await door.ask("operator", Asked(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group))
    wanted = [{"topic": "payments"}, {"settings": "fileReservedTime"}, {"group": "billing"}]
    await wires.wait_for(lambda: [each["resource"] for each in audited(door, "administration")] == wanted)


@says("No account can send back more bytes than its quota allows, and the copies count.")
async def _(door: Door) -> None:
    asked = await back(door, send()._replace(body=bytes(100_000)))
    await door.allowed("limited", asked)
    await door.denied("limited", asked, text="in_bytes_per_s")


@says("No account can send to the broker, read from it or administer it at the name server's port.")
async def _(door: Door) -> None:
    async with door.connected(wires.namesrv_port(door.broker)):
        for asked in (*SENDS, pull(), query(), heartbeat(), commit(), SETTINGS, *ACCOUNTS):
            assert (await door.ask("operator", asked)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# --- the page -----------------------------------------------------------------------------------------------


async def place(door: Door, sent: Asked) -> int:
    """Send a message, and return its offset in the log, which its id contains."""
    return int((await door.allowed("operator", sent)).ext_fields["msgId"][16:], 16)


async def view(door: Door, topic: str) -> Asked:
    return Asked(Code.VIEW_MESSAGE_BY_ID, {"offset": await place(door, send(topic))})


async def back(door: Door, sent: Asked) -> Asked:
    return Asked(Code.CONSUMER_SEND_MSG_BACK, {"offset": await place(door, sent), "group": "billing", "delayLevel": 0})


async def begin(door: Door, decision: int = 8) -> Asked:
    """Begin a transaction, and return the request that decides it."""
    sent = (await door.allowed("the-sender", HALF)).ext_fields
    place = {"commitLogOffset": int(sent["msgId"][16:], 16), "tranStateTableOffset": sent["queueOffset"]}
    return Asked(Code.END_TRANSACTION, {"producerGroup": "P", **place, "commitOrRollback": decision, "msgId": "A"})


def audited(door: Door, event: str) -> list[dict[str, Any]]:
    lines = map(orjson.loads, (door.folder / "audit.log").read_bytes().splitlines())
    return [line for line in lines if line["event"] == event]


@pytest.fixture
async def door(tmp_path: Path) -> AsyncGenerator[Door]:
    (tmp_path / "plain_acl.yml").write_text(FILE)
    (tmp_path / "quotas.yml").write_text(QUOTAS)
    files: dict[str, Any] = {
        "acl": tmp_path / "plain_acl.yml",
        "quotas": tmp_path / "quotas.yml",
        "audit": tmp_path / "audit.log",
    }
    config, door = wires.broker_config(tmp_path / "store", **files), Door(tmp_path)
    clocks: Any = {
        "clock_ms": lambda: system_clock_ms() + door.ahead_ms,
        "elapsed_clock_ms": lambda: elapsed_ms() + door.ahead_ms,
    }
    async with open_broker(config, file_system=processes.tests_disk(), **clocks) as door.broker:
        door.broker.worker.clock = trio.current_time
        async with wires.connected(wires.broker_port(door.broker)) as door.wire:
            await door.allowed("operator", *(send(topic, i="KEYS\x01k") for topic in ("orders", "secret")))
            yield door


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


def test_the_example_of_the_file_can_be_read() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    rules = read_rules(example)
    assert (list(rules.accounts), rules.white.has("10.10.103.7")) == (["operator", "shop-service"], True)


def test_each_sentence_has_one_check() -> None:
    assert Counter(sentences()) == Counter([*(row[0] for row in ROWS), *(sentence for sentence, _ in CHECKS)])


@pytest.mark.parametrize("check", [pytest.param(check, id=sentence) for sentence, check in CHECKS])
async def test_the_sentence_holds(door: Door, check: Check) -> None:
    await check(door)
