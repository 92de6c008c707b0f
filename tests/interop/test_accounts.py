"""Our client with an account, against Apache brokers that want every request signed."""

from collections.abc import Iterator

import pytest
import trio

from tests.interop.kit_driver import ApacheBrokers
from tests.interop.suite_tools import fresh
from triomq.client import (
    Admin,
    BrokerResponseError,
    ClientConfig,
    Credentials,
    Producer,
    PullConsumer,
    PushConsumer,
)
from triomq.protocol.record.message import Message, MessageExt

pytestmark = pytest.mark.jvm
LIMIT_S = 60
ADMIN = Credentials("conformance", "conformance-secret")
LIMITED = Credentials("limited", "limited-secret")


@pytest.fixture(scope="module", params=["4.9.7", "5.5.0"])
def namesrv(
    request: pytest.FixtureRequest, apache_brokers: ApacheBrokers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
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
            received: list[bytes] = []
            done = trio.Event()

            async def handle(message: MessageExt) -> None:
                received.append(message.body)
                if len(received) == 5:
                    done.set()

            async with PushConsumer(
                group,
                namesrv=namesrv,
                config=config(ADMIN),
                subscriptions={topic: "*"},
                on_message=handle,
                start="earliest",
            ):
                await done.wait()
            assert sorted(received) == sorted([b"one", b"two", b"three", b"four", bytes(100_000)])
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
        async with Producer(fresh("G"), namesrv=namesrv, config=config(account)) as producer:
            with pytest.raises(BrokerResponseError) as caught:
                await producer.send(Message(topic, b"one"))
    assert caught.value.remark
    assert account is None or account.secret_key not in str(caught.value)
