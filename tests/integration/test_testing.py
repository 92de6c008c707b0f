"""``triomq.testing`` and its fixtures: assertions, time and trouble, for trio, asyncio and plain tests alike."""

import ast
import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import trio

import triomq.client.asyncio as of_asyncio
from triomq.client import (
    ClientError,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConsumer,
    RequestTimeoutError,
    SendStatus,
    SystemBusyError,
    Transaction,
    TransactionProducer,
    TransactionState,
    sync,
)
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.names import HALF_TOPIC
from triomq.testing import BrokerProcess, RunningBroker, open_broker
from triomq.testing.host import BrokerHost

GROUP = "G"
ONCE = ProducerConfig(on_busy="raise", retries=0, send_timeout_s=2)


def bodies(broker: RunningBroker, topic: str) -> list[bytes]:
    return [message.body for message in broker.messages(topic)]


@pytest.fixture
def topic(rocketmq: RunningBroker) -> str:
    return rocketmq.new_topic()


@pytest.fixture(params=[RunningBroker, BrokerProcess], ids=["thread", "process"])
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with request.param() as started:
        yield started


# --- the three kinds of tests ---------------------------------------------------------------------------------


def test_asyncio(rocketmq: RunningBroker, topic: str) -> None:
    taken: list[bytes] = []

    async def take(message: MessageExt) -> None:
        taken.append(message.body)

    async def main() -> None:
        async with (
            of_asyncio.Producer("P", namesrv=rocketmq.namesrv) as producer,
            of_asyncio.PushConsumer(
                "asyncio", namesrv=rocketmq.namesrv, on_message=take, subscriptions={topic: "*"}, start="earliest"
            ),
        ):
            await producer.send(Message(topic, b"x"))
            await rocketmq.wait_until_consumed("asyncio")
        async with open_broker() as another:
            assert another.namesrv != rocketmq.namesrv

    asyncio.run(main())
    assert taken == [b"x"]


def test_what_is_not_consumed_in_time_is_named(rocketmq_broker: RunningBroker) -> None:
    with pytest.raises(AssertionError, match="'nobody' never had a member"):
        rocketmq_broker.wait_until_consumed("nobody", timeout=0)
    release = trio.Event()
    rocketmq_broker.create_topic("T")

    async def main() -> None:
        async with (
            Producer("P", namesrv=rocketmq_broker.namesrv) as producer,
            PushConsumer(
                GROUP,
                namesrv=rocketmq_broker.namesrv,
                on_message=lambda _: trio.from_thread.run(release.wait),
                subscriptions={"T": "*"},
                start="earliest",
            ),
        ):
            await producer.send(Message("T", b"x"))
            with pytest.raises(AssertionError, match=r"has left \{'T': 1\}"):
                await rocketmq_broker.wait_until_consumed(GROUP, timeout=0.5)
            release.set()
            await rocketmq_broker.wait_until_consumed(GROUP)

    trio.run(main)


def test_nothing_is_imported_before_a_fixture_is_used() -> None:
    code = "import pytest, sys; b = {*sys.modules}; import triomq.testing.pytest_plugin; print({*sys.modules} - b)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == {"triomq", "triomq.testing", "triomq.testing.pytest_plugin"}


# --- time -----------------------------------------------------------------------------------------------------


def test_advanced_clock_delivers_delayed_messages(broker: RunningBroker) -> None:
    with sync.Producer("P", namesrv=broker.namesrv) as producer:
        producer.send(Message("T", b"level", delay_level=18))
        producer.send(Message("T", b"time", delay_s=7200))
    broker.clock.advance(hours=1, minutes=59)
    assert bodies(broker, "T") == []
    broker.clock.advance(minutes=1)
    assert sorted(bodies(broker, "T")) == [b"level", b"time"]


async def test_advanced_clock_checks_undecided_transactions(rocketmq_broker: RunningBroker) -> None:
    checked: list[str] = []

    async def check(half: MessageExt) -> TransactionState:
        checked.append(half.topic)
        return TransactionState.UNKNOWN

    async def execute(_: Transaction) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer("P", namesrv=rocketmq_broker.namesrv, check=check) as producer:
        await producer.send(Message("T", b"x"), execute)
        with trio.fail_after(30):
            while not checked:  # at first the producer's heartbeat may be on its way
                rocketmq_broker.clock.advance(minutes=2)
                await trio.sleep(0.02)
        for _ in range(3):
            before = len(rocketmq_broker.messages(HALF_TOPIC))  # each check adds a copy
            rocketmq_broker.clock.advance(minutes=2)
            assert len(rocketmq_broker.messages(HALF_TOPIC)) == before + 1


async def test_advanced_clock_does_not_expire_members(rocketmq_broker: RunningBroker) -> None:
    async def producers(host: BrokerHost) -> set[str]:
        host._broker.housekeeping.remove_silent_members()
        return set(host._broker.groups.producers.groups)

    async with Producer("P", namesrv=rocketmq_broker.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        with trio.fail_after(30):
            while not rocketmq_broker.host.call(producers):  # noqa: ASYNC110  # its heartbeat is on its way
                await trio.sleep(0.01)
        rocketmq_broker.clock.advance(hours=2)
        assert rocketmq_broker.host.call(producers) == {"P"}


# --- trouble --------------------------------------------------------------------------------------------------


def test_refuses_as_many_requests_as_asked(broker: RunningBroker) -> None:
    with sync.Producer("P", namesrv=broker.namesrv, settings=ONCE) as producer:
        producer.send(Message("T", b"0"))
        broker.faults.refuse(code=ResponseCode.SYSTEM_BUSY, next=2)
        for _ in range(2):
            with pytest.raises(SystemBusyError, match="refused as the test asked"):
                producer.send(Message("T", b"1"))
        producer.send(Message("T", b"2"))
        broker.faults.refuse(code=ResponseCode.SYSTEM_BUSY, requests={RequestCode.PULL_MESSAGE})
        producer.send(Message("T", b"3"))
        broker.faults.refuse(code=ResponseCode.SYSTEM_BUSY)
        broker.faults.clear()
        producer.send(Message("T", b"4"))
    assert bodies(broker, "T") == [b"0", b"2", b"3", b"4"]


def test_a_stall_holds_up_clients_for_its_time(rocketmq_broker: RunningBroker) -> None:
    with sync.Producer("P", namesrv=rocketmq_broker.namesrv, settings=ONCE) as producer:
        producer.send(Message("T", b"0"))
        rocketmq_broker.faults.stall(60)
        with pytest.raises(RequestTimeoutError):
            producer.send(Message("T", b"1"))
        rocketmq_broker.faults.restart()  # which ends it
    began = time.monotonic()
    rocketmq_broker.faults.stall(0.2)
    assert bodies(rocketmq_broker, "T")[:1] == [b"0"]  # answered when it is over
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("kind", [RunningBroker, BrokerProcess])
def test_syncs_take_as_long_as_asked(kind: type[RunningBroker]) -> None:
    with kind(durability="sync") as broker, sync.Producer("P", namesrv=broker.namesrv) as producer:
        broker.faults.slow_disk(0.05)
        for _ in range(2):
            began = time.monotonic()
            producer.send(Message("T", b"slow"))
            assert time.monotonic() - began >= 0.05
            broker.faults.restart()
        broker.faults.slow_disk(60)
        broker.faults.clear()
        producer.send(Message("T", b"fast"))


def test_half_message_flushed_too_late_is_rolled_back() -> None:
    def commit(_: object) -> TransactionState:
        return TransactionState.COMMIT

    async def undecided(host: BrokerHost) -> int:
        return len(host._broker.transactions.undecided)

    with open_broker(durability="sync", sync_flush_timeout_s=0.1) as broker:
        broker.create_topic("T")
        with sync.TransactionProducer("P", namesrv=broker.namesrv, check=commit) as producer:
            broker.faults.slow_disk(3)
            with pytest.raises(ClientError, match="FLUSH_DISK_TIMEOUT; it was rolled back"):
                producer.send(Message("T", b"half"), commit)
            assert broker.host.call(undecided) == 0
        with sync.Producer("P", namesrv=broker.namesrv) as plain:
            assert plain.send(Message("T", b"late")).status is SendStatus.FLUSH_DISK_TIMEOUT
        broker.faults.clear()
        broker.faults.restart()
        assert bodies(broker, "T") == [b"late"]


def test_decision_flushed_too_late_is_in_force(caplog: pytest.LogCaptureFixture) -> None:
    with open_broker(durability="sync", sync_flush_timeout_s=0.1) as broker:

        def slowly(_: object) -> TransactionState:
            broker.faults.slow_disk(3)
            return TransactionState.COMMIT

        broker.create_topic("T")
        with sync.TransactionProducer("P", namesrv=broker.namesrv, check=slowly) as producer:
            transaction = producer.send(Message("T", b"half"), slowly)
        broker.faults.clear()
        assert transaction.is_acknowledged
        broker.faults.restart()
        assert bodies(broker, "T") == [b"half"]
    texts = [record.message for record in caplog.records if "decision" in record.message]
    assert len(texts) == 1
    assert texts[0].startswith("decision is flushed late: it is in force")
    assert texts[0].endswith("status=FLUSH_DISK_TIMEOUT")


def test_dropped_connections_end_and_new_ones_work(broker: RunningBroker) -> None:
    host, port = broker.address.split(":")
    with sync.Producer("P", namesrv=broker.namesrv) as producer, socket.create_connection((host, int(port))) as peer:
        producer.send(Message("T", b"0"))
        broker.faults.drop_connections()
        assert peer.recv(1) == b""
        producer.send(Message("T", b"1"))
    assert bodies(broker, "T") == [b"0", b"1"]


def test_a_restarted_broker_has_its_addresses_and_messages(broker: RunningBroker) -> None:
    before = broker.address, broker.namesrv
    with sync.Producer("P", namesrv=broker.namesrv) as producer:
        producer.send(Message("T", b"0"))
        broker.faults.restart()
        assert (broker.address, broker.namesrv) == before
        producer.send(Message("T", b"1"))
    assert bodies(broker, "T") == [b"0", b"1"]


def test_killed_broker_is_silent_until_restarted() -> None:
    with BrokerProcess() as broker:
        broker.create_topic("T")
        with sync.Producer("P", namesrv=broker.namesrv) as producer:
            producer.send(Message("T", b"0"))
        broker.faults.kill()
        with pytest.raises(ConnectionError, match=r"faults\.restart"):
            broker.messages("T")
        broker.faults.restart()
        assert bodies(broker, "T") == [b"0"]
        broker.faults.kill()  # leaving the block is no error


def test_a_thread_cannot_be_killed(rocketmq: RunningBroker) -> None:
    with pytest.raises(RuntimeError, match="BrokerProcess"):
        rocketmq.faults.kill()


def test_a_stall_does_not_outlive_the_test() -> None:
    began = time.monotonic()
    with open_broker() as broker:
        broker.faults.stall(60)
    assert time.monotonic() - began < 30
