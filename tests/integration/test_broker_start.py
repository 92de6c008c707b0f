"""A broker that starts on a store after a crash: its log, and the offsets it lowers."""

import logging
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.integration.broker_wire import broker_port, connected, pull_fields, running, until
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import StoreError
from triomq.protocol.record.record import decode_records
from triomq.storage.commit_log.log_scan import ProgressLog
from triomq.storage.files.json_table import JsonTable

TABLES: Final = ("consumerOffset", "delayOffset", "timerProgress")


async def leave(root: Path, count: int) -> None:
    """Store messages and one that waits; it looks as if the process had been killed then."""
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        for number in range(count):
            assert (await wire.put("T", b"%04d" % number * 250)).code == ResponseCode.SUCCESS
        assert (await wire.put("T", b"late", i="DELAY\x0118")).code == ResponseCode.SUCCESS
    (root / "checkpoint").unlink()
    (root / "abort").touch()


async def test_offsets_of_messages_lost_in_crash_are_lowered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await leave(tmp_path, 3)
    JsonTable(tmp_path / "config" / "consumerOffset.json").save({"offsetTable": {"T@G": {0: 9}}})
    JsonTable(tmp_path / "config" / "delayOffset.json").save({"offsetTable": {18: 5}})
    async with running(tmp_path) as broker, connected(broker_port(broker)) as wire:
        assert "group=G topic=T queue=0 stored=9 end=3" in caplog.text
        assert "level=18 stored=5 end=1" in caplog.text
        queue = {"consumerGroup": "G", "topic": "T", "queueId": 0}
        stored = await wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue)
        assert stored.ext_fields["offset"] == "3"
        assert (await wire.ask(RequestCode.GET_ALL_DELAY_OFFSET)).body == b'{"offsetTable":{18:1}}'
        await wire.put("T", b"after the crash")
        pulled = await wire.ask(RequestCode.PULL_MESSAGE, pull_fields("T", queue_offset=3))
        assert [message.stored_body for message in decode_records(pulled.body)] == [b"after the crash"]
    assert JsonTable(tmp_path / "config" / "delayOffset.json").load()["offsetTable"] == {"18": 1}


async def test_lowered_offsets_are_persisted_before_new_messages(tmp_path: Path) -> None:
    await leave(tmp_path, 3)
    tables = {name: JsonTable(tmp_path / "config" / f"{name}.json") for name in TABLES}
    tables["consumerOffset"].save({"offsetTable": {"T@G": {0: 9}}})
    tables["delayOffset"].save({"offsetTable": {18: 5}})
    tables["timerProgress"].save({"timeMs": 1, "queueOffset": 7, "firstOffset": 5})
    async with running(tmp_path):
        saved = {name: table.load() for name, table in tables.items()}
    assert saved["consumerOffset"] == {"offsetTable": {"T@G": {"0": 3}}}
    assert saved["delayOffset"] == {"offsetTable": {"18": 1}}
    assert saved["timerProgress"] == {"timeMs": 1, "queueOffset": -1, "firstOffset": 0, "earlier": []}


async def test_failed_table_save_at_startup_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await leave(tmp_path, 3)
    table = JsonTable(tmp_path / "config" / "consumerOffset.json")
    table.save({"offsetTable": {"T@G": {0: 9}}})

    def refuse_once(self: JsonTable, content: bytes) -> None:
        patch.undo()
        raise StoreError("the disk refuses")

    with monkeypatch.context() as patch:
        patch.setattr(JsonTable, "write", refuse_once)
        async with running(tmp_path, persist_offsets_interval_s=0.01):
            assert "the disk refuses" in caplog.text
            assert table.load() == {"offsetTable": {"T@G": {"0": 9}}}
            await until(lambda: bool(table.load() == {"offsetTable": {"T@G": {"0": 3}}}))


async def test_long_start_reports_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await leave(tmp_path, 10)
    monkeypatch.setattr("triomq.storage.commit_log.log_scan._PROGRESS_LOG_S", 0.0)
    monkeypatch.setattr("triomq.storage.commit_log.log_scan._PROGRESS_STEP_BYTES", 4000)
    monkeypatch.setattr("triomq.protocol.record.intact_record._MAX_RUN_BYTES", 1000)
    caplog.set_level(logging.INFO, "triomq.storage.commit_log.log_scan")
    async with running(tmp_path):
        told = [record.getMessage() for record in caplog.records if record.name == "triomq.storage.commit_log.log_scan"]
    assert told == ["reading the commit log scanned_mib=0 total_mib=16"] * 2


async def test_cancelled_startup_aborts_and_next_startup_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave(tmp_path, 10)
    told: list[int] = []

    def tell(self: ProgressLog, done_bytes: int, most_bytes: int) -> None:
        told.append(done_bytes)
        trio.from_thread.run_sync(starting.cancel)

    with monkeypatch.context() as patch, trio.CancelScope() as starting:
        patch.setattr("triomq.storage.commit_log.log_scan._PROGRESS_STEP_BYTES", 1000)
        patch.setattr("triomq.protocol.record.intact_record._MAX_RUN_BYTES", 1000)
        patch.setattr(ProgressLog, "__call__", tell)
        async with running(tmp_path):
            raise AssertionError("it has started")
    assert len(told) == 1
    async with running(tmp_path) as broker:
        assert broker.store.recovery is not None
        assert not broker.store.recovery.clean
        assert broker.store.recovery.records == 11
