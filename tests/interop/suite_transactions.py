"""Scenarios of the client suite: transactional messages."""

import pytest
import trio

from tests.facades import TransactionProducer
from tests.interop.suite_tools import Inbox, consume, fresh, new_topic
from triomq.client import Message, MessageExt, Transaction, TransactionState
from triomq.protocol.errors import MessageIllegalError

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


async def _no_check(message: MessageExt) -> TransactionState:
    raise AssertionError(f"{message.body!r} was decided")


async def decided_transactions_are_delivered_or_not(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    executed: list[str] = []

    async def execute(transaction: Transaction) -> TransactionState:
        await trio.lowlevel.checkpoint()
        executed.append(transaction.id)
        return COMMIT if transaction.message.tags == "commit" else ROLLBACK

    async with TransactionProducer(fresh("producer"), namesrv=namesrv, check=_no_check) as producer:
        sent = [
            await producer.send(Message(topic, b"%d" % number, tags=tags, keys="k", properties={"a": "b"}), execute)
            for number, tags in enumerate(["rollback", "commit", "rollback", "commit"])
        ]
        assert [each.state for each in sent] == [ROLLBACK, COMMIT, ROLLBACK, COMMIT]
        assert all(each.is_acknowledged for each in sent)
        assert executed == [each.id for each in sent]
        got = {message.body: message for message in await consume(namesrv, topic, 2)}
    assert got.keys() == {b"1", b"3"}
    assert (got[b"1"].message_id, got[b"1"].tags, got[b"1"].keys) == (sent[1].id, "commit", ("k",))
    assert got[b"1"].queue_id == sent[1].result.queue.queue_id


async def blocks_commit_or_roll_back(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    async with TransactionProducer(fresh("producer"), namesrv=namesrv, check=_no_check) as producer:
        async with producer.transaction(Message(topic, b"committed")) as committed:
            assert not committed.is_acknowledged
        with pytest.raises(ValueError, match="out of stock"):
            async with producer.transaction(Message(topic, b"rolled back")):
                raise ValueError("out of stock")
        with pytest.raises(MessageIllegalError):
            await producer.begin(Message(topic, b"delayed", delay_level=1))
        async with producer.transaction(Message(topic, b"last")):
            pass
        got = await consume(namesrv, topic, 2)
    assert (committed.state, committed.is_acknowledged) == (COMMIT, True)
    assert {message.body for message in got} == {b"committed", b"last"}


async def undecided_transactions_are_checked(namesrv: str) -> None:
    topic = await new_topic(namesrv)
    checks: dict[bytes, int] = {}

    async def check(message: MessageExt) -> TransactionState:
        await trio.lowlevel.checkpoint()
        assert message.topic == topic
        count = checks[message.body] = checks.get(message.body, 0) + 1
        if message.body == b"raises":
            if count == 1:
                raise RuntimeError("database is away")
            return COMMIT
        return {b"commit": COMMIT, b"rollback": ROLLBACK}.get(message.body, UNKNOWN)

    async def execute(transaction: Transaction) -> TransactionState:
        await trio.lowlevel.checkpoint()
        if transaction.message.body == b"raises":
            raise RuntimeError("no idea how it ended")
        return UNKNOWN

    async with TransactionProducer(fresh("producer"), namesrv=namesrv, check=check) as producer:
        for body in (b"rollback", b"raises", b"commit"):
            sent = await producer.send(Message(topic, body), execute)
            assert sent.state is UNKNOWN
        got = await consume(namesrv, topic, 2)
    assert sorted(message.body for message in got) == [b"commit", b"raises"]
    assert checks == {b"rollback": 1, b"raises": 2, b"commit": 1}


async def another_producer_of_group_decides_after_crash(namesrv: str) -> None:
    topic, group = await new_topic(namesrv), fresh("producer")
    async with TransactionProducer(group, namesrv=namesrv, check=_no_check) as producer:
        left = await producer.begin(Message(topic, b"left behind"))
    asked = Inbox()

    def check(message: MessageExt) -> TransactionState:
        asked.messages.append(message)
        return COMMIT

    async with TransactionProducer(group, namesrv=namesrv, check=check, topics=[topic]):
        (got,) = await consume(namesrv, topic, 1)
    assert (got.body, got.message_id) == (b"left behind", left.id)
    assert [message.message_id for message in asked.messages] == [left.id]
