"""``triomq doctor`` and :meth:`Admin.diagnose` at a running broker with real faults."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio

from tests.integration import test_name_server
from tests.integration.broker_wire import FREE_PORTS, broker_port, connected, namesrv_address, running, wait_for
from tests.integration.cli_tools import ok, triomq
from tests.integration.mounts import mounted
from tests.processes import start_triomq
from triomq.broker.addresses import Address
from triomq.broker.config import Listener
from triomq.client import Admin, ClientConfig, Diagnosis, FindingKind, Message, MessageExt, Producer, PushConsumer
from triomq.client.environment import wall_clock_ms

MIB = 1024**2


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder on another disk than ``tmp_path``, which may be so full that it is a finding."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


async def examine(namesrv: str) -> Diagnosis:
    async with Admin(namesrv=namesrv) as admin:
        return await admin.diagnose()


async def test_one_run_finds_all_cluster_faults(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    consumed = trio.Event()

    async def on_message(_message: MessageExt) -> None:
        await trio.lowlevel.checkpoint()
        consumed.set()

    def member(group: str, name: str, *topics: str, tags: str = "*") -> PushConsumer:
        config = ClientConfig(advertise="as-dialled", client_ip="10.0.0.1", instance_name=name)
        subscriptions = dict.fromkeys(topics, tags)
        return PushConsumer(
            group,
            namesrv=namesrv,
            config=config,
            on_message=on_message,
            subscriptions=subscriptions,
            start="earliest",
        )

    dialled = ClientConfig(advertise="as-dialled")
    silent = replace(FREE_PORTS, advertise="127.0.0.99")  # nothing listens there
    async with (
        running(in_memory / "store", listeners=(silent,)) as broker,
        AsyncExitStack() as stack,
    ):
        namesrv = namesrv_address(broker)
        admin = await stack.enter_async_context(Admin(namesrv=namesrv, config=dialled))
        for topic in ("orders", "orders2"):
            await admin.create_topic(topic, queues=1)
        producer = await stack.enter_async_context(Producer("P", namesrv=namesrv, config=dialled))
        await producer.send(Message("orders", b"1"))
        async with member("left", "one", "orders"):
            await consumed.wait()
        for name in ("same", "same"):
            await stack.enter_async_context(member("doubled", name, "orders"))
        for name, tags in (("a", "x"), ("b", "y")):
            await stack.enter_async_context(member("different", name, "orders", tags=tags))
        await stack.enter_async_context(member("missing", "m", "orders", "orders2"))
        await admin.delete_topic("orders2")
        await producer.send(Message("orders", b"2"))
        for module in ("broker_answers", "diagnosis"):
            monkeypatch.setattr(f"triomq.client.admin.{module}.wall_clock_ms", lambda: wall_clock_ms() + 60_000)
        found = await examine(namesrv)

    told = [(finding.kind, finding.broker or finding.group, finding.topic) for finding in found.findings]
    assert told == [
        (FindingKind.ADDRESS, "broker-a", None),
        (FindingKind.CLOCK, "broker-a", None),
        (FindingKind.SUBSCRIPTIONS, "different", "orders"),
        (FindingKind.DUPLICATE_ID, "doubled", None),
        (FindingKind.NO_OWNER, "left", "orders"),
        (FindingKind.MISSING_TOPIC, "missing", "orders2"),
    ]
    assert f"answers at 127.0.0.1:{broker_port(broker)}, but not at 127.0.0.99" in found.findings[0].text
    assert " 60 s behind " in found.findings[1].text
    assert found[:2] == (1, 4)


async def test_forwarded_ports_of_a_container_are_named(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.broker.config._CONTAINER_MARKS", (in_memory,))
    everywhere = Listener(broker=Address("0.0.0.0", 0), namesrv=Address("127.0.0.1", 0))
    for local_peers, expected in ((True, ["clients-look-local"]), (False, [])):
        settings: dict[str, Any] = {"listeners": (everywhere,), "insecure": True, "local_peers": local_peers}
        async with running(in_memory / "store", **settings) as broker:
            found = await examine(namesrv_address(broker))
        assert [finding.kind.value for finding in found.findings] == expected


async def test_filters_that_select_nothing_are_named(in_memory: Path) -> None:
    async def on_message(_message: MessageExt) -> None:
        await trio.lowlevel.checkpoint()

    async with running(in_memory / "store") as broker, AsyncExitStack() as stack:
        namesrv = namesrv_address(broker)
        admin = await stack.enter_async_context(Admin(namesrv=namesrv))
        await admin.create_topic("orders", queues=2)
        producer = await stack.enter_async_context(Producer("P", namesrv=namesrv))
        for tag in ("paid", "refunded", "paid", None):
            await producer.send(Message("orders", b"1", tags=tag))
        for group, tags in (("wrong", "payed || lost"), ("right", "payed || refunded"), ("all", "*")):
            consumer = PushConsumer(group, namesrv=namesrv, on_message=on_message, subscriptions={"orders": tags})
            await stack.enter_async_context(consumer)
        found = [finding for finding in (await examine(namesrv)).findings if finding.topic == "orders"]
        words = ("group", "show", "wrong", "--json")
        shown = json.loads(await trio.to_thread.run_sync(partial(ok, *words, namesrv=namesrv)))
    assert [(finding.kind, finding.group) for finding in found] == [(FindingKind.IDLE_FILTER, "wrong")]
    text = (
        "the filter 'payed || lost' selected 0 of the newest 4 messages of topic orders; tags there: paid, refunded; "
        "similar: paid"
    )
    assert found[0].text == f"group wrong: {text}"
    assert shown["problems"] == [{"kind": "filter-selects-nothing", "topic": "orders", "text": text}]


async def test_missing_brokers_and_shared_names_are_found(in_memory: Path) -> None:
    async with test_name_server.running(in_memory / "n") as server, AsyncExitStack() as stack:
        listeners = (Listener(broker=FREE_PORTS.broker, namesrv=None),)
        running_broker = running(in_memory / "b", listeners=listeners, register=(server.address,))
        broker = await stack.enter_async_context(running_broker)
        at, namesrv = f"127.0.0.1:{broker_port(broker)}", str(server.address)
        async with connected(server.address.port) as left:
            await test_name_server.register(left, brokerName="broker-b")
        other = await stack.enter_async_context(connected(server.address.port))
        await wait_for(lambda: len(server.routes.cluster_info("").broker_addr_table) == 1)
        for address in ("127.0.0.1:1", at):
            await test_name_server.register(other, brokerName="broker-a", brokerAddr=address)
        found = (await examine(namesrv)).findings
        done = await trio.to_thread.run_sync(partial(triomq, "ping", namesrv=namesrv))
        show = await trio.to_thread.run_sync(partial(triomq, "topic", "show", "TBW102", namesrv=namesrv))
    assert [(finding.kind, finding.broker) for finding in found] == [
        (FindingKind.MISSING_BROKER, "broker-b"),
        (FindingKind.NAME_CONFLICT, "broker-a"),
    ]
    assert "broker-b at 10.0.0.1:10911 left 0 s ago without unregistering: its connection ended" in found[0].text
    assert found[1].text.endswith(f"127.0.0.1:1, {at}")
    for command in (done, show):
        assert (command.returncode, b"broker broker-b at 10.0.0.1:10911 left" in command.stdout) == (0, True)


async def test_a_full_disk_is_found(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=100m", "tmpfs") as disk:
        async with running(disk / "store", {"commit_log_file_size_bytes": MIB}) as broker:
            assert (await examine(namesrv_address(broker))).findings == ()
            (disk / "ballast").write_bytes(bytes(90 * MIB))
            (finding,) = (await examine(namesrv_address(broker))).findings
            (disk / "ballast").unlink()
    assert (finding.kind, finding.broker) == (FindingKind.DISK, "broker-a")


async def test_the_refusal_of_messages_is_named_everywhere(tmp_path: Path) -> None:
    store = {"disk_clean_ratio": 1, "disk_full_ratio": 1, "clean_file_forcibly": False}
    async with running(tmp_path / "store", store) as broker:
        broker.store.check_disk()
        namesrv = namesrv_address(broker)
        findings = (await examine(namesrv)).findings
        ping, status = [
            json.loads(await trio.to_thread.run_sync(partial(ok, *words, "--json", namesrv=namesrv)))
            for words in (("ping",), ("broker", "status"))
        ]
    (refusal,) = [finding.text for finding in findings if finding.kind is FindingKind.REFUSED]
    for text in (refusal, ping["brokers"][0]["refuses_messages"], status["refuses_messages"]):
        assert text.endswith("no messages above 1 % (disk_full_ratio)")
    assert (status["disk_used_percent"] > 1, status["retention_hours"]) == (True, 72)


def test_the_command_fails_if_something_is_wrong(in_memory: Path) -> None:
    sound, faulty = in_memory / "sound", in_memory / "faulty"
    with start_triomq(sound) as broker:
        assert ok("doctor", namesrv=broker.namesrv) == "no problem found in 1 broker and 0 consumer groups\n"
    with start_triomq(faulty, "--advertise", "127.0.0.99") as broker:
        done = triomq("doctor", "--json", namesrv=broker.namesrv)
        result = json.loads(done.stdout)
        (finding,) = result.pop("findings")
        assert (done.returncode, result) == (1, {"healthy": False, "brokers": 1, "groups": 0})
        assert (finding["kind"], finding["broker"], finding["group"]) == ("address-unreachable", "broker-a", None)
        assert triomq("doctor", namesrv=broker.namesrv).stdout.decode().splitlines() == [
            f"address-unreachable: {finding['text']}",
            f"  what to do: {finding['advice']}",
            "1 problem found in 1 broker and 0 consumer groups",
        ]
        assert ok("doctor", "--as-dialled", namesrv=broker.namesrv).startswith("no problem found")
