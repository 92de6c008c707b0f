"""Delayed messages through a whole broker: sockets, restarts, a real clock."""

from pathlib import Path

import pytest
import trio

from tests.integration.broker_wire import broker_port, connected, pull_fields, running
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.record.record import decode_records
from triomq.storage.config import Durability
from triomq.storage.delays import DelayLevels

LEVELS = {"delay_levels": DelayLevels("1s 1h")}


@pytest.mark.parametrize(
    ("durability", "disk_delay"),
    [(Durability.ASYNC, 0), (Durability.SYNC, 20), pytest.param(Durability.SYNC, 200, marks=pytest.mark.slow)],
    indirect=["disk_delay"],
)
@pytest.mark.usefixtures("disk_delay")
async def test_delayed_message_survives_restart_and_arrives_once(tmp_path: Path, durability: Durability) -> None:
    """C.2 scenarios 14 and 16."""
    store = {**LEVELS, "durability": durability}
    pull = {**pull_fields("T"), "sysFlag": 6}
    async with running(tmp_path, store) as broker, connected(broker_port(broker)) as wire:
        assert (await wire.put("T", b"late", i="DELAY\x012")).code == ResponseCode.SUCCESS
        sent = broker.store.now_ms()
        assert (await wire.put("T", b"soon", i="DELAY\x011")).code == ResponseCode.SUCCESS
    async with running(tmp_path, store) as broker, connected(broker_port(broker)) as wire:
        with trio.fail_after(30):
            response = await wire.ask(RequestCode.PULL_MESSAGE, pull)
        (message,) = decode_records(response.body)
        assert message.stored_body == b"soon"
        assert message.properties["REAL_TOPIC"] == "T"
        assert message.store_timestamp - sent >= 1000
    async with running(tmp_path, store) as broker, connected(broker_port(broker)) as wire:
        delivered = await wire.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert delivered.body == b'{"offsetTable":{1:1}}'
        assert broker.delayed.delivery.delivered == 0
        assert broker.store.reader.max_offset_in_queue("T", 0) == 1
