"""Mistakes of a first use, in all APIs, against our broker."""

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

import triomq.client
import triomq.client.asyncio as aio
import triomq.client.sync as blocking
from tests.facades import (
    FACADES,
    Admin,
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    use_facade,
)
from tests.process_handlers import succeed
from triomq.client import (
    BrokerResponseError,
    ClientConfig,
    ClientError,
    ClientInstance,
    ConfigError,
    ConsumerConfig,
    Credentials,
    Message,
    MessageExt,
    MessageIllegalError,
    NameServerError,
    ProducerConfig,
    TransactionState,
    WrongTypeError,
)
from triomq.testing import RunningBroker, open_broker


async def check(_message: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN


Make = Callable[..., AbstractAsyncContextManager[Any]]
KINDS: Final[dict[str, Any]] = {
    "Producer": Producer,
    "TransactionProducer": TransactionProducer,
    "PushConsumer": PushConsumer,
    "LitePullConsumer": LitePullConsumer,
    "PullConsumer": PullConsumer,
    "Admin": Admin,
}
CLIENTS: Final[dict[str, Make]] = {
    "Producer": lambda **of: Producer("P", **of),
    "TransactionProducer": lambda **of: TransactionProducer("P", check=check, topics=["T"], **of),
    "PushConsumer": lambda **of: PushConsumer("G", on_message=succeed_async, subscriptions={"T": "*"}, **of),
    "LitePullConsumer": lambda **of: LitePullConsumer("G", **of),
    "PullConsumer": lambda **of: PullConsumer("G", **of),
    "Admin": Admin,
}
each_client = pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
each_facade = pytest.mark.parametrize("facade", FACADES)


async def succeed_async(*_arguments: object) -> object:
    await trio.lowlevel.checkpoint()
    return {"ok": True}


# --- what handlers return ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["on_message", "on_messages"])
@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    ("facade", "handler", "executor"),
    [
        *((facade, succeed_async, "thread") for facade in FACADES),
        ("trio", succeed, "thread"),
        ("trio", succeed, "process"),
    ],
)
async def test_any_returned_value_consumes(
    rocketmq: RunningBroker, facade: str, handler: Any, executor: Any, orderly: bool, argument: str
) -> None:
    topic = rocketmq.new_topic()
    settings = ConsumerConfig(executor=executor, max_concurrency=2, suspend_queue_s=0.01)
    subscriptions = {topic: "*"}
    with use_facade(facade):
        async with Producer("P", namesrv=rocketmq.namesrv) as producer:
            await producer.send_batch([Message(topic, b"x")] * 10)
        async with PushConsumer(
            topic,
            namesrv=rocketmq.namesrv,
            subscriptions=subscriptions,
            start="earliest",
            settings=settings,
            orderly=orderly,
            **{argument: handler},
        ) as consumer:
            await rocketmq.wait_until_consumed(topic, timeout=60)
            statistics = consumer.statistics()
    assert (statistics.succeeded, statistics.failed, statistics.sent_back) == (10, 0, 0)


# --- entering ----------------------------------------------------------------------------------------------------


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@each_facade
@each_client
async def test_entering_fails_at_wrong_port(closed_port: str, facade: str, make: Make) -> None:
    with use_facade(facade), pytest.raises(NameServerError, match="is it running, and is the address right"):
        async with make(namesrv=closed_port):
            pass


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_entering_other_server_asks_for_name_server(answer: bytes, nursery: trio.Nursery) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        if answer:
            await stream.send_all(answer)
        await stream.aclose()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, [listener])
    with pytest.raises(NameServerError, match="is it a name server of RocketMQ"):
        async with Admin(namesrv=f"127.0.0.1:{listener.socket.getsockname()[1]}"):
            pass
    nursery.cancel_scope.cancel()


@each_facade
async def test_entering_needs_one_of_several_name_servers(
    rocketmq: RunningBroker, closed_port: str, facade: str
) -> None:
    with use_facade(facade):
        async with Admin(namesrv=[closed_port, rocketmq.namesrv]) as admin:
            assert await admin.topics()


@each_facade
async def test_without_connect_the_first_use_fails(closed_port: str, facade: str) -> None:
    with use_facade(facade):
        async with Admin(namesrv=closed_port, config=ClientConfig(connect=False)) as admin:
            with pytest.raises(NameServerError):
                await admin.topics()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with an account that has no rights."""
    path = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    Path(path).write_text("accounts:\n- {accessKey: somebody, secretKey: secret-of-user}\n")
    with open_broker(acl=path) as broker:
        yield broker


@each_facade
@each_client
@pytest.mark.parametrize(("key", "reason"), [("somebody", "Check signature failed"), ("nobody", "No acl config for")])
async def test_entering_fails_with_wrong_account(
    guarded: RunningBroker, facade: str, make: Make, key: str, reason: str
) -> None:
    config = ClientConfig(credentials=Credentials(key, "another secret"))
    with use_facade(facade), pytest.raises(BrokerResponseError, match=reason):
        async with make(namesrv=guarded.namesrv, config=config):
            pass


@each_facade
@pytest.mark.parametrize("kind", [kind for kind in CLIENTS if kind != "PushConsumer"])  # that needs its group's rights
async def test_entering_needs_no_right(guarded: RunningBroker, facade: str, kind: str) -> None:
    config = ClientConfig(credentials=Credentials("somebody", "secret-of-user"))
    with use_facade(facade):
        async with CLIENTS[kind](namesrv=guarded.namesrv, config=config):
            pass


# --- transactions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [triomq.client, blocking, aio])
def test_transaction_without_block_warns(api: Any) -> None:
    producer = api.TransactionProducer("P", namesrv="127.0.0.1:1", check=check)
    with pytest.warns(RuntimeWarning, match=r"was not entered and sent nothing: use it as (async )?with"):
        producer.transaction(Message("T", b"x"))


# --- values of wrong types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"body": "x"}, "body: a str is given; pass bytes"),
        ({"body": bytearray(b"x")}, "body: a bytearray is given; pass bytes"),
        ({"topic": None}, "topic: None is given; pass a text"),
        ({"tags": ["a"]}, "tags: a list of str is given; pass a text or None"),
        ({"keys": 17}, "keys: an int is given; pass a list, each a text or a text"),
        ({"keys": [17]}, "keys: a list of int is given"),
        ({"properties": {"a": 1}}, "properties: a dict of int is given; pass a dict from a text to a text"),
        ({"delay_s": "10"}, "delay_s: a str is given; pass a number"),
        ({"delay_level": "3"}, "delay_level: a str is given; pass a whole number"),
        ({"deliver_at": "2026-01-01"}, "deliver_at: a str is given; pass a datetime or None"),
        ({"flag": "1"}, "flag: a str is given"),
        ({"sharding_key": 7}, "sharding_key: an int is given"),
    ],
)
def test_message_of_wrong_type_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(MessageIllegalError, match=f"^{re.escape(text)}") as caught:
        Message(**{"topic": "T", "body": b"x", **fields})
    assert isinstance(caught.value, TypeError)


PUSH: Final[dict[str, Any]] = {"on_message": succeed_async, "subscriptions": {"T": "*"}}


@each_facade
@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("PushConsumer", {**PUSH, "group": 5}, "group: an int is given; pass a text"),
        ("PushConsumer", {**PUSH, "subscriptions": ["T"]}, "subscriptions: a list of str is given; pass a dict"),
        ("PushConsumer", {**PUSH, "subscriptions": {"T": ["a"]}}, "subscriptions: a dict of list is given"),
        ("PushConsumer", {**PUSH, "model": "broadcast"}, "model: a str is given; pass MessageModel."),
        (
            "PushConsumer",
            {**PUSH, "config": ConsumerConfig()},
            "config: a ConsumerConfig is given; pass a ClientConfig",
        ),
        ("PushConsumer", {**PUSH, "on_message": lambda: None}, "on_message: <function <lambda>"),
        ("PushConsumer", {"subscriptions": {"T": "*"}, "on_messages": len}, "on_messages: <built-in function len> is"),
        ("LitePullConsumer", {"auto_commit": "no"}, "auto_commit: a str is given; pass True or False"),
        ("Producer", {"settings": ClientConfig()}, "settings: a ClientConfig is given; pass a ProducerConfig or None"),
        ("PullConsumer", {"namesrv": 9876}, "namesrv: an int is given; pass a text or a list, each a text or None"),
        ("Admin", {"config": {}}, "config: a dict is given"),
        ("TransactionProducer", {"check": "x"}, "check: a str is given; pass a function"),
        ("TransactionProducer", {"check": lambda: None}, "check: <function <lambda>"),
    ],
)
async def test_argument_of_wrong_type_is_named(facade: str, kind: str, arguments: dict[str, Any], text: str) -> None:
    group = {} if kind == "Admin" else {"group": "G"}
    with use_facade(facade), pytest.raises(ConfigError, match=f"^{re.escape(text)}"):
        KINDS[kind](**{"namesrv": "127.0.0.1:1", **group, **arguments})


def test_setting_of_wrong_type_is_named_without_value() -> None:
    with pytest.raises(ConfigError, match="credentials: a tuple of str is given; pass a Credentials or None"):
        ClientConfig(credentials=("me", "secret"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="retries: a str is given; pass a whole number"):
        ProducerConfig(retries="2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="grace_s: a str is given; pass a number"):
        ConsumerConfig(grace_s="2")  # type: ignore[arg-type]


@each_facade
async def test_sent_value_of_wrong_type_is_named(rocketmq: RunningBroker, facade: str) -> None:
    with use_facade(facade):
        async with Producer("P", namesrv=rocketmq.namesrv) as producer:
            with pytest.raises(ConfigError, match=r"^message: a str is given; pass a Message\(topic, body"):
                await producer.send("orders")  # type: ignore[arg-type]


# --- the wrong API ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Producer", "PushConsumer"])
def test_client_in_wrong_block_names_right_one(kind: str) -> None:
    arguments = PUSH if kind == "PushConsumer" else {}

    def make(api: Any) -> Any:
        return getattr(api, kind)("G", namesrv="127.0.0.1:1", **arguments)

    async def enter(api: Any) -> None:
        async with make(api):
            pass

    for api, text in ((triomq.client, "runs on trio: use it as async with"), (aio, "runs on asyncio: use it as async")):
        with pytest.raises(ClientError, match=text), make(api):
            pass
    for run, api, text in (
        (asyncio.run, triomq.client, "runs on trio: .*triomq.client.asyncio for asyncio"),
        (asyncio.run, blocking, "blocks: use it as with; "),
    ):
        with pytest.raises(ClientError, match=text):
            run(enter(api))
    for api, text in ((aio, "runs on asyncio: .*triomq.client is for trio"), (blocking, "blocks: use it as with; ")):
        with pytest.raises(ClientError, match=text):
            trio.run(enter, api)


def test_blocking_client_in_coroutine_warns(rocketmq: RunningBroker) -> None:
    async def block() -> None:
        with blocking.Producer("P", namesrv=rocketmq.namesrv):
            pass

    with pytest.warns(RuntimeWarning, match="this Producer blocks the event loop; use triomq.client.asyncio"):
        asyncio.run(block())


def test_commas_between_name_servers_are_named() -> None:
    with pytest.raises(ConfigError, match="has commas; separate name servers by semicolons, or give a list"):
        ClientInstance("127.0.0.1:9876,127.0.0.1:9877")


@each_facade
@pytest.mark.parametrize("returned", [None, True])
async def test_executed_transaction_needs_state(rocketmq: RunningBroker, facade: str, returned: Any) -> None:
    with use_facade(facade):
        async with TransactionProducer("P", namesrv=rocketmq.namesrv, check=check) as producer:
            with pytest.raises(WrongTypeError, match=f"execute returned {returned}, which is no TransactionState; its"):
                await producer.send(Message(rocketmq.new_topic(), b"x"), lambda _transaction: returned)


def test_testing_refuses_unknown_codes_and_topics(rocketmq: RunningBroker) -> None:
    with pytest.raises(TypeError, match="'SYSTEM_BUSY' is no code; pass a number"):
        rocketmq.faults.refuse(code="SYSTEM_BUSY")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="there is no topic 'typo'"):
        rocketmq.messages("typo")


# --- logs -----------------------------------------------------------------------------------------------


async def test_missing_topic_is_logged_with_similar_names(
    rocketmq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    rocketmq.create_topic("orders")
    async with PushConsumer(
        "G", namesrv=rocketmq.namesrv, on_message=succeed_async, subscriptions={"ordesr": "*"}
    ) as c:
        await c.wait_assigned()
    assert "topic=ordesr hint=similar topics: orders" in caplog.text


@pytest.mark.parametrize("argument", ["on_message", "on_messages"])
@each_facade
async def test_failing_orderly_handler_is_logged_once(
    rocketmq: RunningBroker, caplog: pytest.LogCaptureFixture, facade: str, argument: str
) -> None:
    topic, calls = rocketmq.new_topic(), trio.Semaphore(0)

    async def fail(*_arguments: object) -> None:
        calls.release()
        raise ValueError("no such order")

    settings = ConsumerConfig(suspend_queue_s=0.01)
    with use_facade(facade):
        async with Producer("P", namesrv=rocketmq.namesrv) as producer:
            await producer.send(Message(topic, b"x"))
        consumer: Any = {"subscriptions": {topic: "*"}, "start": "earliest", "orderly": True, argument: fail}
        async with PushConsumer(topic, namesrv=rocketmq.namesrv, settings=settings, **consumer):
            for _ in range(5):
                await calls.acquire()
    assert caplog.text.count("handler raised") == caplog.text.count("Traceback") == 1
