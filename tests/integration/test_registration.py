"""Our broker at name servers that come and go."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from tests.certificates import Authority, Identity
from tests.facades import FACADES, Admin, Producer, use_facade
from tests.integration import broker_wire, test_name_server
from tests.integration.broker_wire import connected, request, wait_for
from triomq.broker.addresses import Address
from triomq.broker.config import Listener, TlsConfig
from triomq.broker.name_server import NameServer
from triomq.broker.server import Broker
from triomq.client import Message, TopicSettings
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter

FREE: Final = Address("127.0.0.1", 0)


@asynccontextmanager
async def broker_at(
    root: Path, *name_servers: Address, advertise: str | None = None, **settings: Any
) -> AsyncGenerator[Broker]:
    listener = Listener(broker=FREE, namesrv=None, advertise=advertise)
    async with broker_wire.running(root, listeners=(listener,), register=name_servers, **settings) as broker:
        yield broker


def address_of(server: NameServer, topic: str) -> str | None:
    route = server.routes.route(topic, "")
    return None if route is None else route.broker_datas[0].broker_addrs[0]


async def test_topics_stay_registered_until_shutdown(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(test_name_server.running(tmp_path / str(n))) for n in range(2)]
        async with broker_at(tmp_path / "b", *(server.address for server in servers)) as broker:
            at = str(broker.addresses["default"][0])
            assert [address_of(server, "TBW102") for server in servers] == [at, at]
            for number in range(50):
                broker.topics.put(TopicConfig(f"T{number}", 4, 4))
            await wait_for(lambda: [address_of(server, "T49") for server in servers] == [at, at], 3)
        assert [server.routes.topics() for server in servers] == [[], []]


@pytest.mark.parametrize("facade", FACADES)
async def test_tool_changes_reach_name_servers_before_return(tmp_path: Path, facade: str) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(test_name_server.running(tmp_path / f"n{n}")) for n in range(2)]
        addresses = [server.address for server in servers]
        for name in ("a", "b"):
            broker = broker_at(tmp_path / name, *addresses, broker_name=name, auto_create_topic=False)
            await stack.enter_async_context(broker)

        def queues(topic: str) -> list[list[int]]:
            routes = [server.routes.route(topic, "") for server in servers]
            return [sorted(data.write_queue_nums for data in route.queue_datas) if route else [] for route in routes]

        with trio.fail_after(60), use_facade(facade):
            async with Admin(namesrv=[str(address) for address in addresses]) as admin:
                for number in range(5):
                    topic = f"T{number}"
                    await admin.create_topic(topic, queues=2)
                    assert queues(topic) == [[2, 2], [2, 2]]
                    async with Producer("P", namesrv=str(addresses[number % 2])) as producer:
                        await producer.send(Message(topic, b"at once"))
                    await admin.update_topic(topic, TopicSettings(write_queues=number + 3))
                    assert queues(topic) == [[number + 3] * 2] * 2
                    await admin.delete_topic(topic)
                    assert queues(topic) == [[], []]
        await trio.sleep(0.3)  # all topics are registered meanwhile
        assert not any(topic.startswith("T") and topic != "TBW102" for s in servers for topic in s.routes.topics())


async def test_tool_waits_a_second_for_silent_name_server(tmp_path: Path, autojump_clock: MockClock) -> None:
    answers = iter([True])

    def fall_silent(command: RemotingCommand) -> bytes:
        is_answered = command.code != RequestCode.REGISTER_BROKER or next(answers, False)
        return command.reply().encode() if is_answered else b""

    async with strange_name_server(fall_silent) as address, broker_at(tmp_path / "b", address) as broker:
        async with connected(broker.addresses["default"][0].port) as wire:
            for waited_s in (1, 0):  # the second time the connection has been given up
                began = trio.current_time()
                change = {"topic": "T", "defaultTopic": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
                change |= {"topicFilterType": "SINGLE_TAG"}
                assert (await wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, change)).code == ResponseCode.SUCCESS
                assert trio.current_time() - began == pytest.approx(waited_s, abs=0.2)
                await trio.sleep(20)


async def test_enforced_tls_applies_to_name_servers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority, strangers = Authority(tmp_path / "ca"), Authority(tmp_path / "stranger")
    broker, server, stranger = authority.issue("broker"), authority.issue("namesrv"), strangers.issue("namesrv")

    def tls_of(identity: Identity) -> TlsConfig:
        files = {"cert": identity.cert, "key": identity.key, "client_ca": authority.ca}
        return TlsConfig(**files, client_auth="require", enforcing=True)

    async with (
        test_name_server.running(tmp_path / "n", tls=tls_of(server)) as trusted,
        test_name_server.running(tmp_path / "s", tls=tls_of(stranger)) as other,
        test_name_server.running(tmp_path / "p") as plain,
        broker_at(tmp_path / "b", trusted.address, other.address, plain.address, tls=tls_of(broker)),
    ):
        assert "TBW102" in trusted.routes.topics()
        assert not other.routes.topics() + plain.routes.topics()
    assert (
        f"not registered for now namesrv={other.address} reason=unable to get local issuer certificate" in caplog.text
    )
    assert f"not registered for now namesrv={plain.address}" in caplog.text
    assert not trusted.routes.topics()


async def test_it_leaves_the_route_while_it_still_serves(tmp_path: Path) -> None:
    async with test_name_server.running(tmp_path / "n") as server, AsyncExitStack() as stack:
        broker = await stack.enter_async_context(broker_at(tmp_path / "b", server.address))
        async with connected(broker.addresses["default"][0].port) as wire:
            await broker.registration.leave()
            assert not server.routes.topics()
            assert (await wire.put()).code == ResponseCode.SUCCESS
            await trio.sleep(0.3)
            assert not server.routes.topics()


async def test_registers_again_when_name_server_returns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def serve(stop: trio.Event, *, task_status: trio.TaskStatus[Address]) -> None:
        async with test_name_server.running(tmp_path / "n") as server:
            task_status.started(server.address)
            await stop.wait()

    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        address: Address = await nursery.start(serve, stop)
        async with broker_at(tmp_path / "b", address):
            stop.set()
            await wait_for(lambda: f"not registered for now namesrv={address}" in caplog.text)
            async with test_name_server.running(tmp_path / "n", listen=address) as second:
                await wait_for(lambda: address_of(second, "TBW102") is not None, 5)
                assert "the name server closed the connection" in caplog.text


@pytest.mark.parametrize("other", ["answers", "died", "is silent"])
async def test_a_name_is_taken_while_its_broker_answers(tmp_path: Path, other: str) -> None:
    async with test_name_server.running(tmp_path / "n") as server, AsyncExitStack() as stack:
        if other == "answers":
            first = await stack.enter_async_context(broker_at(tmp_path / "first", server.address))
            at = str(first.addresses["default"][0])
            with pytest.raises(ConfigError, match=rf"broker-a is in use: .* {at}, which answers; .* --broker-name"):
                async with broker_at(tmp_path / "second", Address("127.0.0.1", 1), server.address, server.address):
                    pass
            assert not (tmp_path / "second").exists()
            assert address_of(server, "TBW102") == at
            return
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        at = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        stack.push_async_callback(listener.aclose)
        if other == "died":
            await listener.aclose()
        wire = await stack.enter_async_context(connected(server.address.port))
        await test_name_server.register(wire, brokerName="broker-a", brokerAddr=at)
        async with broker_at(tmp_path / "b", server.address) as broker:
            assert address_of(server, "TBW102") == str(broker.addresses["default"][0])


async def test_it_starts_without_its_name_server(tmp_path: Path) -> None:
    with trio.fail_after(30):
        closed = Address("127.0.0.1", 1)
        async with broker_at(tmp_path / "b", closed) as broker, connected(broker.addresses["default"][0].port) as wire:
            assert (await wire.put()).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(("advertise", "at"), [("mq.example", "mq.example:{port}"), ("mq.example:7", "mq.example:7")])
async def test_the_advertised_address_is_registered(tmp_path: Path, advertise: str, at: str) -> None:
    async with (
        test_name_server.running(tmp_path / "n") as server,
        broker_at(tmp_path / "b", server.address, advertise=advertise) as broker,
    ):
        assert address_of(server, "TBW102") == at.format(port=broker.addresses["default"][0].port)


Answer = Callable[[RemotingCommand], bytes]


@asynccontextmanager
async def strange_name_server(answer: Answer) -> AsyncGenerator[Address]:
    """Answer each request with any bytes."""

    async def serve(stream: trio.SocketStream) -> None:
        splitter = FrameSplitter()
        async with stream:
            async for data in stream:
                for frame in splitter.split(data)[0]:
                    await stream.send_all(answer(RemotingCommand.decode(frame)))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield Address("127.0.0.1", listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


def refuse(command: RemotingCommand) -> bytes:
    return command.reply(ResponseCode.SYSTEM_ERROR, remark="no room").encode()


def flood(command: RemotingCommand) -> bytes:
    return command.reply().encode() * 5


def ask_back(command: RemotingCommand) -> bytes:
    return request(RequestCode.GET_BROKER_CLUSTER_INFO) + command.reply().encode()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (refuse, "reason=refused: no room (1)"),
        (flood, "reason=more answers than requests"),
        (lambda _: b"HTTP/1.1 400\r\n\r\n", "the peer looks like an HTTP server"),
        (ask_back, "registered namesrv="),
    ],
)
async def test_strange_answers_do_not_harm_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: Answer, told: str
) -> None:
    caplog.set_level("INFO")
    with trio.fail_after(30):
        async with strange_name_server(answer) as address, broker_at(tmp_path / "b", address) as broker:
            await wait_for(lambda: told in caplog.text)
            async with connected(broker.addresses["default"][0].port) as wire:
                assert (await wire.put()).code == ResponseCode.SUCCESS
    assert "Traceback" not in caplog.text
