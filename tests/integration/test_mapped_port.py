"""A broker behind a port mapping: its records and the ids of its messages name the address that clients dial."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from bench.delay import relay
from tests.integration.broker_wire import FREE_PORTS, broker_port, namesrv_address, running, wait_for
from triomq.broker.addresses import Address
from triomq.broker.server import Broker
from triomq.client import (
    Admin,
    ConsumerConfig,
    ConsumeStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from triomq.protocol.errors import ConnectError
from triomq.protocol.record.record import decode_records

KINDS = {"T", "%DLQ%G", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer"}
"""The topics of records that :func:`let_store_each_kind` causes."""


@pytest.mark.parametrize(("host", "advertised"), [("127.0.0.1", "localhost"), ("::1", "::1")])
async def test_records_and_ids_carry_mapped_address(root: Path, host: str, advertised: str) -> None:
    (mapped,) = await trio.open_tcp_listeners(0, host=host)
    port = mapped.socket.getsockname()[1]
    listeners = (replace(FREE_PORTS, advertise=str(Address(advertised, port))), replace(FREE_PORTS, name="moved"))
    async with running(root, listeners=listeners) as broker, trio.open_nursery() as nursery:
        nursery.start_soon(relay, mapped, broker_port(broker), 0.0)
        namesrv = namesrv_address(broker)
        sent = await let_store_each_kind(namesrv, broker)
        records = stored(broker)
        assert {record.topic for record in records} >= KINDS
        assert {record.store_host for record in records} == {str(Address(host, port))}
        assert sent <= {record.offset_message_id for record in records}
        async with Admin(namesrv=namesrv) as admin:
            for record in records:
                assert (await admin.message(record.offset_message_id)).message_id == record.message_id
        nursery.cancel_scope.cancel()
        await mapped.aclose()
        async with Admin(namesrv=str(broker.addresses["moved"][1])) as admin:
            (one, *_) = sent
            assert (await admin.message(one)).offset_message_id == one
            with pytest.raises(ConnectError):
                await admin.message(f"{one[:-2]}01")


async def let_store_each_kind(namesrv: str, broker: Broker) -> set[str]:
    """Let plain, delayed, transactional and dead messages be stored; return the ids that the senders got."""

    async def commit(_about: Transaction | MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    async def on_message(_message: MessageExt) -> ConsumeStatus:
        return ConsumeStatus.RECONSUME_LATER

    async with (
        Producer("P", namesrv=namesrv) as producer,
        TransactionProducer("TP", namesrv=namesrv, check=commit) as transactions,
    ):
        results = [
            await producer.send(Message("T", b"plain")),
            *await producer.send_batch([Message("T", b"first"), Message("T", b"second")]),
            await producer.send(Message("T", b"delayed", delay_s=0.01)),
        ]
        await transactions.send(Message("T", b"transactional"), commit)
        settings = ConsumerConfig(max_reconsume_times=0)
        subscriptions = {"T": "*"}
        async with PushConsumer(
            "G",
            namesrv=namesrv,
            on_message=on_message,
            subscriptions=subscriptions,
            start="earliest",
            settings=settings,
        ):
            await wait_for(lambda: sum(record.topic == "%DLQ%G" for record in stored(broker)) == 5)
    return {each for result in results for each in result.offset_message_id.split(",")}


def stored(broker: Broker) -> list[MessageExt]:
    """Return all records of the commit log."""
    log = broker.store.commit_log
    return decode_records(log.view(0, log.max_offset) or b"")
