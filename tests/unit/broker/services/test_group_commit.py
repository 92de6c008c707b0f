"""Answers that wait for a slave: when they leave, and with which status."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.addresses import Address
from triomq.broker.server import Broker
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.storage.config import Durability

SEND = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_795_000_000_000, "h": 0}
OK, TIMEOUT, NO_SLAVE = ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.fixture
def broker(make_broker: MakeBroker) -> Broker:
    return make_broker(role="sync-master", ha_listen=Address("127.0.0.1", 0))


@asynccontextmanager
async def committing(broker: Broker) -> AsyncGenerator[None]:
    assert broker.group_commit is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.group_commit.run)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


def acknowledge(broker: Broker, missing_bytes: int | None) -> None:
    """Report the end of a slave's log, or that no slave is connected."""
    assert broker.group_commit is not None
    end = broker.store.commit_log.max_offset
    broker.group_commit.acknowledged(None if missing_bytes is None else end - missing_bytes)


def codes(peer: Peer) -> list[int]:
    return [each.code for each in peer.sent]


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (None, None, NO_SLAVE),
        (None, 0, NO_SLAVE),  # it comes later
        (256 * 1024**2, 0, NO_SLAVE),  # the end of the message is even farther away
        (256 * 1024**2 - 1000, 0, OK),
        (0, 0, OK),
        (0, 1, TIMEOUT),
        (0, None, TIMEOUT),  # it may return in time
    ],
)
async def test_status_depends_on_what_slaves_have(
    peer: Peer, mock_clock: MockClock, before: int | None, after: int | None, code: int
) -> None:
    """Source: store.md 9.4.

    Args:
        before: what the slave lacks before the message is stored, and ``after``, in bytes; ``None``: no slave is there.
    """
    events = peer.broker.statistics
    async with committing(peer.broker):
        acknowledge(peer.broker, before)
        peer.ask(RequestCode.SEND_MESSAGE_V2, SEND, b"body")
        assert codes(peer) == ([NO_SLAVE] if code == NO_SLAVE else [])
        acknowledge(peer.broker, after)
        assert codes(peer) == ([] if code == TIMEOUT else [code])
        mock_clock.jump(2.9)
        await wait_all_tasks_blocked()
        assert codes(peer) == ([] if code == TIMEOUT else [code])
        mock_clock.jump(0.4)
        await wait_all_tasks_blocked()
    assert codes(peer) == [code]
    assert peer.sent[0].ext_fields["queueOffset"] == "0"
    assert (events.without_slave, events.slave_timeouts, events.disk_timeouts) == (code == NO_SLAVE, code == TIMEOUT, 0)
    pulled = Peer(peer.broker).pull("T", 0)
    assert pulled is not None
    assert pulled.code == OK


async def test_one_report_answers_all_before_it(peer: Peer, another_peer: Peer) -> None:
    acknowledge(peer.broker, 0)
    for each in (peer, another_peer, peer):
        each.ask(RequestCode.SEND_MESSAGE_V2, SEND, b"body")
    size = peer.broker.store.commit_log.max_offset // 3
    acknowledge(peer.broker, size)
    assert (codes(peer), codes(another_peer)) == ([OK], [OK])
    acknowledge(peer.broker, 0)
    assert codes(peer) == [OK, OK]


async def test_sender_may_refuse_to_wait(peer: Peer) -> None:
    assert peer.put("T", i="WAIT\x01false").code == OK


async def test_decision_counts_without_a_slave(peer: Peer) -> None:
    """Source: EndTransactionProcessor.java."""
    half = peer.put("T", i="TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01id\x02WAIT\x01false").ext_fields
    from_end = {"producerGroup": "P", "tranStateTableOffset": half["queueOffset"], "commitOrRollback": "8"}
    place = {"commitLogOffset": str(int(half["msgId"][16:], 16)), "fromTransactionCheck": "false", "msgId": "id"}
    assert peer.get(RequestCode.END_TRANSACTION, from_end | place).code == OK


@pytest.mark.parametrize("first", ["disk", "slave"])
async def test_sender_waits_for_disk_and_slave(make_broker: MakeBroker, first: str) -> None:
    settings = {"role": "sync-master", "ha_listen": Address("127.0.0.1", 0)}
    broker = make_broker({"durability": Durability.SYNC}, **settings)
    peer = Peer(broker)
    acknowledge(broker, 0)

    async def flush() -> None:
        async with committing(broker):
            while broker.store.commit_log.flushed_offset < broker.store.commit_log.max_offset:
                await trio.lowlevel.checkpoint()  # a thread does it
            await wait_all_tasks_blocked()

    peer.ask(RequestCode.SEND_MESSAGE_V2, SEND, b"body")
    if first == "slave":
        acknowledge(broker, 0)
    else:
        await flush()
    assert codes(peer) == []
    if first == "slave":
        await flush()
    else:
        acknowledge(broker, 0)
    assert codes(peer) == [OK]
