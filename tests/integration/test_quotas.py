"""Quotas over sockets, with our client."""

from pathlib import Path

import pytest

from tests.integration.broker_wire import broker_port, connected, namesrv_address, pull_fields, running, until
from triomq.broker.server import Broker
from triomq.client import ClientConfig, Message, Producer, ProducerConfig, SystemBusyError
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.wire.signing import Credentials

ACCOUNTS = """
accounts:
- {accessKey: greedy-one, secretKey: secret-of-greedy, admin: true}
- {accessKey: honest-one, secretKey: secret-of-honest, defaultTopicPerm: PUB|SUB}
"""
QUOTAS = "accounts: {greedy-one: {sends_per_s: 2}}"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def producer(broker: Broker, key: str, secret: str, settings: ProducerConfig) -> Producer:
    config = ClientConfig(credentials=Credentials(key, secret))
    return Producer("P", namesrv=namesrv_address(broker), config=config, settings=settings)


async def send(sender: Producer, messages: int) -> None:
    for _ in range(messages):
        await sender.send(Message("T", b"x"))


async def test_throttled_producer_waits_and_succeeds(tmp_path: Path) -> None:
    acl, quotas = write(tmp_path / "plain_acl.yml", ACCOUNTS), write(tmp_path / "quotas.yml", QUOTAS)
    async with running(tmp_path / "store", acl=acl, quotas=quotas) as broker:
        greedy = "greedy-one", "secret-of-greedy"
        async with (
            producer(broker, *greedy, ProducerConfig(on_busy="raise")) as impatient,
            producer(broker, *greedy, ProducerConfig(send_timeout_s=30)) as patient,
            producer(broker, "honest-one", "secret-of-honest", ProducerConfig(on_busy="raise")) as honest,
        ):
            with pytest.raises(
                SystemBusyError, match="account greedy-one has used up its quota sends_per_s, 2"
            ) as busy:
                await send(impatient, 50)
            assert 0.1 <= (busy.value.retry_after_s or 0) <= 1
            await send(honest, 20)
            await send(patient, 3)
        sent = sum(broker.store.reader.max_offset_in_queue("T", queue_id) for queue_id in range(8))
        assert sent >= 20 + 2 + 3


async def test_answers_count_when_written_connections_until_closed(tmp_path: Path) -> None:
    quotas = write(tmp_path / "quotas.yml", "default: {out_bytes_per_s: 10000, connections: 2}")
    async with running(tmp_path / "store", quotas=quotas) as broker:
        async with connected(broker_port(broker)) as wire, connected(broker_port(broker)) as other:
            for _ in range(3):
                await wire.put(body=bytes(100_000))
            assert (await wire.ask(RequestCode.PULL_MESSAGE, pull_fields())).code == ResponseCode.SUCCESS
            refused = await other.ask(RequestCode.PULL_MESSAGE, pull_fields())
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert int(refused.ext_fields["retryAfterMs"]) > 10_000
            async with connected(broker_port(broker)) as third:
                assert await third.is_closed_by_broker()
        await until(lambda: not broker.connections)
        async with connected(broker_port(broker)) as wire:
            assert (await wire.put()).code == ResponseCode.SUCCESS
            assert (await wire.ask(RequestCode.PULL_MESSAGE, pull_fields())).code == ResponseCode.SYSTEM_BUSY
