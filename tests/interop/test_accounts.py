"""Accounts: our client against Apache's brokers and ours, and Apache's clients against ours."""

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from tests.interop.clusters import QUICK_CHECKS
from tests.interop.kit_driver import KIT, START_TIMEOUT_S, ApacheBrokers, check_verdict, run, run_scenarios
from tests.interop.suite_tools import Inbox, fresh, push_consumer
from tests.processes import start_triomq
from triomq.client import (
    Admin,
    BrokerResponseError,
    ClientConfig,
    ClientInstance,
    Credentials,
    Producer,
    PullConsumer,
    TransactionProducer,
    TransactionState,
)
from triomq.protocol.acl.accounts import DENY, PUB, SUB, Account
from triomq.protocol.acl.addresses import parse_pattern, union
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.codes import RequestCode
from triomq.protocol.record.message import Message, MessageExt
from triomq.protocol.requests.groups import ListAclsRequestHeader, ListUsersRequestHeader, SubjectRequestHeader

pytestmark = pytest.mark.jvm
LIMIT_S = 60
ADMIN = Credentials("conformance", "conformance-secret")
LIMITED = Credentials("limited", "limited-secret")
WORKER = Credentials("worker-1", "worker-secret")
MAKER = Credentials("maker-1", "maker-secret")  # makes topics, but sends and consumes by its rights


#: The accounts of Apache's brokers in the kit.
FILE = """accounts:
- {accessKey: conformance, secretKey: conformance-secret, admin: true}
- {accessKey: limited, secretKey: limited-secret, defaultTopicPerm: DENY, defaultGroupPerm: DENY}
- {accessKey: worker-1, secretKey: worker-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: maker-1, secretKey: maker-secret, admin: true, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
   topicPerms: [other=DENY]}
"""
ACCOUNT_OPTIONS = ("--access-key", ADMIN.access_key, "--secret-key", ADMIN.secret_key)
LIMITED_OPTIONS = ("--limited", f"{LIMITED.access_key}:{LIMITED.secret_key}")
#: What a client does, in few scenarios.
SCENARIOS = (
    "acl_wrong_secret", "acl_no_permission", "send_batch", "push_concurrent_tags", "push_orderly",
    "push_retry_then_succeed", "push_dead_letter", "offsets_persist_across_restart", "request_reply",
    "transaction_check_back", "query_by_unique_key", "message_trace", "lite_pull_assign_seek", "mqadmin_commands",
)  # fmt: skip


@pytest.fixture(scope="module")
def own_namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of our broker with accounts."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "plain_acl.yml").write_text(FILE)
    with start_triomq(folder, *QUICK_CHECKS, "--acl", str(folder / "plain_acl.yml")) as broker:
        yield broker.namesrv
    log = broker.log.read_text(encoding="utf-8")
    assert "requests denied" in log
    assert not [account for account in (ADMIN, LIMITED, WORKER) if account.secret_key in log]


@pytest.fixture(scope="module", params=["4.9.7", "5.5.0", "triomq"])
def namesrv(
    request: pytest.FixtureRequest, apache_brokers: ApacheBrokers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "triomq":
        yield request.getfixturevalue("own_namesrv")
        return
    folder = tmp_path_factory.mktemp("acl")
    try:
        yield apache_brokers.start(request.param, folder, acl=True).namesrv
    finally:
        apache_brokers.stop(folder)


def config(account: Credentials | None) -> ClientConfig:
    return ClientConfig(credentials=account)


async def test_all_that_a_client_does_is_signed(namesrv: str) -> None:
    topic, group = fresh("T"), fresh("G")
    with trio.fail_after(LIMIT_S):
        async with Admin(namesrv=namesrv, config=config(ADMIN)) as admin:
            await admin.create_topic(topic, queues=2)
            async with Producer(group, namesrv=namesrv, config=config(ADMIN)) as producer:
                sent = await producer.send(Message(topic, b"one", keys=["k"]))
                await producer.send(Message(topic, bytes(100_000)))
                await producer.send_batch([Message(topic, b"two"), Message(topic, b"three")])
                await producer.send_oneway(Message(topic, b"four"))
            inbox = Inbox()
            async with push_consumer(namesrv, topic, inbox.take, group=group, config=config(ADMIN)):
                await inbox.wait_count(5)
            assert sorted(inbox.bodies()) == sorted([b"one", b"two", b"three", b"four", bytes(100_000)])
            for unique, key in ((True, sent.message_id), (False, "k")):
                found = await admin.find_messages(topic, key, unique=unique)
                assert [message.body for message in found] == [b"one"]
            async with PullConsumer(group, namesrv=namesrv, config=config(ADMIN)) as pull:
                queues = await pull.queues(topic)
                assert sum([await pull.committed(queue) or 0 for queue in queues]) == 5


@pytest.mark.parametrize(
    "account", [None, Credentials("conformance", "wrong"), Credentials("nobody", "nobodys-secret"), LIMITED]
)
async def test_who_may_not_send_learns_why(namesrv: str, account: Credentials | None) -> None:
    topic = fresh("T")
    with trio.fail_after(LIMIT_S):
        async with Admin(namesrv=namesrv, config=config(ADMIN)) as admin:
            await admin.create_topic(topic, queues=1)
        with pytest.raises(BrokerResponseError) as caught:  # an unknown account when the producer is entered
            async with Producer(fresh("G"), namesrv=namesrv, config=config(account)) as producer:
                await producer.send(Message(topic, b"one"))
    assert caught.value.remark
    assert account is None or account.secret_key not in str(caught.value)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_worker_needs_no_administrator(own_namesrv: str, orderly: bool) -> None:
    """Sends, consumes with a failure, locks, commits, looks up and traces with rights to topics and groups alone."""
    topic, group = fresh("T"), fresh("G")
    inbox = Inbox()

    async def handle(message: MessageExt) -> None:
        await inbox.take(message)
        if len(inbox.messages) == 1:
            raise ValueError("once more")

    with trio.fail_after(LIMIT_S):
        async with Admin(namesrv=own_namesrv, config=config(ADMIN)) as admin:
            await admin.create_topic(topic, queues=1)
        async with Producer(fresh("P"), namesrv=own_namesrv, config=config(WORKER), trace=True) as producer:
            sent = await producer.send(Message(topic, b"0"))
            await producer.send_batch([Message(topic, b"1"), Message(topic, b"2")])
            await producer.send(Message(topic, b"3"))
            await producer.send(Message(topic, b"4"))
            async with push_consumer(own_namesrv, topic, handle, group=group, config=config(WORKER), orderly=orderly):
                await inbox.wait_count(6)
        assert sorted(set(inbox.bodies())) == [b"0", b"1", b"2", b"3", b"4"]
        async with Admin(namesrv=own_namesrv, config=config(WORKER)) as admin:
            assert [message.body for message in await admin.find_messages(topic, sent.message_id, unique=True)] == [
                b"0"
            ]
            with pytest.raises(BrokerResponseError, match="Need admin permission for request code="):
                await admin.create_topic(topic, queues=2)
        async with PullConsumer(group, namesrv=own_namesrv, config=config(WORKER)) as pull:
            (queue,) = await pull.queues(topic)
            assert await pull.committed(queue) == 5


async def test_a_worker_decides_and_checks_transactions(own_namesrv: str) -> None:
    topic, inbox = fresh("T"), Inbox()

    async def check(message: MessageExt) -> TransactionState:
        assert message.body == b"checked"
        return TransactionState.COMMIT

    with trio.fail_after(LIMIT_S):
        async with Admin(namesrv=own_namesrv, config=config(ADMIN)) as admin:
            await admin.create_topic(topic, queues=1)
        async with (
            TransactionProducer(fresh("P"), namesrv=own_namesrv, check=check, config=config(WORKER)) as producer,
            push_consumer(own_namesrv, topic, inbox.take, group=fresh("G"), config=config(WORKER)),
        ):
            await producer.begin(Message(topic, b"checked"))
            decided = await producer.begin(Message(topic, b"decided"))
            await producer.decide(decided, TransactionState.COMMIT)
            await inbox.wait_count(2)
    assert sorted(inbox.bodies()) == [b"checked", b"decided"]


@pytest.mark.slow
@pytest.mark.parametrize("client", ["4.9", "5"])
def test_java_clients_sign_for_our_broker(own_namesrv: str, client: str, tmp_path: Path) -> None:
    options = (*ACCOUNT_OPTIONS, *LIMITED_OPTIONS)
    verdicts = run_scenarios(("run.sh", "--client", client), own_namesrv, SCENARIOS, tmp_path, *options)
    for scenario in SCENARIOS:
        check_verdict(verdicts, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["4.9", "5"])
def test_transactions_need_rights_to_their_topic_alone(own_namesrv: str, client: str, tmp_path: Path) -> None:
    options = ("--access-key", MAKER.access_key, "--secret-key", MAKER.secret_key)
    verdicts = run_scenarios(
        ("run.sh", "--client", client), own_namesrv, ["transaction_check_back"], tmp_path, *options
    )
    check_verdict(verdicts, "transaction_check_back")


@pytest.mark.go
@pytest.mark.slow
def test_the_go_client_signs_for_our_broker(own_namesrv: str, tmp_path: Path) -> None:
    verdicts = run_scenarios(("run-go.sh",), own_namesrv, ["send_sync"], tmp_path, *ACCOUNT_OPTIONS)
    check_verdict(verdicts, "send_sync")


def mqadmin(client: str, account: Credentials, *words: str) -> str:
    """Run a command with a version of the Java client; return its output."""
    keys = ("--access-key", account.access_key, "--secret-key", account.secret_key)
    done = run([KIT / "run.sh", "--client", client, "mqadmin", *keys, *words], START_TIMEOUT_S)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("client", ["4.9", "5"])
def test_java_clients_sign_in_as_5x_users(own_namesrv: str, client: str) -> None:
    user, topic, cluster = (
        Credentials(fresh("user"), "secret-of-user"),
        fresh("T"),
        ("-c", "DefaultCluster", "-n", own_namesrv),
    )
    subject, send = ("-s", f"User:{user.access_key}"), ("sendMessage", "-n", own_namesrv, "-t", topic, "-p", "text")
    rights = (*subject, "-r", f"Topic:{topic}", "-d", "Allow")
    for words in (
        ("updateTopic", "-t", topic),
        ("createUser", "-u", user.access_key, "-p", user.secret_key),
        ("createAcl", *rights, "-a", "Sub"),
    ):
        assert "success" in mqadmin("5", ADMIN, *words, *cluster)
    assert f"No default permission for topic:{topic}" in mqadmin(client, user, *send)
    assert "success" in mqadmin("5", ADMIN, "updateAcl", *rights, "-a", "Pub", *cluster)
    assert "SEND_OK" in mqadmin(client, user, *send)
    assert "Check signature failed" in mqadmin(client, Credentials(user.access_key, "wrong secret"), *send)
    assert "success" in mqadmin("5", ADMIN, "deleteUser", "-u", user.access_key, *cluster)
    assert f"No acl config for {user.access_key}" in mqadmin(client, user, *send)


@pytest.mark.slow
async def test_users_and_policies_survive_copying_with_apache(apache_brokers: ApacheBrokers, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts: [{accessKey: conformance, secretKey: conformance-secret, admin: true}]")
    apache = apache_brokers.start("5.5.0", tmp_path / "apache", acl=True)
    entries = ("-s", "User:limited", "-b", apache.broker)
    try:
        with start_triomq(tmp_path / "own", "--acl", str(path)) as own:

            async def listed(address: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
                async with ClientInstance(apache.namesrv, config=config(ADMIN)) as instance:
                    ask = instance.requests.ask
                    users = await ask(address, RequestCode.AUTH_LIST_USER, ListUsersRequestHeader())
                    policies = await ask(address, RequestCode.AUTH_LIST_ACL, ListAclsRequestHeader())
                (acl,) = orjson.loads(policies.body)
                for policy in acl["policies"]:
                    policy["entries"].sort(key=itemgetter("resource"))
                found = sorted(orjson.loads(users.body), key=itemgetter("username"))
                return [{**user, "password": None} for user in found], acl

            for command in (
                ("createAcl", *entries, "-r", "Topic:a,Group:g", "-a", "Pub,Sub", "-d", "Allow"),
                ("updateAcl", *entries, "-r", "Topic:b", "-a", "All", "-d", "Deny"),
                ("copyUser", "-f", apache.broker, "-t", own.broker),
                ("copyAcl", "-f", apache.broker, "-t", own.broker),
            ):
                assert "success" in mqadmin("5", ADMIN, *command)
            of_apache = await listed(apache.broker)
            assert await listed(own.broker) == of_apache
            assert "success" in mqadmin("5", ADMIN, "deleteAcl", *entries)
            assert "success" in mqadmin("5", ADMIN, "copyAcl", "-f", own.broker, "-t", apache.broker)
            assert await listed(apache.broker) == of_apache
    finally:
        apache_brokers.stop(apache.folder)
    rights = {"a": PUB | SUB, "b": DENY, "%RETRY%g": PUB | SUB}
    assert read_rules(path.read_text()).accounts["limited"] == Account("limited", "limited-secret", rights=rights)


async def may(namesrv: str, topic: str) -> tuple[bool, bool]:
    """Return whether the limited account may send to a topic of one queue, and read it."""
    found = []
    for is_reading in (False, True):
        try:
            if is_reading:
                async with PullConsumer("G", namesrv=namesrv, config=config(LIMITED)) as consumer:
                    (queue,) = await consumer.queues(topic)
                    await consumer.pull(queue, 0)
            else:
                async with Producer("P", namesrv=namesrv, config=config(LIMITED)) as producer:
                    await producer.send(Message(topic, b"text"))
        except BrokerResponseError:
            found.append(False)
        else:
            found.append(True)
    return found[0], found[1]


@pytest.mark.slow
async def test_apache_decides_by_our_policies_as_we_do(apache_brokers: ApacheBrokers, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("""accounts:
- {accessKey: conformance, secretKey: conformance-secret, admin: true}
- {accessKey: limited, secretKey: limited-secret, defaultTopicPerm: SUB, defaultGroupPerm: SUB,
   topicPerms: [a=PUB, b=SUB, c=DENY, d=PUB|SUB]}
""")
    subject = SubjectRequestHeader("User:limited")
    apache = apache_brokers.start("5.5.0", tmp_path / "apache", acl=True)
    try:
        with start_triomq(tmp_path / "own", "--acl", str(path)) as own:
            async with ClientInstance(apache.namesrv, config=config(ADMIN)) as instance:
                listed = await instance.requests.ask(own.broker, RequestCode.AUTH_GET_ACL, subject)
                await instance.requests.ask(
                    apache.broker, RequestCode.AUTH_CREATE_ACL, subject, body=bytes(listed.body)
                )
            verdicts = []
            for namesrv in (own.namesrv, apache.namesrv):
                async with Admin(namesrv=namesrv, config=config(ADMIN)) as admin:
                    for topic in "abcde":
                        await admin.create_topic(topic, queues=1)
                verdicts.append([await may(namesrv, topic) for topic in "abcde"])
    finally:
        apache_brokers.stop(apache.folder)
    assert verdicts == [[(True, False), (False, True), (False, False), (True, True), (False, True)]] * 2


def test_apaches_tools_change_accounts_of_our_broker(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    with start_triomq(tmp_path, "--acl", str(path)) as broker:
        for words, says in (
            (
                "updateAclConfig -a somebody -s some-secret -i PUB -u DENY -t a=DENY,b=PUB|SUB -g c=SUB -w 10.0.0.*",
                "success",
            ),
            ("updateGlobalWhiteAddr -g 10.10.10.1,11.0.0.*", "success"),
            ("getAclConfig", "topicPerms        : [a=DENY, b=PUB|SUB]"),
            ("clusterAclConfigVersion", "plain_acl.yml"),
            ("deleteAclConfig -a limited", "success"),
            ("deleteAclConfig -a limited", "there is no account limited"),
        ):
            output = mqadmin("4.9", ADMIN, *words.split(), "-b", broker.broker)
            assert says in output
            assert "-secret" not in output
    rules = read_rules(path.read_text())
    assert list(rules.accounts) == ["conformance", "worker-1", "maker-1", "somebody"]
    assert rules.accounts["somebody"] == Account(
        "somebody",
        "some-secret",
        white=parse_pattern("10.0.0.*"),
        topic_right=PUB,
        rights={"a": DENY, "b": PUB | SUB, "%RETRY%c": SUB},
    )
    assert rules.white == union(map(parse_pattern, ("10.10.10.1", "11.0.0.*")))
