"""A broker whose clock is wrong for a while: times of messages, delays, transactions, searches and warnings."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

import pytest
import trio

from tests.integration.cli_tools import ok
from triomq.client import (
    Admin,
    FindingKind,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    Transaction,
    TransactionProducer,
)
from triomq.client import TransactionState as State
from triomq.testing import RunningBroker

DAY_MS = 86_400_000


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(transaction_timeout_s=1) as started:
        yield started


def true_ms() -> int:
    return time.time_ns() // 1_000_000


async def send(broker: RunningBroker, *messages: Message) -> None:
    async with Producer("P", namesrv=broker.namesrv) as producer:
        for message in messages:
            await producer.send(message)


async def arrived_at(broker: RunningBroker, body: bytes) -> int:
    """Wait for a message; return when it is in its topic, by the clock of this machine, ms."""
    with trio.fail_after(30):
        while body not in [message.body for message in broker.messages("T")]:  # noqa: ASYNC110  # of another thread
            await trio.sleep(0.01)
    return true_ms()


@pytest.mark.parametrize("is_restarted", [False, True], ids=["runs", "restarted"])
@pytest.mark.parametrize("days", [1, -1], ids=["ahead", "behind"])
async def test_broker_recovers_when_clock_is_corrected(broker: RunningBroker, days: int, is_restarted: bool) -> None:
    broker.create_topic("T", queues=1)
    await send(broker, Message("T", b"before"))
    broker.clock.jump(days=days)
    if is_restarted:
        broker.faults.restart()
    await send(
        broker, Message("T", b"wrong"), Message("T", b"timed", delay_s=0.2), Message("T", b"level", delay_level=1)
    )
    for body in (b"timed", b"level"):
        await arrived_at(broker, body)
    broker.clock.jump(days=-days)
    if is_restarted:
        broker.faults.restart()
    began_ms = true_ms()
    await send(broker, Message("T", b"right", keys=["k"]), Message("T", b"late", delay_s=1.5))
    await send(broker, Message("T", b"last", delay_level=1))
    assert await arrived_at(broker, b"last") - began_ms >= 1000
    assert await arrived_at(broker, b"late") - began_ms >= 1500

    found = {message.body: message.store_timestamp for message in broker.messages("T")}
    assert [abs(found[body] - true_ms()) < DAY_MS // 2 for body in (b"wrong", b"right", b"late", b"last")] == [
        False,
        True,
        True,
        True,
    ]
    async with Admin(namesrv=broker.namesrv) as admin, PullConsumer("C", namesrv=broker.namesrv) as pull:
        by_key = await admin.find_messages("T", "k", begin_ms=began_ms, end_ms=true_ms())
        assert [message.body for message in by_key] == [b"right"]
        (queue,) = await pull.queues("T")
        at = await pull.offset_for_timestamp(queue, began_ms)
        read = [message.body for message in (await pull.pull(queue, at)).messages]
        assert {b"right", b"late", b"last"} <= set(read)
        assert b"before" not in read[1:]  # the message before may be nearer to the time


async def test_transactions_are_checked_after_their_time_has_passed(broker: RunningBroker) -> None:
    """Not a day later, and no earlier, whichever way the clock jumps meanwhile."""
    checked: dict[bytes, float] = {}

    async def check(half: MessageExt) -> State:
        checked[half.body] = trio.current_time()
        return State.COMMIT

    async def execute(_: Transaction) -> State:
        return State.UNKNOWN

    async with TransactionProducer("P", namesrv=broker.namesrv, check=check) as producer:
        sent: dict[bytes, float] = {}
        for days in (1, -2, 1):
            body = b"%d" % len(sent)
            sent[body] = trio.current_time()
            await producer.send(Message("T", body), execute)
            broker.clock.jump(days=days)
        with trio.fail_after(30):
            while len(broker.messages("T")) < len(sent):  # noqa: ASYNC110  # of another thread
                await trio.sleep(0.02)
    assert all(checked[body] - sent[body] >= 1 for body in sent)


async def test_clock_jump_is_logged_and_diagnosed(broker: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.clock.advance(days=2)  # no jump: time has passed
    broker.clock.jump(days=-1)
    with trio.fail_after(30):
        while "wall clock jumped seconds=-86400.0" not in caplog.text:  # noqa: ASYNC110  # it comes from a thread
            await trio.sleep(0.05)
    assert caplog.text.count("wall clock jumped") == 1
    async with Admin(namesrv=broker.namesrv) as admin:
        findings = (await admin.diagnose()).findings
    text = next(finding.text for finding in findings if finding.kind is FindingKind.CLOCK_JUMPED)
    assert text.endswith("was set back by 86400 s")


async def test_search_by_time_passes_messages_from_future(broker: RunningBroker) -> None:
    broker.create_topic("T", queues=1)
    broker.clock.jump(days=1)
    await send(broker, *(Message("T", b"wrong") for _ in range(70)))
    broker.clock.jump(days=-1)
    await send(broker, Message("T", b"right"))
    times = ("--from", "-1h", "--to", datetime.fromtimestamp(time.time() + 3600, UTC).isoformat())
    words = ("message", "find", "--topic", "T", "--json", *times)
    text = await trio.to_thread.run_sync(partial(ok, *words, namesrv=broker.namesrv))
    assert [json.loads(line)["body"] for line in text.splitlines()] == ["right"]


def test_time_does_not_go_back_by_advance(broker: RunningBroker) -> None:
    with pytest.raises(ValueError, match=r"clock\.jump"):
        broker.clock.advance(hours=-1)
